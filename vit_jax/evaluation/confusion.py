"""The confusion matrix: which class is taken for which, as numbers and as a picture."""

import os
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.printable import printable

MOST_CLASSES = 5_000  # more would be a matrix of gigabytes
_NAMED = 60  # classes whose names still fit beside the picture
_USUAL, _LONGEST = 12, 32  # letters of a name
_COUNTED = 15  # classes whose numbers still fit into it


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """How often class i (row) was taken for class j (column)."""
    flat = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def draw_confusion(
    matrix: np.ndarray, class_names: Sequence[str], path: str | os.PathLike[str], title: str
) -> None:
    """A PNG; the shade is the share of a row, so that rare classes show as well as common ones.

    Names are shown as they are: a `$` begins no formula.
    """
    num_classes = len(matrix)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    names = [_short(name) for name in class_names] if num_classes <= _NAMED else []
    side = min(16.0, max(5.0, 0.28 * num_classes + 2))
    side += 0.09 * max(0, max(map(len, names), default=0) - _USUAL)  # inches
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title("\n".join(_short(line, 60) for line in title.split("\n")), parse_math=False)
    if names:
        axes.set_xticks(range(num_classes), names, rotation=90, parse_math=False)
        axes.set_yticks(range(num_classes), names, parse_math=False)
    if num_classes <= _COUNTED:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                color = "black" if shares[row, column] > 0.5 else "white"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=color)
    figure.colorbar(picture, label="share of the true class", shrink=0.8)
    figure.savefig(path, dpi=120)


def _short(name: str, most: int = _LONGEST) -> str:
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"
