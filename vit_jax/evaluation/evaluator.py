"""A model over every batch of a split: sums while it trains, or a row for every example.

Training sums on the devices, because no one of several processes sees every example. `evaluate`
runs in one process and keeps what each example scored, for calibration, confusions and features.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.aliases import Params
from vit_jax.evaluation.calibration import calibration_error
from vit_jax.evaluation.scores import Scores, score_examples
from vit_jax.models import Model
from vit_jax.training.losses import as_targets

Batch = Mapping[str, Array]  # image, label, and a mask that is False for padding
EvalStep = Callable[[Params, Batch], dict[str, Array]]


def make_eval_step(model: Model, loss: str) -> EvalStep:
    """The step that sums the scores of a batch's real examples, in all and for each class."""

    def eval_step(params: Params, batch: Batch) -> dict[str, Array]:
        logits = _apply(model, params, batch["image"])
        labels, mask = batch["label"], batch["mask"]
        scores = score_examples(logits, labels, loss)
        weights = as_targets(labels, logits.shape[-1]) * mask[:, None]
        return {
            **{name: jnp.where(mask, value, 0).sum() for name, value in scores.items()},
            "count": mask.sum(),
            "class_count": weights.sum(axis=0),
            "class_correct": (weights * scores["top1"][:, None]).sum(axis=0),
        }

    return eval_step


def evaluate(eval_step: EvalStep, params: Params, batches: Iterable[Batch]) -> Scores:
    """Scores over every example, each counted once."""
    totals: dict[str, Any] = {"count": 0}
    for sums in _results(eval_step, params, batches):
        for name, value in sums.items():
            totals[name] = totals.get(name, 0) + np.asarray(value, np.float64)
    return Scores.from_totals(totals)


@dataclasses.dataclass(frozen=True)
class Examples:
    """A row for every example; None for what was not asked for."""

    label: np.ndarray  # n, or n k
    loss: np.ndarray | None = None
    top1: np.ndarray | None = None
    top5: np.ndarray | None = None
    per_label: np.ndarray | None = None
    prediction: np.ndarray | None = None
    confidence: np.ndarray | None = None
    features: np.ndarray | None = None  # n d

    def __len__(self) -> int:
        return len(self.label)

    def scores(self, num_classes: int) -> Scores:
        assert self.loss is not None and self.top1 is not None and self.confidence is not None
        totals: dict[str, Any] = {
            "count": len(self),
            "top1": self.top1.sum(),
            "loss": self.loss.sum(dtype=np.float64),
        }
        if self.label.ndim > 1:
            assert self.per_label is not None
            totals["per_label"] = self.per_label.sum()
            totals["class_count"] = self.label.sum(axis=0)
            totals["class_correct"] = (self.label * self.top1[:, None]).sum(axis=0)
            return Scores.from_totals(totals)
        assert self.top5 is not None
        totals["top5"] = self.top5.sum()
        totals["class_count"] = np.bincount(self.label, minlength=num_classes)
        totals["class_correct"] = np.bincount(self.label, self.top1, num_classes)
        return Scores.from_totals(
            totals, calibration_error=calibration_error(self.confidence, self.top1)
        )


def evaluate_examples(
    model: Model,
    params: Params,
    batches: Iterable[Batch],
    *,
    loss: str | None,
    features: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Examples:
    """Every real example of the batches, scored if there is a `loss`, with `features` if asked.

    `advance` is called with the number of examples in each batch.
    """

    @jax.jit
    def example_step(params: Params, batch: Batch) -> dict[str, Array]:
        rows = {"label": batch["label"], "mask": batch["mask"]}
        if loss:
            logits = _apply(model, params, batch["image"])
            rows |= score_examples(logits, batch["label"], loss)
            rows["prediction"] = logits.argmax(-1)
            rows["confidence"] = jax.nn.softmax(logits).max(-1)
        if features:  # XLA computes what both have in common once
            rows["features"] = _apply(model.clone(num_classes=0), params, batch["image"])
        return rows

    kept: dict[str, list[np.ndarray]] = {}
    for rows in _results(example_step, params, batches):
        mask = rows.pop("mask")
        for name, values in rows.items():
            kept.setdefault(name, []).append(values[mask])
        advance(int(mask.sum()))
    return Examples(**{name: np.concatenate(values) for name, values in kept.items()})


def _apply(model: Model, params: Params, images: Array) -> Array:
    output: Any = model.apply({"params": params}, images, train=False)
    return output


def _results(
    step: EvalStep, params: Params, batches: Iterable[Batch]
) -> Iterator[dict[str, np.ndarray]]:
    for batch in batches:
        yield jax.device_get(step(params, batch))
