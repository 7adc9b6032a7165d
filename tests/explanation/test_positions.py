"""Similarity of position embeddings of every kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.explanation import Tokens, position_embedding, position_similarity
from vit_jax.models import VisionTransformer

IMAGE = (12, 20, 3)  # a grid of 3×5


def small_vit(**fields):
    transformer = {"num_layers": 1, "mlp_dim": 8, "num_heads": 2}
    patches = {"size": (4, 4)}
    defaults = {"num_classes": 2, "patches": patches, "transformer": transformer, "hidden_size": 8}
    return VisionTransformer(**{**defaults, **fields})


def embed(**fields):
    model = small_vit(**fields)
    params = model.init(jax.random.key(0), jnp.zeros((1, *IMAGE)))["params"]
    tokens = Tokens.for_model(model, (3, 5))
    return params, position_embedding(model, params, tokens)


@pytest.mark.parametrize("kind", ["learned", "learned2d", "sincos2d"])
def test_similarity_is_symmetrical_and_one_to_itself(kind):
    _, embedding = embed(position=kind)
    similarity = position_similarity(embedding).reshape(15, 15)
    np.testing.assert_allclose(similarity, similarity.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-6)
    assert np.abs(similarity).max() <= 1 + 1e-6


def test_learned_positions_leave_out_the_tokens_off_the_grid():
    fields = {"position": "learned", "num_registers": 3, "distilled": True}
    params, embedding = embed(**fields)
    table = params["Transformer"]["posembed_input"]["pos_embedding"]
    np.testing.assert_array_equal(embedding, table[0, 2:].reshape(3, 5, 8))


def test_sin_cos_similarity_depends_on_the_offset_alone():
    _, embedding = embed(position="sincos2d")
    similarity = position_similarity(embedding)
    for i, j in ((0, 0), (1, 2)):
        np.testing.assert_allclose(
            similarity[i, j, i : i + 2, j : j + 3], similarity[0, 0, :2, :3], atol=1e-6
        )
    np.testing.assert_allclose(similarity[1, 2], similarity[1, 2, ::-1, ::-1], atol=1e-6)


def test_permuting_positions_permutes_the_similarity():
    _, embedding = embed(position="learned")
    order = np.random.default_rng(0).permutation(15)
    permuted = embedding.reshape(15, 8)[order].reshape(3, 5, 8)
    straight = position_similarity(embedding).reshape(15, 15)
    np.testing.assert_allclose(
        position_similarity(permuted).reshape(15, 15), straight[order][:, order], atol=1e-6
    )
