"""Processes that run cases. One that dies or hangs is one more outcome, and another is started."""

import functools
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.fuzz import cases, seeds
from benchmarks.fuzz.trial import Outcome, run

HANGS = 60.0  # seconds by the clock: a busy machine must not look like a hang
_HEADROOM = 6 << 30  # bytes of addresses that a worker may add to those it has
_RENEWED = 3_000  # cases; what compiled programs take is given back


class Worker:
    """A process and its room, forked from a server that has imported all modules."""

    def __init__(self, context: Any, good: Path, room: Path):
        self.case, self.since, self.count, self.room = "", 0.0, 0, room
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, good, room), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, case: str) -> None:
        shutil.rmtree(self.room, ignore_errors=True)
        self.room.mkdir(parents=True)
        self.case, self.since, self.count = case, time.monotonic(), self.count + 1
        self.connection.send(case)

    def end(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


def make_seeds(good: Path) -> None:
    """In a process of its own, so that this one computes nothing."""
    process = context().Process(target=seeds.make, args=(good,))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("fuzz: the seed files could not be made")


def context() -> Any:
    """Where workers come from: a server that has imported everything and computed nothing."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["benchmarks.fuzz.cases"])
    return found


def outcomes(
    names: Iterator[str], good: Path, rooms: Path, jobs: int
) -> Iterator[tuple[Outcome, Path]]:
    """The outcome of each case as it is known, and the room that still has its input."""
    start = functools.partial(Worker, context(), good)
    workers = [start(rooms / str(i)) for i in range(jobs)]
    try:
        for worker in workers:
            _next(worker, names)
        while busy := [worker for worker in workers if worker.case]:
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                outcome = _outcome(worker, worker.connection in ready)
                if outcome is None:
                    continue
                yield outcome, worker.room
                if outcome.verdict in ("hang", "crash") or worker.count >= _RENEWED:
                    worker.end()
                    workers.remove(worker)
                    worker = start(worker.room)
                    workers.append(worker)
                _next(worker, names)
    finally:
        for worker in workers:
            worker.end()


def _next(worker: Worker, names: Iterator[str]) -> None:
    if case := next(names, ""):
        worker.give(case)
    else:
        worker.case = ""


def _outcome(worker: Worker, ready: bool) -> Outcome | None:
    if ready:
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            return Outcome(worker.case, "", "crash", f"died: {worker.process.exitcode}")
    if time.monotonic() - worker.since > HANGS:
        return Outcome(worker.case, "", "hang", f"no end within {HANGS:.0f} s")
    return None


def _work(connection: Connection, good: Path, room: Path) -> None:
    _limit_memory()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    with cases.remembered_shapes():
        while True:
            case = connection.recv()
            connection.send(run(case, cases.prepared(case, good, room), room))


def _limit_memory() -> None:
    """So that an absurd allocation fails here, as a MemoryError, and the machine goes on."""
    if not (statm := Path("/proc/self/statm")).exists():
        return
    pages = int(statm.read_text().split()[0])
    limit = pages * resource.getpagesize() + _HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
