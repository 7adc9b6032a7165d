"""Kinds of position embedding: what each knows and what it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import random_params
from vit_jax import models
from vit_jax.models import position

IMAGE = jax.random.normal(jax.random.key(7), (2, 24, 40, 3))  # a 3×5 grid of 8×8 patches


def make(kind, **fields):
    model = models.get_model(
        "testing",
        num_classes=3,
        patches={"size": (8, 8)},
        hidden_size=16,
        transformer={"num_layers": 2, "dropout_rate": 0.0, "attention_dropout_rate": 0.0},
        position=kind,
        **fields,
    )
    return model, random_params(model, IMAGE)


def swap_patches(images):
    """Exchanges the first and the last patch of the 3×5 grid."""
    first, last = images[:, :8, :8], images[:, -8:, -8:]
    return images.at[:, :8, :8].set(last).at[:, -8:, -8:].set(first)


def test_without_positions_the_class_token_does_not_see_the_order():
    model, params = make("none")
    run = jax.jit(lambda images: model.apply({"params": params}, images))
    straight, swapped = run(IMAGE), run(swap_patches(IMAGE))
    np.testing.assert_allclose(straight, swapped, atol=1e-5)


@pytest.mark.parametrize("kind", ["learned", "learned2d", "sincos2d", "relative"])
def test_with_positions_the_order_matters(kind):
    model, params = make(kind)
    run = jax.jit(lambda images: model.apply({"params": params}, images))
    straight, swapped = run(IMAGE), run(swap_patches(IMAGE))
    assert float(jnp.abs(straight - swapped).max()) > 1e-3


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("learned", {"pos_embedding": (1, 16, 16)}),
        ("learned2d", {"pos_embedding_x": (5, 8), "pos_embedding_y": (3, 8)}),
    ],
)
def test_learned_tables_have_the_shape_of_the_grid(kind, names):
    _, params = make(kind)
    tables = params["Transformer"]["posembed_input"]
    assert {name: table.shape for name, table in tables.items()} == names


@pytest.mark.parametrize("kind", ["none", "sincos2d"])
def test_kinds_without_parameters_have_none(kind):
    _, params = make(kind)
    assert "posembed_input" not in params["Transformer"]


def test_learned2d_gives_a_patch_its_column_and_its_row():
    _, params = make("learned2d", classifier="gap")
    tables = params["Transformer"]["posembed_input"]
    module = position.PositionEmbedding("learned2d", (3, 5))
    added = module.apply({"params": tables}, jnp.zeros((1, 15, 16)))[0].reshape(3, 5, 16)
    np.testing.assert_allclose(added[2, 4, :8], tables["pos_embedding_x"][4], atol=1e-6)
    np.testing.assert_allclose(added[2, 4, 8:], tables["pos_embedding_y"][2], atol=1e-6)


def test_sincos_is_sine_and_cosine_of_column_and_row():
    table = position.sincos_2d(3, 5, 16).reshape(3, 5, 16)
    frequency = 10_000.0 ** -(np.arange(4) / 3)
    parts = (
        np.sin(4 * frequency),
        np.cos(4 * frequency),
        np.sin(2 * frequency),
        np.cos(2 * frequency),
    )
    np.testing.assert_allclose(table[2, 4], np.concatenate(parts), atol=1e-6)


def test_the_class_token_gets_no_sincos_position():
    x = position.PositionEmbedding("sincos2d", (3, 5)).apply({}, jnp.zeros((1, 16, 16)))
    np.testing.assert_array_equal(x[0, 0], 0)
    assert float(jnp.abs(x[0, 1:]).sum()) > 0


def test_relative_bias_depends_on_the_offset_alone():
    index = position.offset_index(3, 5).reshape(3, 5, 3, 5)
    assert index[0, 0, 1, 2] == index[1, 2, 2, 4]  # one down, two right, wherever it starts
    assert len(np.unique(index)) == 5 * 9  # (2·3-1)(2·5-1) offsets, each in use


def test_relative_bias_treats_tokens_outside_the_grid_apart():
    bias = position.RelativePositionBias((2, 2), num_heads=1, num_leading=1, num_trailing=1)
    offsets, extra = jnp.arange(9.0).reshape(3, 3, 1), jnp.array([[100.0], [200.0], [300.0]])
    table = bias.apply({"params": {"offsets": offsets, "extra": extra}})[0, 0]
    np.testing.assert_array_equal(table[0], [300, 100, 100, 100, 100, 300])  # class token looks
    np.testing.assert_array_equal(table[1], [200, 4, 5, 7, 8, 200])  # the first patch looks
    np.testing.assert_array_equal(table[5], table[0])


def test_relative_positions_are_translation_equivariant_inside():
    """Without a class token, shifting the grid's content by one column shifts what is computed."""
    index = position.offset_index(4, 4)
    inner = index.reshape(4, 4, 4, 4)[:, :-1, :, :-1]
    np.testing.assert_array_equal(inner, index.reshape(4, 4, 4, 4)[:, 1:, :, 1:])


@pytest.mark.parametrize("width", [4, 10])  # one frequency is none: 4 would divide by 0
def test_sincos_needs_a_width_of_four_parts(width):
    with pytest.raises(ValueError, match=f"a width of 8, 12, 16, …, not {width}"):
        position.sincos_2d(2, 2, width)
