"""Evaluation counts every example once, however it is batched and added up."""

import flax.linen as nn
import numpy as np
import pytest

from vit_jax.evaluation.evaluator import evaluate, evaluate_examples, make_eval_step
from vit_jax.evaluation.scores import Scores

rng = np.random.default_rng(0)


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
    scores = evaluate(step, {}, batches(logits, labels, size))
    order = np.argsort(-logits, axis=1)
    assert scores.count == 100
    np.testing.assert_allclose(scores.accuracy, (order[:, 0] == labels).mean())
    np.testing.assert_allclose(
        scores.accuracy_top5, (order[:, :5] == labels[:, None]).any(1).mean()
    )
    shifted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(scores.loss, -shifted[np.arange(100), labels].mean(), rtol=1e-5)
    third = labels == 3
    np.testing.assert_allclose(scores.class_accuracy[3], (order[third, 0] == 3).mean())
    assert scores.class_accuracy[9] is None


def test_equal_scores_are_a_guess_and_not_a_hit():
    labels = np.arange(10) % 5
    step = make_eval_step(Lookup(5), "softmax")
    scores = evaluate(step, {}, batches(np.zeros((10, 5), np.float32), labels, 10))
    np.testing.assert_allclose(scores.accuracy, 0.2)


def test_several_labels_are_right_when_the_best_guess_is_one_of_them():
    logits = np.array([[3.0, -1.0, 1.0], [-2.0, -3.0, -1.0]], np.float32)
    labels = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], np.float32)
    step = make_eval_step(Lookup(3), "sigmoid")
    scores = evaluate(step, {}, batches(logits, labels, 4))
    assert scores.accuracy == 0.5
    np.testing.assert_allclose(scores.accuracy_per_label, (2 / 3 + 1 / 3) / 2, rtol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_summed_on_the_device_or_kept_by_example_the_scores_agree(several):
    logits = rng.normal(size=(50, 6)).astype(np.float32)
    labels = (logits + rng.normal(size=(50, 6)) > 1).astype(np.float32)
    labels, loss = (labels, "sigmoid") if several else (labels.argmax(-1), "softmax")
    model = Lookup(6)
    summed = evaluate(make_eval_step(model, loss), {}, batches(logits, labels, 8))
    examples = evaluate_examples(model, {}, batches(logits, labels, 8), loss=loss)
    kept = Scores.from_examples(examples, num_classes=6)
    assert (kept.calibration_error is None) == several
    assert kept.class_count == summed.class_count
    kept_metrics = {n: v for n, v in kept.metrics().items() if n != "calibration_error"}
    # float32 sums of 8 examples, against float64 ones of 50
    assert kept_metrics == pytest.approx(summed.metrics(), rel=1e-6)
    assert kept.class_accuracy == pytest.approx(summed.class_accuracy, rel=1e-6)


def test_examples_come_once_and_in_order_with_what_was_asked_for():
    logits = rng.normal(size=(10, 4)).astype(np.float32)
    labels = rng.integers(0, 4, 10)
    counted = []
    examples = evaluate_examples(
        Lookup(4), {}, batches(logits, labels, 4), loss="softmax", advance=counted.append
    )
    assert counted == [4, 4, 2]
    np.testing.assert_array_equal(examples["label"], labels)
    np.testing.assert_array_equal(examples["prediction"], logits.argmax(-1))
    assert "features" not in examples
    alone = evaluate_examples(Lookup(4), {}, batches(logits, labels, 4), loss=None, features=True)
    assert alone.keys() == {"label", "features"}
    np.testing.assert_array_equal(alone["features"], logits)


def test_nothing_to_evaluate_on_is_an_error():
    empty = [{"image": np.zeros((2, 3)), "label": np.zeros(2, int), "mask": np.zeros(2, bool)}]
    with pytest.raises(ValueError, match=r"no example to evaluate on; look at config.pp.test"):
        evaluate(make_eval_step(Lookup(3), "softmax"), {}, empty)
