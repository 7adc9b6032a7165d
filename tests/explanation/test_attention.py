"""Maps, rollout and distances for attention that is known in advance."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.explanation.numbers import (
    Tokens,
    attention_distance,
    attention_maps,
    patch_distances,
    readout_weights,
    rollout,
)

TOKENS = Tokens(num_leading=1, grid=(3, 5), num_registers=2)
FLOAT32_SUMS = 1e-6  # a few dozen float32 roundings of numbers below 1


def random_attention(tokens, layers=4, heads=3, seed=0):
    logits = np.random.default_rng(seed).normal(size=(layers, heads, tokens.count, tokens.count))
    weights = np.exp(2 * logits)
    return jnp.asarray(weights / weights.sum(-1, keepdims=True), jnp.float32)


def identity_attention(tokens, layers=4, heads=3):
    return jnp.broadcast_to(jnp.eye(tokens.count), (layers, heads, tokens.count, tokens.count))


def test_a_map_is_the_row_of_the_class_token_on_the_grid():
    attention = random_attention(TOKENS)
    maps = attention_maps(attention, readout_weights(TOKENS), TOKENS)
    assert maps.shape == (4, 3, 3, 5)
    np.testing.assert_allclose(maps[2, 1, 1, 3], attention[2, 1, 0, 1 + 5 + 3], rtol=1e-6)


def test_without_a_class_token_a_map_is_the_mean_over_patches():
    tokens = Tokens(0, (3, 5), 2)
    attention = random_attention(tokens)
    maps = attention_maps(attention, readout_weights(tokens), tokens)
    mean = attention[0, 0, :15, :15].mean(0).reshape(3, 5)
    np.testing.assert_allclose(maps[0, 0], mean, atol=FLOAT32_SUMS)


def test_readout_weights_sum_to_one():
    probe = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(15), (4, 1)), jnp.float32)
    distilled = Tokens(2, (3, 5), 0)
    for weights in (
        readout_weights(TOKENS),
        readout_weights(distilled),
        readout_weights(Tokens(0, (3, 5), 2)),
        readout_weights(Tokens(0, (3, 5), 2), probe),
    ):
        np.testing.assert_allclose(weights.sum(), 1, atol=FLOAT32_SUMS)
    np.testing.assert_array_equal(readout_weights(distilled)[:3], [0.5, 0.5, 0])


def test_a_mean_of_all_tokens_reads_the_class_token_and_the_patches_alike():
    weights = readout_weights(Tokens(1, (3, 5), 2, reads_all=True))
    np.testing.assert_allclose(weights, [1 / 16] * 16 + [0, 0])


def test_permuting_the_tokens_permutes_maps_and_rollout():
    attention = random_attention(TOKENS)
    order = np.random.default_rng(1).permutation(15)
    moved = np.r_[0, 1 + order, 16, 17]
    permuted = attention[:, :, moved][:, :, :, moved]
    readout = readout_weights(TOKENS)

    def maps_and_rollout(attention):
        rolled = TOKENS.on_grid(readout @ rollout(attention))
        return attention_maps(attention, readout, TOKENS), rolled

    for straight, after in zip(
        maps_and_rollout(attention), maps_and_rollout(permuted), strict=True
    ):
        flat = straight.reshape(*straight.shape[:-2], 15)[..., order]
        np.testing.assert_allclose(after.reshape(flat.shape), flat, atol=FLOAT32_SUMS)


def test_rollout_rows_sum_to_one():
    np.testing.assert_allclose(rollout(random_attention(TOKENS)).sum(1), 1, atol=FLOAT32_SUMS)


def test_tokens_that_look_at_themselves_roll_out_to_themselves():
    np.testing.assert_array_equal(rollout(identity_attention(TOKENS)), np.eye(TOKENS.count))


def test_rollout_multiplies_later_layers_from_the_left():
    first, second = random_attention(TOKENS, layers=2)
    mixed = [(layer.mean(0) + np.eye(TOKENS.count)) / 2 for layer in (first, second)]
    together = rollout(jnp.stack([first, second]))
    np.testing.assert_allclose(together, mixed[1] @ mixed[0], atol=FLOAT32_SUMS)


@pytest.mark.parametrize("stride", [(16, 16), (4, 8)])
def test_uniform_attention_has_the_distance_that_arithmetic_gives(stride):
    uniform = jnp.full((2, 3, TOKENS.count, TOKENS.count), 1 / TOKENS.count)
    h, w = TOKENS.grid
    places = [(i * stride[0], j * stride[1]) for i in range(h) for j in range(w)]
    expected = np.mean([np.hypot(a - c, b - d) for a, b in places for c, d in places])
    distances = attention_distance(uniform, TOKENS, stride)
    np.testing.assert_allclose(distances, np.full((2, 3), expected), rtol=1e-5)


def test_a_patch_that_looks_only_at_itself_has_distance_zero():
    np.testing.assert_array_equal(
        attention_distance(identity_attention(TOKENS), TOKENS, (16, 16)), np.zeros((4, 3))
    )


def test_looking_one_patch_down_has_the_height_of_a_patch_as_distance():
    tokens = Tokens(0, (3, 5), 0)
    below = np.zeros((15, 15), np.float32)
    for i in range(15):
        below[i, i + 5 if i < 10 else i - 5] = 1
    distances = attention_distance(jnp.asarray(below)[None, None], tokens, (4, 8))
    np.testing.assert_allclose(distances, [[4.0]], rtol=1e-6)


def test_attention_to_the_class_token_does_not_shorten_the_distance():
    attention = np.array(random_attention(TOKENS))
    without = attention_distance(jnp.asarray(attention), TOKENS, (16, 16))
    attention[..., TOKENS.patches] *= 0.1
    attention[..., 0] = 1 - attention[..., 1:].sum(-1)
    distances = attention_distance(jnp.asarray(attention), TOKENS, (16, 16))
    np.testing.assert_allclose(distances, without, rtol=1e-5)


def test_distances_are_between_the_centres_of_patches():
    distances = patch_distances((2, 2), (3, 4))
    np.testing.assert_allclose(distances[0], [0, 4, 3, 5])
