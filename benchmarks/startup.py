"""How long a user waits: imports, and the time to the first training step.

    python -m benchmarks.startup [--out FILE]

Imports are timed in fresh processes, in turns, best of N. The first step is that of the quickstart,
timed from the start of the process, with a cold and then a warm compilation cache.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import machine

IMPORTS = ("flax.linen", "vit_jax.models", "vit_jax", "vit_jax.train")
ROUNDS = 5


def measure() -> dict:
    seconds = {name: [] for name in IMPORTS}
    for _ in range(ROUNDS):
        for name in IMPORTS:
            seconds[name].append(import_seconds(name))
    best = {name: round(min(times), 3) for name, times in seconds.items()}
    with tempfile.TemporaryDirectory() as directory:
        first_step = {name: first_step_seconds(directory) for name in ("cold", "warm")}
    return {
        "import seconds": best,
        "vit_jax.models / flax.linen": round(best["vit_jax.models"] / best["flax.linen"], 3),
        "seconds to the first step": first_step,
    }


def import_seconds(name: str) -> float:
    """Time of the import alone, without the start of the interpreter."""
    program = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return float(result.stdout)


def first_step_seconds(directory: str) -> float:
    workdir = pathlib.Path(directory) / f"run-{time.time_ns()}"
    command = [sys.executable, "-m", "vit_jax.train", f"--workdir={workdir}"]
    command += [f"--config.compilation_cache={directory}/cache", "--config.progress_every=1"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step 1/"):
            break
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    return round(seconds, 1)


if __name__ == "__main__":
    machine.command(__doc__, measure)
