"""Our networks compute what the reference computed, from its own checkpoint files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.reference import GOLDEN, NAMES, golden
from vit_jax import models

# Same float32 maths in another order of summation; the recorded outputs are of order 1.
TOLERANCE = 1e-5


def run(model, recorded):
    apply = jax.jit(lambda params, images: model.apply({"params": params}, images, train=False))
    return apply(recorded.params(), recorded.images)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_the_reference(name):
    recorded = golden(name)
    outputs = run(recorded.model(), recorded)
    np.testing.assert_allclose(outputs, recorded.outputs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mixer"])
def test_scanned_and_rematerialised_outputs_equal_the_reference(name):
    recorded = golden(name)
    model = recorded.model(scan=True, remat="full")
    outputs = run(model, recorded)
    np.testing.assert_allclose(outputs, recorded.outputs, atol=TOLERANCE, rtol=0)


def test_fine_tuning_follows_the_reference_for_twenty_steps():
    recorded = golden("vit_token")
    about = json.loads((GOLDEN / "vit_token.train.json").read_text())
    with np.load(GOLDEN / "vit_token.train.npz") as file:
        trajectory = dict(file)
    model = recorded.model()
    optimizer = optax.chain(
        optax.clip_by_global_norm(about["grad_norm_clip"]),
        optax.trace(decay=about["momentum"]),
    )

    @jax.jit
    def step(params, state, images, labels, lr):
        def loss_fn(params):
            logits = model.apply({"params": params}, images, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, jax.tree.map(lambda u: -lr * u, updates)), state, loss

    params = recorded.params()
    state = optimizer.init(params)
    losses = []
    for images, labels, lr in zip(
        trajectory["images"], trajectory["labels"], trajectory["lrs"], strict=True
    ):
        params, state, loss = step(params, state, images, labels, lr)
        losses.append(loss)
    np.testing.assert_allclose(jnp.stack(losses), trajectory["losses"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(params["head"]["kernel"], trajectory["head_kernel"], atol=1e-4)


@pytest.mark.parametrize("name", ["vit_token", "hybrid"])
def test_stochastic_parts_stay_off_outside_training(name):
    recorded = golden(name)
    rates = {"dropout_rate": 0.5, "attention_dropout_rate": 0.5, "stochastic_depth_rate": 0.5}
    model = recorded.model(transformer={**recorded.config["transformer"], **rates})
    outputs = run(model, recorded)
    np.testing.assert_allclose(outputs, recorded.outputs, atol=TOLERANCE, rtol=0)


def test_reference_call_signature_works_with_a_config_dict():
    config = models.MODEL_CONFIGS["testing"]
    model = models.VisionTransformer(num_classes=3, **config)
    variables = model.init(jax.random.key(0), jnp.ones((2, 32, 32, 3)), train=False)
    logits = model.apply({"params": variables["params"]}, jnp.ones((2, 32, 32, 3)), train=False)
    assert logits.shape == (2, 3)
    assert set(variables) == {"params"}
