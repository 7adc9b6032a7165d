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


def make_eval_step(model: nn.Module, loss: str) -> Callable[[Any, Mapping[str, Array]], Sums]:
    """(params, batch) to sums over the batch's real examples, per class where it makes sense."""

    def eval_step(params: Any, batch: Mapping[str, Array]) -> Sums:
        logits = model.apply({"params": params}, batch["image"], train=False)
        labels, mask = batch["label"], batch["mask"]
        targets = targets_of(labels, model.num_classes)
        losses = jnp.where(mask, LOSSES[loss](logits, targets), 0.0)
        if labels.ndim == 1:
            best = jax.lax.top_k(logits, min(5, model.num_classes))[1]
            hits = best == labels[:, None]
            correct = {"top1": hits[:, 0], "top5": hits.any(axis=-1)}
        else:
            # An example of several classes: right if the best guess is one of them; and each
            # yes-or-no question on its own.
            best = jnp.take_along_axis(labels, logits.argmax(-1, keepdims=True), axis=1)[:, 0]
            correct = {"top1": best > 0, "per_label": ((logits > 0) == (labels > 0)).mean(-1)}
        weights = targets * mask[:, None]
        sums = {name: (value * mask).sum() for name, value in correct.items()}
        return {
            **sums,
            "loss": losses.sum(),
            "count": mask.sum(),
            "class_count": weights.sum(axis=0),
            "class_correct": (weights * correct["top1"][:, None]).sum(axis=0),
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
    names = {"top1": "accuracy", "top5": "accuracy_top5", "per_label": "accuracy_per_label"}
    result = {names.get(name, name): float(value / count) for name, value in total.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        per_class = class_correct / class_count
    return {
        **result,
        "count": int(count),
        "class_accuracy": [None if np.isnan(x) else float(x) for x in per_class],
        "class_count": [int(n) for n in class_count],
    }
