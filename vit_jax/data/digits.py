"""scikit-learn's 1,797 handwritten digits, 8 x 8: real images that need no download."""

import dataclasses
import functools
from typing import Any

import ml_collections
import numpy as np

from vit_jax.data.sources import Example, Source, class_ids
from vit_jax.data.splits import hold_out, select

_NAMES = tuple("0123456789")


@dataclasses.dataclass(frozen=True)
class DigitsSource(Source):
    """Its rows are indices into scikit-learn's order."""

    def __getitem__(self, index: int) -> Example:
        images, labels = _load()
        row = self.rows[index]
        label = self.class_names.index(_NAMES[labels[row]])
        return Example(images[row], label, self.path(index))

    def path(self, index: int) -> str:
        return f"digits[{self.rows[index]}]"


def open_split(
    config: ml_collections.ConfigDict, split: str, class_names: tuple[str, ...] | None
) -> DigitsSource:
    class_ids(_NAMES, class_names, "digits")  # raises if `class_names` lacks a digit
    rows = select(split, list_splits(config), "digits")
    return DigitsSource("digits", split, class_names or _NAMES, False, rows)


def list_splits(config: ml_collections.ConfigDict) -> dict[str, list[int]]:
    _, labels = _load()
    return hold_out(range(len(labels)), config.test_fraction, key=str, stratum=labels.__getitem__)


@functools.cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)  # it counts ink from 0 to 16
    return images[..., None], data.target
