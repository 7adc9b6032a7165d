"""What checksums cost a run: their share of the time to save a step, to restore it, to read it.

    python -m benchmarks.checksums [--out benchmarks/results/checksums.json]

Saves the state of a ViT-B/16 with AdamW (1.04 GB) until all of it is on disk, which training does
not wait for; restores it; and reads its parameters alone, as `predict` does. The time in checksums
is taken within each of these, so both sides of a share are of the same moment. Medians of ROUNDS.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import machine
from benchmarks.load import abstract_params
from vit_jax import checkpoint, models
from vit_jax.checkpoint import checksums, orbax_directory
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.training.state import TrainState

MODEL, ROUNDS = "ViT-B_16", 5


def measure() -> dict:
    state = some_state()
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    card = checkpoint.Card(models.get_model(MODEL, num_classes=1000))
    steps = itertools.count(1)
    with tempfile.TemporaryDirectory() as workdir:

        def opened() -> RunCheckpoints:
            return RunCheckpoints(workdir, keep=1, best_metric="accuracy")

        def save() -> float:
            with opened() as checkpoints:  # closing it waits until all is on disk
                start = time.perf_counter()
                checkpoints.save(next(steps), state, card=card)
            return time.perf_counter() - start

        def restore() -> float:
            start = time.perf_counter()
            with opened() as checkpoints:
                jax.block_until_ready(checkpoints.restore(abstract))
            return time.perf_counter() - start

        def read() -> float:
            start = time.perf_counter()
            checkpoint.load(workdir)
            return time.perf_counter() - start

        return {
            "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(state)),
            "save": share(save, checksums, "write"),
            "restore": share(restore, orbax_directory, "damage"),
            "read the parameters": share(read, orbax_directory, "damage"),
        }


def some_state() -> TrainState:
    rng = np.random.default_rng(0)

    def noise(leaf: jax.ShapeDtypeStruct) -> jax.Array:  # zeros would compress to nothing
        return jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype)

    state = jax.eval_shape(
        lambda params: TrainState.create(params, optax.adamw(1e-3), with_ema=False),
        abstract_params(MODEL),
    )
    return jax.tree.map(noise, state)


def share(run: Callable[[], float], module: ModuleType, name: str) -> dict:
    """The seconds that `run` returns, and those of them that were spent in module.name."""
    wholes, parts = [], []
    function = getattr(module, name)

    def timed(*args, **options):
        start = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            parts[-1] += time.perf_counter() - start

    with mock.patch.object(module, name, timed):
        for _ in range(ROUNDS):
            parts.append(0.0)
            wholes.append(run())
    shares = [part / whole for part, whole in zip(parts, wholes, strict=True)]
    return {
        "seconds": round(statistics.median(wholes), 3),
        "of them in checksums": round(statistics.median(parts), 3),
        "share": round(statistics.median(shares), 3),
    }


if __name__ == "__main__":
    machine.command(__doc__, measure)
