"""Losses, and MixUp and CutMix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training.losses import as_targets, sigmoid, softmax
from vit_jax.training.mixing import mix

rng = np.random.default_rng(0)


def test_softmax_is_minus_log_of_the_right_probability():
    logits = jnp.log(jnp.array([[0.2, 0.3, 0.5]]))
    np.testing.assert_allclose(softmax(logits, as_targets(jnp.array([2]), 3)), -np.log(0.5))


def test_sigmoid_asks_each_class_on_its_own():
    logits = jnp.array([[2.0, -1.0]])
    expected = -np.log(1 / (1 + np.exp(-2.0))) - np.log(1 - 1 / (1 + np.exp(1.0)))
    np.testing.assert_allclose(sigmoid(logits, jnp.array([[1.0, 0.0]])), [expected], rtol=1e-6)


def test_smoothing_spreads_a_share_over_all_classes():
    targets = as_targets(jnp.array([1]), 4, smoothing=0.2)
    np.testing.assert_allclose(targets, [[0.05, 0.85, 0.05, 0.05]], atol=1e-7)


IMAGES = jnp.asarray(rng.normal(size=(8, 16, 16, 3)), jnp.float32)
TARGETS = jnp.eye(8)


def test_no_mixing_changes_nothing():
    images, targets = mix(jax.random.key(0), IMAGES, TARGETS, mixup=0.0, cutmix=0.0)
    assert images is IMAGES
    assert targets is TARGETS


def test_mixup_blends_images_and_targets_by_the_same_share():
    images, targets = mix(jax.random.key(1), IMAGES, TARGETS, mixup=1.0, cutmix=0.0)
    share = float(targets[0, 0])
    assert 0 < share < 1
    np.testing.assert_allclose(images, share * IMAGES + (1 - share) * IMAGES[::-1], atol=1e-6)
    np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_cutmix_pastes_one_rectangle_and_counts_its_pixels(seed):
    images, targets = mix(jax.random.key(seed), IMAGES, TARGETS, mixup=0.0, cutmix=1.0)
    pasted = np.asarray((images == IMAGES[::-1]).all(axis=-1))
    kept = np.asarray((images == IMAGES).all(axis=-1))
    assert (pasted ^ kept).all()
    np.testing.assert_allclose(targets[0, 7], pasted[0].mean(), atol=1e-6)
    rows, columns = pasted[0].any(axis=1), pasted[0].any(axis=0)
    np.testing.assert_array_equal(pasted[0], rows[:, None] & columns)
    for line in (rows, columns):
        assert np.abs(np.diff(line.astype(int))).sum() <= 2  # one piece
