"""Progress bars on a terminal; silence, or a few plain lines, where there is none."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import rich.progress as rich_progress
from rich.console import Console

from vit_jax.printable import printable


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with the time left; call the result to advance it."""
    with _bars(rich_progress.MofNCompleteColumn()) as bars:
        task = bars.add_task(printable(what), total=total)
        yield lambda number: bars.advance(task, number)


@contextlib.contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each file; elsewhere a line at every tenth of it.

    Call the result with the file's name, the bytes so far, and the bytes in all where known.
    """
    with _bars(rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()) as bars:
        tasks: dict[str, rich_progress.TaskID] = {}
        tenths: dict[str, int] = {}

        def update(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(printable(name), total=total)
            bars.update(tasks[name], completed=have, total=total)

        def print_line(name: str, have: int, total: int | None) -> None:
            tenth = have * 10 // total if total else 0
            if tenth > tenths.get(name, -1):
                tenths[name] = tenth
                of = f" of {total / 2**20:.1f}" if total else ""
                print(f"{printable(name)}: {have / 2**20:.1f}{of} MiB", file=sys.stderr, flush=True)

        yield update if bars.live.is_started else print_line


@contextlib.contextmanager
def _bars(*columns: rich_progress.ProgressColumn) -> Iterator[rich_progress.Progress]:
    """rich's bars on standard error; where that is no terminal, they never start."""
    console = Console(stderr=True)
    bars = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False),  # of names with brackets
        rich_progress.BarColumn(),
        *columns,
        rich_progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # lines for a person go above the bar
    )
    with bars if console.is_terminal else contextlib.nullcontext():
        yield bars
