"""What a person sees of a run: lines, a live bar, metrics.jsonl, TensorBoard, curves.png.

On a terminal a bar moves; elsewhere each report is a line. train.log has all of the lines.
"""

import contextlib
import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_collections
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Not `SummaryWriter`, which writes in a thread: when the disk is full it hangs.
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.summary import scalar as summary_of

from vit_jax.atomic import replacing
from vit_jax.evaluation.scores import Scores
from vit_jax.printable import Formatter
from vit_jax.run.curves import draw_curves
from vit_jax.untrusted import parse_json

log = logging.getLogger("vit_jax")
_CURVES_EVERY = 20.0  # seconds between redraws


class Report(contextlib.AbstractContextManager["Report"]):
    """Numbers go through `scalars`, sentences through `log`."""

    def __init__(self, directory: Path, config: ml_collections.ConfigDict, *, start_step: int):
        self._directory, self._config = directory, config
        self._file = directory / "metrics.jsonl"
        self._rows = _keep_until(self._file, start_step)
        # Its name has the time in seconds; a second file of that second would replace the first.
        self._events = EventsWriter(str(directory / "events"), f".{time.time_ns()}")
        restart = SessionLog(status=SessionLog.START)  # later steps are taken again
        self._events.write_event(Event(step=start_step + 1, session_log=restart))
        self._wandb = _start_wandb(config, directory)
        self._last = (start_step, time.monotonic())
        self._drawn = -math.inf
        self._bar, console = None, Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            total = config.total_steps
            self._task = self._bar.add_task("training", total=total, completed=start_step)
            self._bar.start()

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        batch, total = self._config.batch, self._config.total_steps
        (before, then), self._last = self._last, (step, time.monotonic())
        rate = batch * (step - before) / max(self._last[1] - then, 1e-9)
        left = (total - step) * batch / max(rate, 1e-9)
        self.scalars(step, {**metrics, "images_per_second": rate}, prefix="train")
        line = (
            f"loss {metrics['loss']:.4f}  lr {metrics['learning_rate']:.2e}  {rate:,.0f} img/s  "
            f"{duration(left)} left"
        )
        if self._bar:
            self._bar.update(self._task, completed=step, description=line)
        extra = {"only_in_file": bool(self._bar)}
        log.info("step %s  %s", f"{step:,}/{total:,}", line, extra=extra)

    def evaluation(self, step: int, scores: Scores, prefix: str = "test") -> None:
        self.scalars(step, scores.metrics(), prefix=prefix)
        shown = "  ".join(
            f"{name} {100 * value:.2f} %" if name.startswith("accuracy") else f"{name} {value:.4f}"
            for name, value in scores.metrics().items()
        )
        log.info("step %s  %s of %s examples: %s", f"{step:,}", prefix, f"{scores.count:,}", shown)
        if time.monotonic() - self._drawn > _CURVES_EVERY:
            self.draw()

    def scalars(self, step: int, values: Mapping[str, float], *, prefix: str) -> None:
        row = {"step": step, **{f"{prefix}/{name}": value for name, value in values.items()}}
        self._rows.append(row)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for name, value in row.items():
            if name != "step":
                summary = summary_of(name, value)
                self._events.write_event(Event(wall_time=time.time(), step=step, summary=summary))
        if self._wandb:
            self._wandb.log(row, step=step)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time in here (evaluation, saving) does not count as training time."""
        start = time.monotonic()
        yield
        step, then = self._last
        self._last = (step, then + time.monotonic() - start)

    def draw(self) -> None:
        self._drawn = time.monotonic()
        self._events.flush()
        draw_curves(self._rows, self._directory / "curves.png")

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        self._events.close()
        if self._wandb:
            self._wandb.finish()


def duration(seconds: float) -> str:
    """1h02m, 3m04s or 5s."""
    seconds = round(seconds)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds % 60:02d}s" if minutes else f"{seconds}s"


class _LogFile(logging.FileHandler):
    """Raises what is wrong with the disk, where logging would print a page about it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        raise  # called while the error is handled


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Logs the package's messages to standard error and, with the time, to a file.

    Of several processes only the first shows all of them; the others show warnings.
    """
    root = logging.getLogger("vit_jax")
    level, propagate = root.level, root.propagate
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.WARNING if jax.process_index() > 0 else logging.INFO)
    console.addFilter(lambda record: not getattr(record, "only_in_file", False))
    console.setFormatter(Formatter("%(message)s"))
    file = _LogFile(path, encoding="utf-8")
    file.setFormatter(Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    root.setLevel(logging.INFO)
    root.propagate = False
    root.addHandler(console)
    root.addHandler(file)
    try:
        yield
    finally:
        root.removeHandler(console)
        root.removeHandler(file)
        file.close()
        root.setLevel(level)
        root.propagate = propagate


def _keep_until(path: Path, step: int) -> list[dict[str, Any]]:
    """The rows of a run up to a step, in the file too; later steps will be taken again."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows: list[dict[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line cut short by a crash
            row = parse_json(line, where=str(path))
            if "step" in row and all(type(value) in (int, float) for value in row.values()):
                rows.append(row)
    if damaged := len(lines) - len(rows):
        log.warning("%d damaged lines of %s are dropped.", damaged, path)
    rows = [row for row in rows if row["step"] <= step]
    with replacing(path) as partial:
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _start_wandb(config: ml_collections.ConfigDict, directory: Path) -> Any:
    if not config.wandb_project or jax.process_index() > 0:
        return None
    try:
        import wandb  # pyright: ignore[reportMissingImports] (optional)
    except ImportError as e:
        raise ValueError(
            f"config.wandb_project={config.wandb_project!r} needs the package wandb: "
            "pip install wandb, or leave the option empty."
        ) from e
    options = {"project": config.wandb_project, "id": directory.name, "resume": "allow"}
    return wandb.init(**options, dir=str(directory), config=config.to_dict())
