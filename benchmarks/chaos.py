"""Disturbs training runs at random, lets them finish, and compares them with an undisturbed one.

    python -m benchmarks.chaos [--minutes 60] [--faults N] [--seed 0] [--jobs 2] [--out FILE]

A run is disturbed several times, is then left alone, and must end with the same weights (also the
averaged ones) and metrics as the undisturbed run, bit for bit. A fault is one row of `FAULTS`:
SIGKILL at any moment from the first import on or in the middle of a save, SIGTERM, Ctrl-C once or
twice, damage to the newest checkpoint, a disk that is full. After each one the exit code must be
one that the guide names, and what was said must be without a traceback. The disk is a small tmpfs,
which takes root; without it, that fault is left out, and the figures show so.

The exit code is 1 if anything else came about; the figures then list it.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import machine

ROOT = Path(__file__).parents[1]
OPTIONS = (
    *("--config.total_steps=600", "--config.checkpoint_every=20", "--config.eval_every=100"),
    *("--config.progress_every=20", "--config.keep_checkpoints=3"),
)
FAULTS_PER_RUN = 15
DISK = 24  # MiB: a few steps, the weights and the log
PATIENCE = 120  # seconds after which a process counts as hung
SAVED, NOTHING_BEGUN = 75, 130


@dataclasses.dataclass
class Run:
    """One run that is disturbed, and everything that happened to it."""

    workdir: Path
    output: Path  # what its processes say; not on the disk that may be full
    draw: random.Random
    window: float  # seconds in which a fault comes, long enough for a part of the run
    happened: list[dict] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.workdir / "checkpoints"

    def start(self) -> subprocess.Popen:
        with self.output.open("w") as log:
            return subprocess.Popen(command(self.workdir), cwd=ROOT, stderr=log, stdout=log)

    def end(self, process: subprocess.Popen, fault: str, codes: set[int], **more: float) -> None:
        """Waits for a process; notes how it ended, and whether it may end so."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        if process.poll() is None:
            process.kill()
            self.unexpected.append(f"{self.workdir.name}: {fault}: hung for {PATIENCE} s")
        said = self.output.read_text().splitlines()
        moment = moment_of(said)
        self.happened.append({"fault": fault, "moment": moment, "code": process.wait(), **more})
        own = [line for line in said if line.startswith("train: ")]
        if process.returncode not in codes:
            self._note(fault, moment, f"exit code {process.returncode}", said)
        elif any("Traceback" in line for line in said):
            self._note(fault, moment, "a traceback", said)
        elif process.returncode > 0 and len(own) != 1:
            self._note(fault, moment, f"{len(own)} lines of its own at the end", said)

    def _note(self, fault: str, moment: str, what: str, said: list[str]) -> None:
        lines = "\n    ".join(said[-12:])
        self.unexpected.append(f"{self.workdir.name}: {fault} in {moment}: {what}\n    {lines}")


def kill(run: Run) -> None:
    process = run.start()
    time.sleep(run.draw.uniform(0, run.window))
    process.kill()
    run.end(process, "kill", {-signal.SIGKILL, 0})


def kill_in_save(run: Run) -> None:
    process = run.start()
    before = set(run.checkpoints.glob("*tmp*"))
    while process.poll() is None and not set(run.checkpoints.glob("*tmp*")) - before:
        time.sleep(0.0005)
    time.sleep(run.draw.uniform(0, 0.02))
    process.kill()
    run.end(process, "kill in a save", {-signal.SIGKILL, 0})


def ask_to_stop(run: Run, number: signal.Signals, times: int = 1) -> None:
    process = run.start()
    wait_for_handler(process)
    time.sleep(run.draw.uniform(0, run.window))
    asked = time.perf_counter()
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    seconds = round(time.perf_counter() - asked, 2)
    codes = {0, SAVED} | ({NOTHING_BEGUN} if number == signal.SIGINT else set())
    run.end(process, f"{number.name} x {times}", codes, seconds=seconds)


