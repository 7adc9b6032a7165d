"""What the training loop adds to the bare jitted step.

    python -m benchmarks.loop [--out benchmarks/results/loop.json]

Loop: `train_and_evaluate` on the quickstart without evaluation, given the same batch again and
again; the time per step is from metrics.jsonl. Bare: the compiled step of that run called by
itself, on a copy of its state and on that batch. Both take turns of ten steps within one run,
because the speed of this machine drifts by a third within minutes: each turn of the loop is divided
by the bare turn after it, and the median counts. Readers are measured separately, in whole runs
that alternate with runs on the same batch: on two cores they compete with the step, and would
compete with the bare one too.
"""

from vit_jax.cli.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()

import itertools
import json
import pathlib
import tempfile
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from configs import quickstart as recipe
from vit_jax import data, train
from vit_jax.run.report import Report

ROUNDS = 3
PAIRED_STEPS, STEPS = 400, 120


def measure() -> dict:
    config = quickstart()
    batch = next(data.train_batches(config))
    pairs, same, read = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        for i in range(ROUNDS):
            workdir = pathlib.Path(directory) / str(i)
            with mock.patch.object(data, "train_batches", lambda *_, **__: itertools.repeat(batch)):
                pairs += paired_turns(config, workdir / "paired", batch)
                same += loop_turns(config, workdir / "same", STEPS)
            read += loop_turns(config, workdir / "read", STEPS)
    ratios = [loop / bare for loop, bare in pairs]
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    return {
        "bare, ms a step": round(1e3 * float(np.median([bare for _, bare in pairs])), 2),
        "loop, ms a step": round(1e3 * float(np.median([loop for loop, _ in pairs])), 2),
        "loop / bare": round(float(middle), 3),
        "loop / bare, quartiles": [round(float(low), 3), round(float(high), 3)],
        "pairs of turns": len(pairs),
        "with readers / same batch": round(float(np.median(read) / np.median(same)), 3),
    }


def quickstart():
    config = recipe.get_config()
    config.eval_every = config.checkpoint_every = 0
    return config


def paired_turns(config, workdir: pathlib.Path, batch: dict) -> list[tuple[float, float]]:
    """Seconds per step of the loop, and of its bare step right after, turn by turn."""
    batch = {name: jnp.asarray(value) for name, value in batch.items()}
    bare, step, state = [], None, None
    compiled, progress = train.compiled, Report.progress

    def compile_and_keep(step_fn, loop_state, *shapes):
        nonlocal step, state
        step, state = compiled(step_fn, loop_state, *shapes), jax.tree.map(jnp.copy, loop_state)
        return step

    def progress_then_bare(self, *args) -> None:
        nonlocal state
        progress(self, *args)
        with self.pause():
            start = time.perf_counter()
            for _ in range(config.progress_every):
                state, _ = step(state, batch)
            jax.block_until_ready(state)
            bare.append((time.perf_counter() - start) / config.progress_every)

    with (
        mock.patch.object(train, "compiled", compile_and_keep),
        mock.patch.object(Report, "progress", progress_then_bare),
    ):
        loop = loop_turns(config, workdir, PAIRED_STEPS)
    return list(zip(loop, bare[1:], strict=True))


def loop_turns(config, workdir: pathlib.Path, steps: int) -> list[float]:
    """Seconds per step in each report of a run but the first, which includes the start."""
    config.total_steps = steps
    train.train_and_evaluate(config, workdir)
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    rates = [row["train/images_per_second"] for row in rows if "train/images_per_second" in row]
    return [config.batch / rate for rate in rates[1:]]


if __name__ == "__main__":
    machine.command(__doc__, measure)
