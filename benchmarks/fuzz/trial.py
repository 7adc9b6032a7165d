"""One case: its input, its run, and what became of it, with the time and memory it took."""

import contextlib
import dataclasses
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import vit_jax

SECONDS, MEGABYTES = 2.0, 500  # of a processor; over the size of the input
REFUSED, DONE = "refused", "done"
_COMPUTES = 30.0  # seconds for a command that is done: it compiled a model
_PACKAGE = Path(vit_jax.__file__).parent


class Wrong(Exception):  # noqa: N818
    """Nothing was raised, and yet the result is not right."""


class Trial(NamedTuple):
    what: str  # how its input was made
    run: Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`fault` is '' for an outcome that is allowed, else what was wrong; `place` is where, in our
    code, if something was raised.
    """

    case: str
    what: str
    verdict: str
    fault: str = ""
    place: str = ""
    trace: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0


def run(case: str, trial: Trial, room: Path) -> Outcome:
    """Runs a case, whose input is in a room, and judges it."""
    allowed = MEGABYTES + sum(path.stat().st_size for path in _files(room)) / 1e6
    about: dict[str, str] = {}
    before, start = _reset_peak(), time.process_time()
    with warnings.catch_warnings(action="ignore"):
        try:
            about = {"verdict": trial.run()}
        except (ValueError, OSError):
            about = {"verdict": REFUSED}
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # a panic in Rust is not even an Exception
            about = {"verdict": "wrong" if isinstance(e, Wrong) else type(e).__name__}
            about |= {"fault": " ".join(str(e).split())[:600] or "nothing said", "place": _place(e)}
            about |= {"trace": traceback.format_exc()[-6_000:]}
    seconds, megabytes = time.process_time() - start, _peak() - before
    if "fault" not in about and seconds > (_COMPUTES if about["verdict"] == DONE else SECONDS):
        about = {"verdict": "slow", "fault": f"{seconds:.1f} s of a processor"}
    if "fault" not in about and megabytes > allowed:
        about = {"verdict": "memory", "fault": f"{megabytes:.0f} MB"}
    return Outcome(case, trial.what, **about, seconds=seconds, megabytes=megabytes)


def _files(room: Path) -> list[Path]:
    return [path for path in room.rglob("*") if path.is_file()]


def _place(error: BaseException) -> str:
    """The last function of ours on the way to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    return f"{Path(ours[-1].filename).relative_to(_PACKAGE)} {ours[-1].name}" if ours else ""


def _reset_peak() -> float:
    """Makes the peak what is resident now, and returns it in MB; 0 where Linux is not there."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3
