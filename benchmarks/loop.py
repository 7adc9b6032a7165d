"""What the training loop adds to the bare jitted step.

    python -m benchmarks.loop [--out benchmarks/results/loop.json]

Loop: `train_and_evaluate` on the quickstart's model and data without evaluation, its time per step
from metrics.jsonl; bare: the same compiled step on one batch that is already on the device. The two
alternate in one process, best of N.
"""

import argparse
import json
import pathlib
import tempfile
import time

import jax
import jax.numpy as jnp

from benchmarks import machine
from vit_jax import data, train
from vit_jax.configs import quickstart as recipe
from vit_jax.training.program import Program

ROUNDS = 4
STEPS = 120


def measure() -> dict:
    config = quickstart()
    bare, loop = [], []
    run_bare = bare_step(config)
    with tempfile.TemporaryDirectory() as directory:
        for i in range(ROUNDS):
            bare.append(run_bare())
            loop.append(loop_step(config, pathlib.Path(directory) / str(i)))
    return {
        "milliseconds a step": {"bare": 1e3 * min(bare), "loop": 1e3 * min(loop)},
        "loop / bare": round(min(loop) / min(bare), 3),
    }


def quickstart():
    config = recipe.get_config()
    config.total_steps = STEPS
    config.eval_every = config.checkpoint_every = 0
    return config


def bare_step(config):
    source = data.open_source(config)
    batch = next(data.train_batches(config, source))
    batch = {name: jnp.asarray(value) for name, value in batch.items()}
    program = Program(config, batch["image"].shape[1:], len(source.class_names))
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
