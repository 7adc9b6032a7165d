"""Relevance for a class: gradients that are right, and sums that add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import golden, random_params
from vit_jax import models
from vit_jax.explanation.numbers import attention_relevance, class_score, integrated_gradients
from vit_jax.models.position import offset_index


def attention_gradients(model, params, images, class_index):
    def score(outputs):
        return outputs[..., class_index].sum()

    return jax.jit(lambda: models.capture_with_gradients(model, params, images, score))()


def test_gradients_by_attention_agree_with_those_of_a_bias_on_its_logits():
    # d score / d bias = A (G - sum_k A G), so the gradient of a learned bias depends on G too.
    recorded = golden("vit_gap")
    model = recorded.model(position="relative")
    images = jnp.asarray(recorded.images)
    params = random_params(model, images)
    _, inside, gradients = attention_gradients(model, params, images, 1)

    def score(params):
        return model.apply({"params": params}, images)[:, 1].sum()

    expected = jax.grad(score)(params)["Transformer"]["encoderblock_0"]["relative_position_bias"]
    weights, by_weight = inside.attention[0], gradients.attention[0]
    by_logit = weights * (by_weight - (weights * by_weight).sum(-1, keepdims=True))
    h, w = inside.patch_embedding.shape[1:3]
    table = np.zeros(((2 * h - 1) * (2 * w - 1), weights.shape[1]))
    np.add.at(table, offset_index(h, w), by_logit.sum(0).transpose(1, 2, 0))
    found = table.reshape(expected["offsets"].shape)
    scale = np.abs(expected["offsets"]).max()
    np.testing.assert_allclose(found, expected["offsets"], atol=1e-5 * scale)


@pytest.mark.parametrize("fields", [{"attention_kernel": "chunked"}, {"scan": True}])
def test_gradients_are_the_same_whatever_computes_the_attention(fields):
    recorded = golden("vit_token")
    params, images = recorded.params(), jnp.asarray(recorded.images)
    outputs, _, expected = attention_gradients(recorded.model(), params, images, 2)
    np.testing.assert_allclose(outputs, recorded.outputs, atol=1e-5)
    _, _, found = attention_gradients(recorded.model(**fields), params, images, 2)
    for ours, theirs in zip(found.attention, expected.attention, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_the_probe_of_a_map_head_has_gradients_too():
    recorded = golden("vit_gap")
    model = recorded.model(classifier="map")
    images = jnp.asarray(recorded.images)
    params = random_params(model, images)
    _, inside, gradients = attention_gradients(model, params, images, 0)
    np.testing.assert_allclose(inside.pool_attention.sum(-1), 1, atol=1e-5)
    assert gradients.pool_attention.shape == inside.pool_attention.shape
    assert np.abs(gradients.pool_attention).max() > 0


def test_attention_that_does_not_raise_the_score_is_irrelevant():
    rng = np.random.default_rng(0)
    attention = jnp.asarray(rng.dirichlet(np.ones(6), (3, 2, 6)), jnp.float32)
    assert not attention_relevance(attention, jnp.zeros_like(attention)).any()
    assert not attention_relevance(attention, -jnp.ones_like(attention)).any()


def test_relevance_of_one_layer_is_its_weight_times_gradient():
    rng = np.random.default_rng(0)
    attention = jnp.asarray(rng.dirichlet(np.ones(6), (1, 2, 6)), jnp.float32)
    gradients = jnp.asarray(rng.normal(size=attention.shape), jnp.float32)
    expected = np.maximum(attention * gradients, 0)[0].mean(0)
    np.testing.assert_allclose(attention_relevance(attention, gradients), expected, atol=1e-6)


def test_relevance_flows_through_the_tokens_in_between():
    # Token 0 looks at 1 in the last layer, and 1 at 2 in the first: 2 matters to 0.
    attention = np.zeros((2, 1, 3, 3), np.float32)
    attention[0, 0, 1, 2] = attention[1, 0, 0, 1] = 1
    relevance = attention_relevance(jnp.asarray(attention), jnp.ones_like(attention))
    np.testing.assert_array_equal(relevance, [[0, 1, 1], [0, 0, 1], [0, 0, 0]])


def small_hybrid():
    transformer = {"num_layers": 1, "mlp_dim": 8, "num_heads": 2}
    resnet = {"num_layers": (), "width_factor": 0.5}
    fields = {"patches": {"size": (1, 1)}, "transformer": transformer, "hidden_size": 8}
    model = models.VisionTransformer(num_classes=3, resnet=resnet, **fields)
    image = np.random.default_rng(0).normal(size=(8, 12, 3)).astype(np.float32)
    return model, random_params(model, image[None]), image


def recorded_model(name):
    recorded = golden(name)
    return recorded.model(), recorded.params(), recorded.images[0]


@pytest.mark.parametrize("name", ["vit_token_unpooled", "mixer", "small_hybrid"])
def test_integrated_gradients_sum_to_the_difference_of_scores(name):
    model, params, image = small_hybrid() if name == "small_hybrid" else recorded_model(name)
    found = integrated_gradients(model, params, image, 1)
    outputs = model.apply({"params": params}, jnp.stack([image, 0 * image]))
    score, of_gray = (class_score(one, 1) for one in outputs)
    # The path is smooth: 32 Gauss points leave a thousandth of what the patches add up to.
    np.testing.assert_allclose(found.sum(), score - of_gray, atol=1e-3 * np.abs(found).sum())
