"""Losses: from logits and targets, `b k` each, to one number per example, `b`.

Targets are probabilities (softmax) or zeros and ones (sigmoid), so mixed and smoothed labels are
nothing special.
"""

from collections.abc import Callable

import jax
import optax
from jax import Array

softmax = optax.softmax_cross_entropy  # of one class out of k


def sigmoid(logits: Array, targets: Array) -> Array:
    """Summed binary cross-entropy of k independent yes-or-no questions."""
    return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)


LOSSES: dict[str, Callable[[Array, Array], Array]] = {"softmax": softmax, "sigmoid": sigmoid}


def as_targets(labels: Array, num_classes: int, smoothing: float = 0.0) -> Array:
    """Targets `b k`, from class ids `b` or from zeros and ones `b k`."""
    targets = jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
    return targets * (1 - smoothing) + smoothing / num_classes
