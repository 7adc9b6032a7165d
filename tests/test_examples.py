"""The examples run, and do what they say."""

import functools
import runpy
from pathlib import Path

import jax
import numpy as np

from tests.run.test_train import load_recipe
from vit_jax import data
from vit_jax.training.program import Program

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def test_a_loop_with_jax_pmap_trains_as_our_step_does():
    """Eight devices with `jax.lax.pmean`, and one device with the whole batch."""
    config = load_recipe()
    config.update({"mixup": 0.0, "ema_decay": 0.0, "optimizer": "sgd", "optim_dtype": "float32"})
    config.model.transformer.dropout_rate = 0.0
    example = runpy.run_path(str(EXAMPLES / "pmap.py"))
    params, losses = example["train"](config, num_steps=4)

    source = data.open_source(config)
    program = Program(config, (8, 8, 1), len(source.class_names))
    state = program.init_state(program.init_params())
    step, alone = jax.jit(program.train_step), []
    batches = data.train_batches(config, source)
    for _ in range(4):
        state, metrics = step(state, next(batches))
        alone.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, alone, atol=1e-5)
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(close, params, state.params)
    assert losses[-1] < losses[0]
