"""What the training loop adds to the bare jitted step.

    python -m benchmarks.loop [--out benchmarks/results/loop.json]

Bare: the compiled step of the quickstart on one batch that is on the device already. Loop:
`train_and_evaluate` without evaluation, its time per step from metrics.jsonl; once on that same
batch again and again, which is what the loop itself costs, and once with its readers, which on two
cores compete with the step. All alternate in one process with huge pages, best of N.
"""

from vit_jax.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()

import argparse
import json
import pathlib
import tempfile
import time
from unittest import mock

import grain
import jax
import jax.numpy as jnp

from benchmarks import machine
from vit_jax import data, train
from vit_jax.configs import quickstart as recipe
from vit_jax.training.program import Program

ROUNDS = 8
STEPS = 120


def measure() -> dict:
    config = quickstart()
    batch = next(data.train_batches(config))
    run_bare = bare_step(config, batch)
    seconds = {"bare": [], "loop, same batch": [], "loop, with readers": []}
    with tempfile.TemporaryDirectory() as directory:
        for i in range(ROUNDS):
            seconds["bare"].append(run_bare())
            workdir = pathlib.Path(directory) / str(i)
            seconds["loop, with readers"].append(loop_step(config, workdir / "read"))
            with mock.patch.object(data, "train_batches", lambda *_, **__: SameBatch(batch)):
                seconds["loop, same batch"].append(loop_step(config, workdir / "same"))
    best = {name: min(times) for name, times in seconds.items()}
    return {
        "milliseconds a step": {name: round(1e3 * time, 2) for name, time in best.items()},
        "loop / bare": round(best["loop, same batch"] / best["bare"], 3),
        "loop with readers / bare": round(best["loop, with readers"] / best["bare"], 3),
    }


class SameBatch(grain.DatasetIterator):
    """In place of the readers: one batch without end."""

    def __init__(self, batch: dict):
        super().__init__()
        self._batch, self._step = batch, 0

    def __next__(self) -> dict:
        self._step += 1
        return dict(self._batch)

    def get_state(self) -> dict[str, int]:
        return {"next_step": self._step}

    def set_state(self, state: dict[str, int]) -> None:
        self._step = state["next_step"]


def quickstart():
    config = recipe.get_config()
    config.total_steps = STEPS
    config.eval_every = config.checkpoint_every = 0
    return config


def bare_step(config, batch: dict):
    batch = {name: jnp.asarray(value) for name, value in batch.items()}
    program = Program(config, batch["image"].shape[1:], num_classes=10)
    step = jax.jit(program.step, donate_argnums=0)

    def run() -> float:
        """Seconds a step, over as many steps as a loop reports at once, best of the run."""
        state = program.new_state(program.new_params())
        state, _ = step(state, batch)
        jax.block_until_ready(state)
        best, every = float("inf"), config.progress_every
        for _ in range(STEPS // every - 1):
            start = time.perf_counter()
            for _ in range(every):
                state, _ = step(state, batch)
            jax.block_until_ready(state)
            best = min(best, (time.perf_counter() - start) / every)
        return best

    return run


def loop_step(config, workdir: pathlib.Path) -> float:
    train.train_and_evaluate(config, workdir)
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    rates = [row["train/images_per_second"] for row in rows if "train/images_per_second" in row]
    return config.batch / max(rates[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    args = parser.parse_args()
    machine.report(measure(), args.out)


if __name__ == "__main__":
    main()
