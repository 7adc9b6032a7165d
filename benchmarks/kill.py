"""Kills one training run at random moments and compares it with an undisturbed run.

    python -m benchmarks.kill [--kills 10] [--out benchmarks/results/kill.json]

Each kill is a SIGKILL at a random time after the run has compiled its step or, every third time, in
the middle of a save (as soon as Orbax's temporary directory appears). At the end, the weights (also
the averaged ones) and the metrics must be bit for bit the same; the exit code is 1 if they are not.
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks import machine

RECIPE = "tests/run/recipe.py"
OPTIONS = (
    *("--config.total_steps=400", "--config.checkpoint_every=20", "--config.eval_every=100"),
    *("--config.progress_every=20", "--config.keep_checkpoints=3"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as directory:
        straight, killed = (pathlib.Path(directory) / name for name in ("straight", "killed"))
        start = time.perf_counter()
        subprocess.run(command(straight), check=True, capture_output=True)
        seconds = time.perf_counter() - start
        kills = [kill_once(killed, draw, during_save=i % 3 == 2) for i in range(args.kills)]
        subprocess.run(command(killed), check=True, capture_output=True)
        differences = compare(straight, killed)
    figures = {
        "seconds of the straight run": round(seconds, 1),
        "kills": kills,
        "differences": differences,
        **machine.about(),
    }
    print(json.dumps(figures, indent=1))
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(bool(differences))


def command(workdir: pathlib.Path) -> list[str]:
    return [
        *(sys.executable, "-m", "vit_jax.train", f"--config={RECIPE}", f"--workdir={workdir}"),
        *OPTIONS,
    ]


def kill_once(workdir: pathlib.Path, draw: random.Random, *, during_save: bool) -> dict:
    """Starts the run again and kills it; returns when, and the newest complete step."""
    process = subprocess.Popen(command(workdir), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "Compiled in" in line:
            break
    checkpoints, start = workdir / "checkpoints", time.perf_counter()
    if during_save:
        while process.poll() is None and not list(checkpoints.glob("*tmp*")):
            time.sleep(0.0005)
    else:
        time.sleep(draw.uniform(0.0, 4.0))
    finished = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    process.stderr.close()
    process.wait()
    whole = sorted(int(p.name) for p in checkpoints.iterdir() if p.name.isdigit())
    return {
        "after seconds": round(time.perf_counter() - start, 2),
        "during a save": during_save and not finished,
        "newest whole step": whole[-1] if whole else None,
        "half-written": len(list(checkpoints.glob("*tmp*"))),
    }


def compare(a: pathlib.Path, b: pathlib.Path) -> list[str]:
    """The names of everything that is not bitwise the same."""
    different = []
    for name in ("model.npz", "model_ema.npz"):
        with np.load(a / name) as theirs, np.load(b / name) as ours:
            different += [f"{name}:{k}" for k in theirs if (theirs[k] != ours[k]).any()]
    if rows(a) != rows(b):
        different.append("metrics.jsonl")
    return different


def rows(workdir: pathlib.Path) -> list[dict]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if "per_second" not in k} for row in lines]


if __name__ == "__main__":
    main()
