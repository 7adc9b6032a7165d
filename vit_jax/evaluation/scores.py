"""What an example scores, and what many examples score together."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.training.losses import LOSSES, as_targets


def score_examples(logits: Array, labels: Array, loss: str) -> dict[str, Array]:
    """Scores of each example, `b` each: its loss, and whether the model was right.

    An example of several classes (labels `b k`) is right at top-1 if the best guess is one of them;
    `per_label` is the share of the yes-or-no questions that are answered right.
    """
    num_classes = logits.shape[-1]
    losses = LOSSES[loss](logits, as_targets(labels, num_classes))
    if labels.ndim == 1:
        hits = jax.lax.top_k(logits, min(5, num_classes))[1] == labels[:, None]
        return {"loss": losses, "top1": hits[:, 0], "top5": hits.any(axis=-1)}
    best = jnp.take_along_axis(labels, logits.argmax(-1, keepdims=True), axis=1)[:, 0]
    per_label = ((logits > 0) == (labels > 0)).mean(-1)
    return {"loss": losses, "top1": best > 0, "per_label": per_label}


@dataclasses.dataclass(frozen=True)
class Scores:
    """Means over `count` examples, and over those of each class; None where there are none.

    With one class an image there is a top-5 accuracy, with several an accuracy per label.
    """

    count: int
    accuracy: float
    accuracy_top5: float | None
    accuracy_per_label: float | None
    calibration_error: float | None  # needs every example's confidence
    loss: float
    class_accuracy: tuple[float | None, ...]
    class_count: tuple[int, ...]

    @classmethod
    def from_totals(cls, totals: Mapping[str, Any]) -> "Scores":
        """From sums over examples: `count`, what `score_examples` returns, and for each class
        `class_count` and `class_correct`, `k` each. They divide in the precision they come in.
        """
        count = int(totals["count"])
        if not count:
            raise ValueError("There is no example to evaluate on; look at config.pp.test.")
        with np.errstate(invalid="ignore", divide="ignore"):
            class_accuracy = totals["class_correct"] / totals["class_count"]
        means = {
            name: float(total / count) for name, total in totals.items() if np.ndim(total) == 0
        }
        return cls(
            count=count,
            accuracy=means["top1"],
            accuracy_top5=means.get("top5"),
            accuracy_per_label=means.get("per_label"),
            calibration_error=None,
            loss=means["loss"],
            class_accuracy=tuple(None if np.isnan(x) else float(x) for x in class_accuracy),
            class_count=tuple(int(n) for n in totals["class_count"]),
        )

    @classmethod
    def from_examples(cls, rows: Mapping[str, np.ndarray], num_classes: int) -> "Scores":
        """From a row for each example: its `label`, what it scored, and its `confidence`."""
        labels, top1 = rows["label"], rows["top1"]
        totals = {name: rows[name].sum() for name in ("top1", "top5", "per_label") if name in rows}
        totals |= {"count": len(labels), "loss": rows["loss"].sum(dtype=np.float64)}
        if labels.ndim > 1:
            totals["class_count"] = labels.sum(axis=0)
            totals["class_correct"] = (labels * top1[:, None]).sum(axis=0)
            return cls.from_totals(totals)
        totals["class_count"] = np.bincount(labels, minlength=num_classes)
        totals["class_correct"] = np.bincount(labels, top1, num_classes)
        error = calibration_error(rows["confidence"], top1)
        return dataclasses.replace(cls.from_totals(totals), calibration_error=error)

    def metrics(self) -> dict[str, float]:
        """The single numbers, by the names under which they are logged."""
        names = ("loss", "accuracy_per_label", "accuracy", "accuracy_top5", "calibration_error")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def calibration_error(confidence: np.ndarray, correct: np.ndarray, num_bins: int = 15) -> float:
    """How far confidence is from accuracy, on average (ECE, Guo et al. 2017; equal bins)."""
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=confidence - correct, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))
