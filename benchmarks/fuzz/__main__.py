"""Damages good files and command lines at random, and sees that only what is allowed comes of it.

    python -m benchmarks.fuzz [--minutes N | --cases N] [--only KIND] [--seed S] [--jobs J]
    python -m benchmarks.fuzz --case KIND:SEED.NUMBER

Kinds: checkpoints of every format, cards and the like (JSON, value by value), images, commands.
Allowed are right numbers, or one ValueError or OSError (of a command: its exit code, and a line or
two), within 2 seconds of a processor and 500 MB over the size of the input. Anything else is listed
at the end, its input kept in --out, and the exit code is 1. A case's name decides everything about
it, so --case repeats one, with its traceback; only Orbax's own files have random names.
"""

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import machine
from benchmarks.fuzz import cases, workers
from benchmarks.fuzz.tally import Tally
from benchmarks.fuzz.trial import run

_SHOWN_EVERY = 10.0  # seconds


def main() -> int:
    args = _parse()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        good, rooms = Path(directory) / "good", Path(directory) / "rooms"
        workers.make_seeds(good)
        if args.case:
            return _run_one(args.case, good, rooms)
        tally = Tally(args.out or Path(tempfile.gettempdir()) / f"fuzz-found-{os.getpid()}")
        start = shown = time.monotonic()
        names = _until(cases.names(args.only, args.seed), args.cases, args.minutes)
        with contextlib.suppress(KeyboardInterrupt):  # then the table is of what was tried so far
            for outcome, room in workers.outcomes(names, good, rooms, args.jobs):
                tally.add(outcome, room)
                if time.monotonic() - shown > _SHOWN_EVERY:
                    shown = time.monotonic()
                    _show_progress(tally, shown - start, args)
        figures = tally.figures(time.monotonic() - start)
    print(tally.table())
    if args.json:
        args.json.write_text(json.dumps(figures | machine.about(), indent=1) + "\n")
    return 1 if tally.unexpected else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="how long [1, unless --cases]")
    parser.add_argument("--cases", type=int, help="how many")
    parser.add_argument("--only", choices=cases.KINDS)
    parser.add_argument("--seed", type=int, default=0, help="another one gives other cases [0]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes [one a core]")
    parser.add_argument("--case", metavar="KIND:SEED.NUMBER", help="run one, with its traceback")
    parser.add_argument("--out", type=Path, help="folder for inputs with an unexpected outcome")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    if args.cases is None and args.minutes is None:
        args.minutes = 1.0
    return args


def _until(names: Iterator[str], count: int | None, minutes: float | None) -> Iterator[str]:
    end = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    return itertools.takewhile(lambda _: time.monotonic() < end, itertools.islice(names, count))


def _show_progress(tally: Tally, seconds: float, args: argparse.Namespace) -> None:
    rate = tally.count / seconds
    left = [(args.cases - tally.count) / rate] if args.cases else []
    left += [60 * args.minutes - seconds] if args.minutes else []
    done = f"{tally.count:,} cases, {rate:.0f}/s, {tally.unexpected} unexpected"
    print(f"{done}, {max(0, min(left)):.0f} s left", file=sys.stderr, flush=True)


def _run_one(case: str, good: Path, room: Path) -> int:
    room.mkdir()
    trial = cases.prepared(case, good, room)
    print(f"{case}: {trial.what}", flush=True)
    outcome = run(case, trial, room)
    print(f"{outcome.trace}{outcome.verdict} {outcome.fault}")
    print(f"{outcome.seconds:.2f} s of a processor, {outcome.megabytes:.0f} MB")
    return 1 if outcome.fault else 0


if __name__ == "__main__":
    sys.exit(main())