def wait_for_handler(process: subprocess.Popen) -> None:
    """Until then Python itself is starting, and nobody is there to listen to a signal."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        caught = next(line for line in status.read_text().splitlines() if "SigCgt" in line)
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def damage(run: Run) -> None:
    """Harms one file of the newest step; the next start has to see it."""
    steps = sorted(int(path.name) for path in run.checkpoints.glob("*") if path.name.isdigit())
    if len(steps) < 2:  # nothing to go back to
        kill(run)
        return
    files = [path for path in (run.checkpoints / str(steps[-1])).rglob("*") if path.is_file()]
    file = run.draw.choice(sorted(files))
    content = bytearray(file.read_bytes())
    how = run.draw.choice(["flip", "cut", "empty", "remove"] if content else ["remove"])
    if how == "flip":
        content[run.draw.randrange(len(content))] ^= 1 << run.draw.randrange(8)
    file.write_bytes(content[: {"cut": len(content) // 2, "empty": 0}.get(how)])
    if how == "remove":
        file.unlink()
    process = run.start()
    wait_for_handler(process)
    time.sleep(run.draw.uniform(0, run.window))
    process.send_signal(signal.SIGTERM)
    run.end(process, f"damage: {how} {file.name}", {0, SAVED})


def full_disk(run: Run) -> None:
    """Leaves a little room, or none; what does not fit is an error, and nothing is lost."""
    ballast = run.workdir.parent / "ballast"
    room = run.draw.choice([0, 4, 64, 512, 2048]) << 10
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with ballast.open("ab") as file:
        file.truncate(max(0, ballast.stat().st_size - room))
    process = run.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    ballast.unlink()
    run.end(process, "full disk", {0, 1})


FAULTS: dict[Callable[[Run], None], int] = {  # with how often each comes up
    kill: 18,
    kill_in_save: 6,
    lambda run: ask_to_stop(run, signal.SIGTERM): 3,
    lambda run: ask_to_stop(run, signal.SIGINT): 2,
    lambda run: ask_to_stop(run, signal.SIGINT, times=2): 1,
    damage: 3,
    full_disk: 2,
}


def disturbed(number: int, folder: Path, straight: Path, window: float, seed: int) -> Run:
    """A run that a few faults befall; in the end it is left alone and compared."""
    draw = random.Random(f"{seed} {number}")
    with small_disk(folder / f"disk{number}") as (disk, is_small):
        run = Run(disk / f"run{number}", folder / f"run{number}.txt", draw, window)
        faults = {fault: often for fault, often in FAULTS.items() if is_small or fault != full_disk}
        for fault in draw.choices([*faults], [*faults.values()], k=FAULTS_PER_RUN):
            fault(run)
        run.end(run.start(), "left alone", {0})
        run.unexpected += compare(straight, run.workdir)
    return run


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[tuple[Path, bool]]:
    """A directory with a disk of its own, and whether it got one."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(path)]
    is_small = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield path, is_small
    finally:
        if is_small:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def command(workdir: Path) -> list[str]:
    recipe = ROOT / "tests/run/recipe.py"
    options = [f"--config={recipe}", f"--workdir={workdir}", *OPTIONS]
    return [sys.executable, "-m", "vit_jax.train", *options]


def moment_of(said: list[str]) -> str:
    """What a process was doing, by the last of its lines."""
    moments = {
        "Finished": "the end",
        "step ": "training",
        "Compiled": "training",
        "Compiling": "compilation",
        "  model": "preparation",
    }
    for line in reversed(said):
        for start, moment in moments.items():
            if line.startswith(start):
                return moment
    return "imports"


def compare(a: Path, b: Path) -> list[str]:
    """The names of everything that is not bitwise the same."""
    different = []
    for name in ("model.npz", "model_ema.npz"):
        if not (b / name).exists():
            different.append(f"{b.name}: no {name}")
            continue
        with np.load(a / name) as theirs, np.load(b / name) as ours:
            different += [f"{b.name}: {name}: {k}" for k in theirs if (theirs[k] != ours[k]).any()]
    if not different and rows(a) != rows(b):
        different.append(f"{b.name}: metrics.jsonl")
    return different


def rows(workdir: Path) -> list[dict]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if "per_second" not in k} for row in lines]


def measure(minutes: float, faults: int, seed: int, jobs: int) -> dict:
    deadline = time.monotonic() + 60 * minutes
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        straight = Path(folder) / "straight"
        start = time.perf_counter()
        subprocess.run(command(straight), cwd=ROOT, check=True, capture_output=True)
        life = time.perf_counter() - start
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            numbers, waiting = itertools.count(), set()
            while waiting or not runs:
                while len(waiting) < jobs and time.monotonic() < deadline:
                    if faults and FAULTS_PER_RUN * (len(runs) + len(waiting)) >= faults:
                        break
                    arguments = next(numbers), Path(folder), straight, life / 2, seed
                    waiting.add(pool.submit(disturbed, *arguments))
                if not waiting:
                    break
                done, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
                for run in (future.result() for future in done):
                    runs.append(run)
                    for what in run.unexpected:
                        print(what, file=sys.stderr)
                count = sum(len(run.happened) - 1 for run in runs)
                bad = sum(len(run.unexpected) for run in runs)
                print(f"{len(runs)} runs, {count} faults, {bad} unexpected", file=sys.stderr)
    return figures(runs, life)


def figures(runs: list[Run], life: float) -> dict:
    happened = [one for run in runs for one in run.happened if one["fault"] != "left alone"]
    kinds = collections.defaultdict(collections.Counter)
    for one in happened:
        kinds[one["fault"].partition(":")[0]][f"in {one['moment']}: {one['code']}"] += 1
    seconds = [one["seconds"] for one in happened if "seconds" in one]
    return {
        "seconds of the undisturbed run": round(life, 1),
        "runs": len(runs),
        "faults": len(happened),
        "killed with -9": sum(one["code"] == -signal.SIGKILL for one in happened),
        "exit codes by fault and moment": {kind: dict(c) for kind, c in sorted(kinds.items())},
        "seconds from a signal to the end": {
            "median": statistics.median(seconds or [0]),
            "longest": max(seconds, default=0),
        },
        "unexpected": [what for run in runs for what in run.unexpected],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="begin no run after this [60]")
    parser.add_argument("--faults", type=int, default=0, help="stop after about as many; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time [2]")
    parser.add_argument("--out", help="a JSON file for the figures")
    args = parser.parse_args()
    found = measure(args.minutes, args.faults, args.seed, args.jobs)
    machine.report(found, args.out)
    sys.exit(bool(found["unexpected"]))


if __name__ == "__main__":
    main()
