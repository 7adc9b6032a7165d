"""The model fields that foreign weights need do what they say, and nothing at their defaults."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models

IMAGES = np.random.default_rng(0).standard_normal((2, 16, 16, 3), np.float32)
CONFIG = {
    "patches": {"size": (8, 8)},
    "hidden_size": 16,
    "transformer": {"num_layers": 1, "mlp_dim": 32, "num_heads": 2, "dropout_rate": 0.0},
}


def make(num_classes=3, **fields):
    model = models.VisionTransformer(num_classes=num_classes, **CONFIG, **fields)
    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(1), x)["params"], IMAGES)
    rng = np.random.default_rng(1)
    values = jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), shapes)
    return model, values


@functools.partial(jax.jit, static_argnums=0)
def run(model, params):
    return model.apply({"params": params}, IMAGES)


def test_a_layer_scale_of_one_changes_nothing_and_of_zero_skips_the_blocks():
    plain, params = make()
    scaled, with_scale = make(layer_scale=1e-5)

    def outputs(value):
        tree = jax.tree.map(lambda x: x, params)
        for name, block in with_scale["Transformer"].items():
            if name.startswith("encoderblock"):
                scales = {k: v for k, v in block.items() if k.startswith("LayerScale")}
                tree["Transformer"][name] |= jax.tree.map(lambda x: jnp.full_like(x, value), scales)
        return run(scaled, tree)

    np.testing.assert_allclose(outputs(1.0), run(plain, params), atol=1e-6)
    depthless = models.VisionTransformer(
        num_classes=3, **CONFIG | {"transformer": CONFIG["transformer"] | {"num_layers": 0}}
    )
    np.testing.assert_allclose(outputs(0.0), run(depthless, params), atol=1e-6)


def test_scanned_layer_scale_equals_unrolled():
    model, params = make(layer_scale=1e-5)
    scanned = models.VisionTransformer(num_classes=3, **CONFIG, layer_scale=1e-5, scan=True)
    np.testing.assert_allclose(
        run(scanned, params),
        run(model, params),
        atol=1e-5,
    )


def test_a_norm_after_pooling_takes_the_place_of_the_one_before():
    _, params = make(classifier="gap", fc_norm=True)
    assert "fc_norm" in params
    assert "encoder_norm" not in params["Transformer"]
    features, pooled = make(num_classes=None, classifier="gap", fc_norm=True)
    pooled["fc_norm"] = {"scale": jnp.ones(16), "bias": jnp.zeros(16)}
    outputs = run(features, pooled)
    np.testing.assert_allclose(outputs.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(axis=-1), 1, atol=1e-2)


def test_a_distilled_model_averages_its_two_heads():
    model, params = make(distilled=True)
    both = run(model, params)
    zero = jax.tree.map(jnp.zeros_like, params["head_dist"])
    first = run(model, {**params, "head_dist": zero})
    zero = jax.tree.map(jnp.zeros_like, params["head"])
    second = run(model, {**params, "head": zero})
    np.testing.assert_allclose(both, first + second, atol=1e-5)
    assert params["Transformer"]["posembed_input"]["pos_embedding"].shape == (1, 6, 16)


def test_a_distilled_model_must_classify_by_tokens():
    with pytest.raises(ValueError, match="classifier='token'"):
        make(distilled=True, classifier="gap")


def test_variance_eps_is_added_to_the_variance():
    from vit_jax.models.hybrid import StdConv

    image = jnp.ones((1, 3, 3, 2))
    conv = StdConv(4, (3, 3), 1, jnp.float32, 1e-2)
    kernel = 0.1 * jax.random.normal(jax.random.key(0), (3, 3, 2, 4))
    found = conv.apply({"params": {"kernel": kernel}}, image)
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    wanted = (centred / jnp.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-2)).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(found[0, 1, 1], wanted, atol=1e-5)
