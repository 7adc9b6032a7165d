"""What SIGTERM and Ctrl-C do to a command, from its first line to its last.

Either ends it with one line, an exit code, and nothing half-written. Until its imports are done
there is nothing to tidy up, and it ends at once. While it runs, KeyboardInterrupt is raised in it.
Python raises that only when the main thread is back from C++, where XLA compiles for minutes, so
a thread ends the process if it is still there after `PATIENCE` seconds. A run that trains is asked
to save first (`stop_on_signals`). Once the exit code is known, signals change nothing.
"""

import contextlib
import dataclasses
import itertools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vit_jax.cli.huge_pages import use_huge_pages

PATIENCE = 1.0  # seconds
RESUMABLE = 75  # the exit code of a command that goes on when it is started again
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass
class _Process:
    """What the handler, in the main thread, and the thread that watches it both know."""

    name: str = ""  # of the command; a process without one is somebody else's
    resumes_in: str = ""
    tidies_up: bool = False
    asks_first: bool = False
    asked: bool = False
    ended_by: int = 0
    told: bool = False


_process = _Process()


def begin(name: str, *, huge_pages: bool = False, resumes_in: str = "") -> None:
    """Call it in a command's first lines. With `huge_pages` it may start the process anew.

    `resumes_in` is the option with the directory of a run, if the command can go on with one.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they wait, also while Python starts anew
    if huge_pages:
        use_huge_pages()
    _process.name, _process.resumes_in = name, resumes_in
    arrivals, arrived = os.pipe()
    os.set_blocking(arrived, False)
    signal.set_wakeup_fd(arrived, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(arrivals,), daemon=True).start()
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextlib.contextmanager
def tidying_up() -> Iterator[None]:
    """In here a signal raises KeyboardInterrupt; after it, none has any effect."""
    if not _process.name:
        yield
        return
    _process.tidies_up = True
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def asking_first() -> Iterator[None]:
    """In here the first signal does not end the process: what is here has a handler of its own.

    Nor does a SIGTERM after it, which some launchers send twice; a second Ctrl-C does.
    """
    _process.asks_first, _process.asked = True, False
    try:
        yield
    finally:
        _process.asks_first = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[int], bool]]:
    """A function to ask after every step: is it the one to stop after?

    SIGTERM and Ctrl-C ask the run to save and stop; a second Ctrl-C stops at once. What the handler
    says goes straight to the file descriptor: it may run in the middle of a logging call, and
    Python's buffered streams refuse to be entered twice.
    """
    requested, previous = False, dict[int, Any]()

    def ask(number: int, _: Any) -> None:
        nonlocal requested
        if not requested:
            name = signal.Signals(number).name
            _say(f"Got {name}: saving, then stopping. A second Ctrl-C stops at once.")
            signal.signal(signal.SIGINT, previous[signal.SIGINT])
        requested = True

    with asking_first():
        with contextlib.suppress(ValueError):  # in another thread they are for whoever started it
            for number in _SIGNALS:
                previous[number] = signal.signal(number, ask)
        try:
            yield lambda _: requested
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def stopped() -> int:
    """The exit code of a command that was interrupted, with the one line about it if it is due."""
    number = _process.ended_by
    if not number:
        return 128 + signal.SIGINT
    code = 128 + number
    if _process.resumes_in and (number == signal.SIGTERM or _has_steps(_process.resumes_in)):
        code = RESUMABLE
    if not _process.told:
        _process.told = True
        by = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        again = " Start it again to go on." if code == RESUMABLE else ""
        _say(f"{_process.name}: stopped by {by}.{again}")
    return code


def _interrupt(number: int, _: Any) -> None:
    if _process.tidies_up and not _process.ended_by:
        _process.ended_by = number
        raise KeyboardInterrupt


def _watch(arrivals: int) -> None:
    """Ends the process if the main thread does not."""
    while True:
        number = os.read(arrivals, 1)[0]
        if number not in _SIGNALS:
            continue
        if _process.asks_first and (not _process.asked or number == signal.SIGTERM):
            _process.asked = True
            continue
        if _process.tidies_up:
            time.sleep(PATIENCE)
        _process.ended_by = _process.ended_by or number
        code = stopped()
        if multiprocessing := sys.modules.get("multiprocessing"):
            for child in multiprocessing.active_children():
                child.kill()
        os._exit(code)


def _has_steps(option: str) -> bool:
    """Whether the directory given by this option holds a checkpoint; asked without slow imports."""
    given = re.findall(rf"\0{option}[=\0]([^\0]+)", "\0".join(sys.argv))
    steps = (Path(path).expanduser().glob("checkpoints/[0-9]*") for path in given[-1:])
    return any(path.name.isdigit() for path in itertools.chain(*steps))


def _say(line: str) -> None:
    os.write(2, f"{line}\n".encode())
