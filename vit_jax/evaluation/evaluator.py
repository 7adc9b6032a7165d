"""A model over every batch of a split: sums while it trains, or a row for every example.

Training sums on the devices, because no one of several processes sees every example. `evaluate`
runs in one process and keeps what each example scored, for calibration, confusions and features.
"""

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.aliases import Params
from vit_jax.evaluation.scores import Scores, score_examples
from vit_jax.models import Model
from vit_jax.training.losses import as_targets

Batch = Mapping[str, Array]  # image, label, and a mask that is False for padding
EvalStep = Callable[[Params, Batch], dict[str, Array]]


def make_eval_step(model: Model, loss: str) -> EvalStep:
    """The step that sums the scores of a batch's real examples, in all and for each class."""

    def eval_step(params: Params, batch: Batch) -> dict[str, Array]:
        logits: Any = model.apply({"params": params}, batch["image"], train=False)
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
    for batch in batches:
        for name, value in jax.device_get(eval_step(params, batch)).items():
            totals[name] = totals.get(name, 0) + np.asarray(value, np.float64)
    return Scores.from_totals(totals)


def evaluate_examples(
    model: Model,
    params: Params,
    batches: Iterable[Batch],
    *,
    loss: str | None,
    features: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, np.ndarray]:
    """Arrays with a row for each real example: `label` (n, or n k); with a `loss` also what
    `score_examples` returns, `prediction` and `confidence`; and `features` (n d) if asked for.

    `advance` is called with the number of examples in each batch.
    """

    @jax.jit
    def example_step(params: Params, batch: Batch) -> dict[str, Array]:
        rows = {"label": batch["label"], "mask": batch["mask"]}
        if loss:
            logits: Any = model.apply({"params": params}, batch["image"], train=False)
            rows |= score_examples(logits, batch["label"], loss)
            rows["prediction"] = logits.argmax(-1)
            rows["confidence"] = jax.nn.softmax(logits).max(-1)
        if features:  # XLA computes what both have in common once
            headless: Any = model.clone(num_classes=0)
            rows["features"] = headless.apply({"params": params}, batch["image"], train=False)
        return rows

    kept: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for batch in batches:
        rows = jax.device_get(example_step(params, batch))
        mask = rows.pop("mask")
        for name, values in rows.items():
            kept[name].append(values[mask])
        advance(int(mask.sum()))
    return {name: np.concatenate(parts) for name, parts in kept.items()}
