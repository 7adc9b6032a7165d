"""The train step: the reference's trajectory, accumulation, averaging, freezing."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import GOLDEN, golden
from vit_jax.config import default_config
from vit_jax.training.optim import create_learning_rate_schedule, make_optimizer
from vit_jax.training.state import TrainState
from vit_jax.training.step import make_train_step


def settings(**changes):
    config = default_config()
    config.optim_dtype = "float32"
    config.total_steps = 20
    config.warmup_steps = 0
    config.base_lr = 0.05
    config.update(changes)
    return config


@pytest.fixture(scope="module")
def trajectory():
    with np.load(GOLDEN / "vit_token.train.npz") as file:
        return dict(file)


def run(config, trajectory, steps, model=None):
    recorded = golden("vit_token")
    model = model or recorded.model()
    params = jax.tree.map(jnp.asarray, recorded.params())
    optimizer = make_optimizer(config, params)
    state = TrainState.create(params, optimizer, with_ema=config.ema_decay > 0)
    step_fn = jax.jit(make_train_step(config, model, optimizer))
    losses = []
    for images, labels in zip(trajectory["images"][:steps], trajectory["labels"], strict=False):
        state, metrics = step_fn(state, {"image": images, "label": labels.astype("int32")})
        losses.append(float(metrics["loss"]))
    return state, losses


def assert_params_close(a, b, atol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a.params, b.params)


def test_the_step_follows_the_reference_for_twenty_steps(trajectory):
    about = json.loads((GOLDEN / "vit_token.train.json").read_text())
    config = settings(
        warmup_steps=about["warmup_steps"],
        decay_type=about["decay_type"],
        base_lr=about["base_lr"],
        total_steps=about["steps"],
        grad_norm_clip=about["grad_norm_clip"],
        momentum=about["momentum"],
        optim_dtype=about["optim_dtype"],
        accum_steps=about["accum_steps"],
    )
    state, losses = run(config, trajectory, 20)
    np.testing.assert_allclose(losses, trajectory["losses"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(state.params["head"]["kernel"], trajectory["head_kernel"], atol=1e-4)
    position = state.params["Transformer"]["posembed_input"]["pos_embedding"]
    np.testing.assert_allclose(position, trajectory["pos_embedding"], atol=1e-4)


def test_the_schedule_is_the_references(trajectory):
    about = json.loads((GOLDEN / "vit_token.train.json").read_text())
    schedule = create_learning_rate_schedule(
        about["steps"], about["base_lr"], about["decay_type"], about["warmup_steps"]
    )
    np.testing.assert_allclose(
        [schedule(step) for step in range(20)], trajectory["lrs"], rtol=1e-5, atol=1e-8
    )


def test_accumulating_in_parts_equals_the_big_batch(trajectory):
    whole, _ = run(settings(), trajectory, 3)
    parts, _ = run(settings(accum_steps=4), trajectory, 3)
    assert_params_close(whole, parts, atol=1e-6)


def test_parts_that_do_not_divide_the_batch_are_refused(trajectory):
    with pytest.raises(ValueError, match="batch of 8 does not divide into accum_steps=3 parts; 9"):
        run(settings(accum_steps=3), trajectory, 1)


def test_momentum_is_kept_in_the_dtype_asked_for(trajectory):
    state, _ = run(settings(optim_dtype="bfloat16"), trajectory, 1)
    floats = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert {x.dtype for x in floats} == {jnp.dtype(jnp.bfloat16)}


def test_averaged_weights_follow_the_weights(trajectory):
    before, _ = run(settings(), trajectory, 1)
    state, _ = run(settings(ema_decay=0.75), trajectory, 1)
    start = golden("vit_token").params()["head"]["kernel"]
    expected = 0.75 * start + 0.25 * before.params["head"]["kernel"]
    np.testing.assert_allclose(state.ema["head"]["kernel"], expected, atol=1e-6)


def test_only_what_is_trainable_learns(trajectory):
    state, _ = run(settings(trainable="head", weight_decay=0.1), trajectory, 2)
    start = golden("vit_token").params()
    for name, tree in state.params.items():
        moved = jax.tree.map(lambda a, b: bool((a != b).any()), tree, start[name])
        assert set(jax.tree.leaves(moved)) == {name == "head"}, name


def test_randomness_is_a_function_of_seed_and_step(trajectory):
    recorded = golden("vit_token")
    rates = {**recorded.config["transformer"], "dropout_rate": 0.3}
    model = recorded.model(transformer=rates)
    first, again, other = (
        run(settings(seed=seed, mixup=0.2), trajectory, 2, model)[1] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_a_gradient_is_clipped_to_the_norm(trajectory):
    tiny, _ = run(settings(grad_norm_clip=1e-6, base_lr=1.0), trajectory, 1)
    start = golden("vit_token").params()
    moved = jax.tree.map(lambda a, b: float(((a - b) ** 2).sum()), tiny.params, start)
    assert sum(jax.tree.leaves(moved)) ** 0.5 < 1.1e-6
