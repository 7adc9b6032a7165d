"""How good features are, without training a network on them: few-shot ridge regression and k-NN.

Functions of NumPy arrays.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

SHOTS = (1, 5, 10, 25)
# As big_vision evaluates few-shot: the bias is a feature too large to be regularised.
_BIAS = 100.0
_L2 = 2.0**10
_TEMPERATURE = 0.07  # of the neighbours' votes, as in DINO (Caron et al. 2021)
_ROWS = 1024  # of queries compared at a time

Labelled = tuple[np.ndarray, np.ndarray]  # features `n d`, class ids `n`


@dataclasses.dataclass(frozen=True)
class Probes:
    """Accuracies of features, and what they were learned from. What was not asked for is None."""

    train_split: str
    train_count: int
    few_shot: dict[int, float] | None  # by the number of examples of each class
    knn: dict[str, float] | None  # the number of neighbors, and the accuracy of their vote


def few_shot_accuracy(
    train: Labelled, test: Labelled, num_classes: int, shots: Sequence[int] = SHOTS
) -> dict[int, float]:
    """Accuracy of a linear map learned from the first n examples of each class, for each n.

    Ridge regression in closed form from standardised features to targets of -1 and 1 (Dosovitskiy
    et al. 2021, section 4.1).
    """
    accuracies = {}
    for count in shots:
        rows = first_of_each(train[1], count)
        predict = fit_ridge(train[0][rows], train[1][rows], num_classes)
        accuracies[count] = float((predict(test[0]) == test[1]).mean())
    return accuracies


def first_of_each(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of the first `count` examples of each class, in order."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order])
    return np.sort(order[np.arange(len(labels)) - starts < count])


def fit_ridge(
    features: np.ndarray, labels: np.ndarray, num_classes: int, l2: float = _L2
) -> Callable[[np.ndarray], np.ndarray]:
    """The function from features to class ids that ridge regression finds."""
    mean = features.mean(axis=0, dtype=np.float64)
    std = features.std(axis=0, dtype=np.float64) + 1e-5

    def standardised(x: np.ndarray) -> np.ndarray:
        return np.pad((x - mean) / std, ((0, 0), (0, 1)), constant_values=_BIAS)

    x = standardised(features)
    targets = 2.0 * np.eye(num_classes)[labels] - 1.0
    # The smaller of the two systems that have the same solution.
    if len(x) < x.shape[1]:
        weights = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), targets)
    else:
        weights = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)
    return lambda queries: (standardised(queries) @ weights).argmax(axis=1)


def knn_accuracy(train: Labelled, test: Labelled, num_classes: int, neighbors: int = 10) -> float:
    """Accuracy of a vote of the nearest training examples by cosine, the nearer counting more."""
    keys, labels = _unit(train[0]), train[1]
    neighbors = min(neighbors, len(keys))
    correct = 0
    for start in range(0, len(test[1]), _ROWS):
        queries, wanted = _unit(test[0][start : start + _ROWS]), test[1][start : start + _ROWS]
        similarity = queries @ keys.T  # rows n
        nearest = np.argpartition(-similarity, neighbors - 1, axis=1)[:, :neighbors]
        weights = np.exp(np.take_along_axis(similarity, nearest, axis=1) / _TEMPERATURE)
        votes = np.zeros((len(queries), num_classes))
        np.add.at(votes, (np.arange(len(queries))[:, None], labels[nearest]), weights)
        correct += int((votes.argmax(axis=1) == wanted).sum())
    return correct / len(test[1])


def _unit(features: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(norms, np.finfo(features.dtype).tiny)
