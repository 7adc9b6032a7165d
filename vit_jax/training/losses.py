"""Losses: logits and targets of `b k` to one number an example, `b`.

Targets are probabilities (softmax) or zeros and ones (sigmoid), so that mixed and smoothed labels
need nothing of their own.
"""

import jax
import optax
from jax import Array


def softmax(logits: Array, targets: Array) -> Array:
    """Cross-entropy of one class out of k."""
    return optax.softmax_cross_entropy(logits, targets)


def sigmoid(logits: Array, targets: Array) -> Array:
    """Summed binary cross-entropy of k independent yes-or-no questions."""
    return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)


LOSSES = {"softmax": softmax, "sigmoid": sigmoid}


def targets_of(labels: Array, num_classes: int, smoothing: float = 0.0) -> Array:
    """Class ids `b`, or zeros and ones `b k` as they are, as targets `b k`."""
    targets = jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
    return targets * (1 - smoothing) + smoothing / num_classes
