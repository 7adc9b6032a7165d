"""The model fields that foreign weights need do what they say, and nothing at their defaults."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models

IMAGES = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
CONFIG = {
    "patches": {"size": (8, 8)},
    "hidden_size": 16,
    "transformer": {"num_layers": 2, "mlp_dim": 32, "num_heads": 2, "dropout_rate": 0.0},
}


def make(num_classes=3, **fields):
    model = models.VisionTransformer(num_classes=num_classes, **CONFIG, **fields)
    params = model.init(jax.random.key(1), IMAGES)["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    values = [0.3 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return model, jax.tree.unflatten(structure, values)


def test_a_layer_scale_of_one_changes_nothing_and_of_zero_skips_the_blocks():
    plain, params = make()
    scaled, with_scale = make(layer_scale=1e-5)

    def outputs(value):
        tree = jax.tree.map(lambda x: x, params)
        for name, block in with_scale["Transformer"].items():
            if name.startswith("encoderblock"):
                scales = {k: v for k, v in block.items() if k.startswith("LayerScale")}
                tree["Transformer"][name] |= jax.tree.map(lambda x: jnp.full_like(x, value), scales)
        return scaled.apply({"params": tree}, IMAGES)

    np.testing.assert_allclose(outputs(1.0), plain.apply({"params": params}, IMAGES), atol=1e-6)
    depthless = models.VisionTransformer(
        num_classes=3, **CONFIG | {"transformer": CONFIG["transformer"] | {"num_layers": 0}}
    )
    np.testing.assert_allclose(outputs(0.0), depthless.apply({"params": params}, IMAGES), atol=1e-6)


def test_scanned_layer_scale_equals_unrolled():
    model, params = make(layer_scale=1e-5)
    scanned = models.VisionTransformer(num_classes=3, **CONFIG, layer_scale=1e-5, scan=True)
    np.testing.assert_allclose(
        scanned.apply({"params": params}, IMAGES),
        model.apply({"params": params}, IMAGES),
        atol=1e-5,
    )


def test_a_norm_after_pooling_takes_the_place_of_the_one_before():
    model, params = make(classifier="gap", fc_norm=True)
    assert "fc_norm" in params
    assert "encoder_norm" not in params["Transformer"]
    features, pooled = make(num_classes=None, classifier="gap", fc_norm=True)
    pooled["fc_norm"] = {"scale": jnp.ones(16), "bias": jnp.zeros(16)}
    outputs = features.apply({"params": pooled}, IMAGES)
    np.testing.assert_allclose(outputs.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(axis=-1), 1, atol=1e-2)


def test_a_distilled_model_averages_its_two_heads():
    model, params = make(distilled=True)
    both = model.apply({"params": params}, IMAGES)
    zero = jax.tree.map(jnp.zeros_like, params["head_dist"])
    first = model.apply({"params": {**params, "head_dist": zero}}, IMAGES)
    zero = jax.tree.map(jnp.zeros_like, params["head"])
    second = model.apply({"params": {**params, "head": zero}}, IMAGES)
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
