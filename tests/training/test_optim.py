"""Schedules, masks and optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import random_params
from vit_jax import models
from vit_jax.config import default_config
from vit_jax.training import optim


def settings(**changes):
    config = default_config()
    config.total_steps = 100
    config.warmup_steps = 10
    config.update(changes)
    return config


@pytest.fixture(scope="module")
def params():
    model = models.get_model(
        "testing",
        num_classes=3,
        num_registers=2,
        position="relative",
        transformer={"num_layers": 3},
    )
    return random_params(model, jnp.ones((1, 32, 32, 3)))


def named(tree):
    leaves = jax.tree.leaves_with_path(tree)
    return {"/".join(key.key for key in path): leaf for path, leaf in leaves}


@pytest.mark.parametrize(
    ("decay_type", "at_warmup", "at_end"),
    [("cosine", 1.0, 0.0), ("linear", 1.0, 1e-5), ("rsqrt", 1.0, 0.1**0.5), ("constant", 1.0, 1.0)],
)
def test_schedules_warm_up_and_decay(decay_type, at_warmup, at_end):
    schedule = optim.create_learning_rate_schedule(100, 1.0, decay_type, 10)
    assert float(schedule(0)) == 0.0
    np.testing.assert_allclose(schedule(5), 0.5 * float(schedule(10)), rtol=0.01)
    np.testing.assert_allclose(schedule(10), at_warmup, rtol=1e-6)
    np.testing.assert_allclose(schedule(100), at_end, rtol=1e-5, atol=1e-7)


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert float(optim.create_learning_rate_schedule(100, 1.0, "cosine", 0)(0)) == 1.0


def test_weight_decay_shrinks_kernels_and_nothing_else(params):
    mask = named(optim.decay_mask(params))
    decayed = {name for name, decays in mask.items() if decays}
    assert decayed == {name for name in mask if name.endswith("/kernel")}
    assert "cls" in mask
    assert "Transformer/registers" in mask


@pytest.mark.parametrize("optimizer", list(optim.OPTIMIZERS))
def test_every_optimizer_lowers_a_simple_loss(optimizer):
    target = {"kernel": jnp.arange(12.0).reshape(4, 3)}
    params = {"kernel": jnp.zeros((4, 3))}
    config = settings(optimizer=optimizer, base_lr=0.1, warmup_steps=0, optim_dtype="float32")
    transform = optim.make_optimizer(config, params)
    state = transform.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.tree.map(lambda p, t: 2 * (p - t), params, target)
        updates, state = transform.update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    for _ in range(100):
        params, state = step(params, state)
    before, after = (float(((p - target["kernel"]) ** 2).sum()) for p in (0, params["kernel"]))
    assert after < 0.6 * before


def test_layer_decay_slows_lower_layers_by_the_factor(params):
    scales = named(optim.layer_scales(params, 0.5))
    assert scales["head/kernel"] == 1.0
    assert scales["Transformer/encoder_norm/scale"] == 1.0
    assert scales["Transformer/encoderblock_2/LayerNorm_0/scale"] == 0.5
    assert scales["Transformer/encoderblock_0/LayerNorm_0/scale"] == 0.125
    assert scales["embedding/kernel"] == scales["cls"] == 0.0625


def test_layer_decay_refuses_stacked_blocks(params):
    with pytest.raises(ValueError, match=r"which model\.scan does not have"):
        optim.layer_scales(models.stack_blocks(params), 0.5)


def test_layer_decay_goes_with_frozen_parameters(params):
    config = settings(
        layer_decay=0.5,
        trainable="head|encoderblock_2",
        base_lr=1.0,
        warmup_steps=0,
        decay_type="constant",
        grad_norm_clip=0.0,
        momentum=0.0,
        weight_decay=0.1,
    )
    transform = optim.make_optimizer(config, params)
    zeros, ones = (jax.tree.map(make, params) for make in (jnp.zeros_like, jnp.ones_like))
    updates, _ = transform.update(ones, transform.init(params), zeros)
    rates = {name: float(-update.max()) for name, update in named(updates).items()}
    for name, rate in rates.items():
        expected = 1.0 if name.startswith("head") else 0.5 if "encoderblock_2" in name else 0.0
        assert rate == expected, name


def test_a_pattern_that_matches_nothing_is_refused(params):
    with pytest.raises(ValueError, match="'haed' matches no parameter; there are: Transformer"):
        optim.trainable_mask(params, "haed")
