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
    return {
        "loss": losses,
        "top1": best > 0,
        "per_label": ((logits > 0) == (labels > 0)).mean(-1),
    }


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
    def from_totals(
        cls, totals: Mapping[str, Any], *, calibration_error: float | None = None
    ) -> "Scores":
        """From sums over examples: `count`, what `score_examples` returns, and for each class
        `class_count` and `class_correct`, `k` each. They divide in the precision they come in.
        """
        count = int(totals["count"])
        if not count:
            raise ValueError("There is no example to evaluate on; look at config.pp.test.")
        with np.errstate(invalid="ignore", divide="ignore"):
            class_accuracy = totals["class_correct"] / totals["class_count"]

        def mean(name: str) -> float | None:
            return float(totals[name] / count) if name in totals else None

        return cls(
            count=count,
            accuracy=float(totals["top1"] / count),
            accuracy_top5=mean("top5"),
            accuracy_per_label=mean("per_label"),
            calibration_error=calibration_error,
            loss=float(totals["loss"] / count),
            class_accuracy=tuple(None if np.isnan(x) else float(x) for x in class_accuracy),
            class_count=tuple(int(n) for n in totals["class_count"]),
        )

    def metrics(self) -> dict[str, float]:
        """The single numbers, by the names under which they are logged."""
        names = ("loss", "accuracy_per_label", "accuracy", "accuracy_top5", "calibration_error")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
            if value is not None
        }
