"""Where examples come from: one interface over tfds, folders, tables and built-in digits.

A source is a sequence of examples with class names. It neither decodes nor shuffles.
"""

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import ml_collections
import numpy as np

from vit_jax.config import default_config

Label = int | tuple[int, ...]  # a tuple in a multi-label set


class Example(NamedTuple):
    image: bytes | np.ndarray  # an encoded file, or h w c
    label: Label
    path: str  # where a person can find it


class Source(Protocol):
    """A split of a data set, random access."""

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def multi_label(self) -> bool: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def path(self, index: int) -> str:
        """Where a person can find an example, readable or not."""
        ...


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some examples of a source, in the order of `indices`."""

    source: Source
    indices: Sequence[int]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def split(self) -> str:
        return self.source.split

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    @property
    def multi_label(self) -> bool:
        return self.source.multi_label

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self.source[self.indices[index]]

    def path(self, index: int) -> str:
        return self.source.path(self.indices[index])


def first_of_each_class(source: Source, count: int) -> Subset:
    """The first `count` examples of each class; reads no further than it must."""
    taken: collections.Counter[Label] = collections.Counter()
    chosen: list[int] = []
    for index in range(len(source)):
        label = source[index].label
        if taken[label] < count:
            taken[label] += 1
            chosen.append(index)
            if len(chosen) == count * len(source.class_names):
                break
    return Subset(source, chosen)


def open_source(
    config: ml_collections.ConfigDict | str,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    """A split of `config.dataset`, or of the data set of that name: `config.pp.train` by default.

    Class ids follow `class_names` if given, as saved with a model, else the training split: the
    test split of a folder may lack classes, and its labels still mean the same.
    """
    config = as_config(config)
    split = split or str(config.pp.train)
    if class_names is not None:
        class_names = tuple(class_names)
    if config.dataset == "digits":
        from vit_jax.data.digits import open_digits  # scikit-learn takes a second to import

        return open_digits(config, split, class_names)
    if _is_local(config.dataset):
        from vit_jax.data.folders import open_files

        return open_files(config, split, class_names)
    from vit_jax.data.tfds import open_tfds

    return open_tfds(config, split, class_names)


def split_sizes(config: ml_collections.ConfigDict | str) -> dict[str, int]:
    """How many examples each split of a data set has."""
    config = as_config(config)
    if config.dataset == "digits":
        from vit_jax.data.digits import digit_splits

        return {name: len(members) for name, members in digit_splits(config).items()}
    if _is_local(config.dataset):
        from vit_jax.data.folders import list_splits

        return {name: len(members) for name, members in list_splits(config).items()}
    from vit_jax.data.tfds import tfds_splits

    return tfds_splits(config)


def count_classes(config: ml_collections.ConfigDict | str) -> tuple[int, bool]:
    """How many classes a data set has, and whether an image may have several.

    This does not need a tfds data set to be prepared.
    """
    config = as_config(config)
    if config.dataset == "digits" or _is_local(config.dataset):
        source = open_source(config)
        return len(source.class_names), source.multi_label
    from vit_jax.data.tfds import tfds_classes

    names, multi_label = tfds_classes(config)
    return len(names), multi_label


def as_config(config: ml_collections.ConfigDict | str) -> ml_collections.ConfigDict:
    if not isinstance(config, str):
        return config
    name, config = config, default_config()
    config.dataset = name
    return config


def encode_label(label: Label, num_classes: int) -> np.ndarray | np.int32:
    """An int32 class id, or float32 zeros and ones, `k`."""
    if not isinstance(label, tuple):
        return np.int32(label)
    hot = np.zeros(num_classes, np.float32)
    hot[list(label)] = 1
    return hot


def class_ids(
    own_names: Sequence[str], class_names: Sequence[str] | None, dataset: str
) -> dict[str, int]:
    """The id of each of a source's classes among the model's; raises if some are not among them."""
    names = own_names if class_names is None else class_names
    ids = {name: index for index, name in enumerate(names)}
    unknown = [name for name in own_names if name not in ids]
    if unknown:
        raise ValueError(
            f"{dataset} has classes that training did not: {_some(unknown)}. "
            f"Training had {len(names)}: {_some(names)}. Rename them, or remove them."
        )
    return ids


def _some(names: Sequence[str], limit: int = 10) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _is_local(name: str) -> bool:
    """Whether a name means files on this machine, and not what tfds prepared from them."""
    if not name:
        raise ValueError("config.dataset is empty; give a tfds name, a folder, a CSV, or 'digits'")
    path = Path(name).expanduser()
    if path.suffix.lower() in (".csv", ".tsv"):
        return True
    if path.is_dir():
        described = ("dataset_info.json", "*/dataset_info.json", "*/*/dataset_info.json")
        return not any(next(path.glob(pattern), None) for pattern in described)
    if path.is_absolute() or name.startswith((".", "~")):
        raise ValueError(f"there is no folder or CSV/TSV file at {name}")
    return False
