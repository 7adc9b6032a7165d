"""Losses, mixing, and evaluation that counts every example once."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.evaluation.scores import evaluate, make_eval_step
from vit_jax.training.losses import sigmoid, softmax, targets_of
from vit_jax.training.mixing import mix

rng = np.random.default_rng(0)


def test_softmax_is_minus_log_of_the_right_probability():
    logits = jnp.log(jnp.array([[0.2, 0.3, 0.5]]))
    np.testing.assert_allclose(softmax(logits, targets_of(jnp.array([2]), 3)), -np.log(0.5))


def test_sigmoid_asks_each_class_on_its_own():
    logits = jnp.array([[2.0, -1.0]])
    expected = -np.log(1 / (1 + np.exp(-2.0))) - np.log(1 - 1 / (1 + np.exp(1.0)))
    np.testing.assert_allclose(sigmoid(logits, jnp.array([[1.0, 0.0]])), [expected], rtol=1e-6)


def test_smoothing_spreads_a_share_over_all_classes():
    targets = targets_of(jnp.array([1]), 4, smoothing=0.2)
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


class Lookup(nn.Module):
    """Logits that are the image itself."""

    num_classes: int

    def __call__(self, images, *, train):
        return images


def batches(logits, labels, size):
    for start in range(0, len(logits), size):
        part = slice(start, start + size)
        pad = size - len(logits[part])
        mask = np.arange(size) < size - pad
        yield {
            "image": np.pad(logits[part], ((0, pad), (0, 0))),
            "label": np.pad(labels[part], ((0, pad),) + ((0, 0),) * (labels.ndim - 1)),
            "mask": mask,
        }


@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_evaluation_counts_every_example_once_at_any_batch_size(size):
    logits = rng.normal(size=(100, 10)).astype(np.float32)
    labels = rng.integers(0, 9, 100)  # class 9 has no example
    step = make_eval_step(Lookup(10), "softmax")
    results = evaluate(step, {}, batches(logits, labels, size))
    order = np.argsort(-logits, axis=1)
    assert results["count"] == 100
    np.testing.assert_allclose(results["accuracy"], (order[:, 0] == labels).mean())
    np.testing.assert_allclose(
        results["accuracy_top5"], (order[:, :5] == labels[:, None]).any(1).mean()
    )
    shifted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(results["loss"], -shifted[np.arange(100), labels].mean(), rtol=1e-5)
    third = labels == 3
    np.testing.assert_allclose(results["class_accuracy"][3], (order[third, 0] == 3).mean())
    assert results["class_accuracy"][9] is None


def test_equal_scores_are_a_guess_and_not_a_hit():
    labels = np.arange(10) % 5
    step = make_eval_step(Lookup(5), "softmax")
    results = evaluate(step, {}, batches(np.zeros((10, 5), np.float32), labels, 10))
    np.testing.assert_allclose(results["accuracy"], 0.2)


def test_several_labels_are_right_when_the_best_guess_is_one_of_them():
    logits = np.array([[3.0, -1.0, 1.0], [-2.0, -3.0, -1.0]], np.float32)
    labels = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], np.float32)
    step = make_eval_step(Lookup(3), "sigmoid")
    results = evaluate(step, {}, batches(logits, labels, 4))
    assert results["accuracy"] == 0.5
    np.testing.assert_allclose(results["accuracy_per_label"], (2 / 3 + 1 / 3) / 2, rtol=1e-6)


def test_nothing_to_evaluate_on_is_an_error():
    empty = [{"image": np.zeros((2, 3)), "label": np.zeros(2, int), "mask": np.zeros(2, bool)}]
    with pytest.raises(ValueError, match=r"no example to evaluate on; look at config.pp.test"):
        evaluate(make_eval_step(Lookup(3), "softmax"), {}, empty)
