"""Evaluation: sums over batches on the device, and the numbers a person reads from them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.training.losses import LOSSES, targets_of

Sums = dict[str, Array]
_NAMES = {"top1": "accuracy", "top5": "accuracy_top5", "per_label": "accuracy_per_label"}


def score_examples(logits: Array, labels: Array, loss: str) -> dict[str, Array]:
    """What each example scores, `b` each: its loss, and right or wrong in one sense or another.

    An example of several classes (labels `b k`) is right at top-1 if the best guess is one of them;
    `per_label` is the share of the yes-or-no questions that are answered right.
    """
    num_classes = logits.shape[-1]
    losses = LOSSES[loss](logits, targets_of(labels, num_classes))
    if labels.ndim == 1:
        hits = jax.lax.top_k(logits, min(5, num_classes))[1] == labels[:, None]
        return {"loss": losses, "top1": hits[:, 0], "top5": hits.any(axis=-1)}
    best = jnp.take_along_axis(labels, logits.argmax(-1, keepdims=True), axis=1)[:, 0]
    return {
        "loss": losses,
        "top1": best > 0,
        "per_label": ((logits > 0) == (labels > 0)).mean(-1),
    }


def make_eval_step(model: nn.Module, loss: str) -> Callable[[Any, Mapping[str, Array]], Sums]:
    """(params, batch) to sums over the batch's real examples, per class where it makes sense."""

    def eval_step(params: Any, batch: Mapping[str, Array]) -> Sums:
        logits = model.apply({"params": params}, batch["image"], train=False)
        labels, mask = batch["label"], batch["mask"]
        scores = score_examples(logits, labels, loss)
        weights = targets_of(labels, model.num_classes) * mask[:, None]
        return {
            **{name: jnp.where(mask, value, 0).sum() for name, value in scores.items()},
            "count": mask.sum(),
            "class_count": weights.sum(axis=0),
            "class_correct": (weights * scores["top1"][:, None]).sum(axis=0),
        }

    return eval_step


def evaluate(
    eval_step: Callable[[Any, Mapping[str, Array]], Sums],
    params: Any,
    batches: Iterable[Mapping[str, Array]],
) -> dict[str, Any]:
    """Accuracy, top-5, mean loss over every example, and accuracy per class (a list)."""
    total: dict[str, Any] = {}
    for batch in batches:
        for name, value in jax.device_get(eval_step(params, batch)).items():
            total[name] = total.get(name, 0) + np.asarray(value, np.float64)
    count = total.pop("count")
    if not count:
        raise ValueError("There is no example to evaluate on; look at config.pp.test.")
    class_count, class_correct = total.pop("class_count"), total.pop("class_correct")
    result = {_NAMES.get(name, name): float(value / count) for name, value in total.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        per_class = class_correct / class_count
    return {
        **result,
        "count": int(count),
        "class_accuracy": [None if np.isnan(x) else float(x) for x in per_class],
        "class_count": [int(n) for n in class_count],
    }


def calibration_error(confidence: np.ndarray, correct: np.ndarray, num_bins: int = 15) -> float:
    """How far confidence is from accuracy, on average (ECE, Guo et al. 2017; equal bins)."""
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=confidence - correct, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))
