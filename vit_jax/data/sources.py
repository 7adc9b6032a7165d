"""Where examples come from: one interface over tfds, folders, tables and built-in digits.

A source is a sequence of examples with class names. It neither decodes nor shuffles.
"""

import abc
import collections
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from vit_jax.config import default_config

Label = int | tuple[int, ...]  # a tuple in a multi-label set


class Example(NamedTuple):
    image: bytes | np.ndarray  # an encoded file, or h w c
    label: Label
    path: str  # where a person can find it


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
    """A split of a data set, random access. `rows` is what its kind finds the examples by."""

    name: str
    split: str
    class_names: tuple[str, ...]
    multi_label: bool
    rows: Sequence[Any]

    def __len__(self) -> int:
        return len(self.rows)

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Example: ...

    @abc.abstractmethod
    def path(self, index: int) -> str:
        """Where a person can find an example, readable or not."""


def first_of_each_class(source: Source, count: int) -> Source:
    """The first `count` examples of each class; reads no further than it must."""
    taken: collections.Counter[Label] = collections.Counter()
    chosen = []
    for index, row in enumerate(source.rows):
        try:
            label = source[index].label
        except (ValueError, OSError):  # it cannot be read, and will be reported by who tries to
            continue
        if taken[label] < count:
            taken[label] += 1
            chosen.append(row)
            if len(chosen) == count * len(source.class_names):
                break
    return dataclasses.replace(source, rows=chosen)


def open_source(
    config: ml_collections.ConfigDict | str,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    """A split of `config.dataset`, or of the data set of that name: `config.pp.train` by default.

    Class ids follow `class_names` if given, as saved with a model, else the training split: the
    test split of a folder may lack classes, and its labels still mean the same.
    """
    config, kind = _resolve(config)
    names = None if class_names is None else tuple(class_names)
    return kind.open_split(config, split or str(config.pp.train), names)


def split_sizes(config: ml_collections.ConfigDict | str) -> dict[str, int]:
    """How many examples each split of a data set has."""
    config, kind = _resolve(config)
    return {name: len(members) for name, members in kind.list_splits(config).items()}


def count_classes(config: ml_collections.ConfigDict | str) -> tuple[int, bool]:
    """How many classes a data set has, and whether an image may have several.

    This does not need a tfds data set to be prepared.
    """
    config, kind = _resolve(config)
    if hasattr(kind, "declared_classes"):
        names, multi_label = kind.declared_classes(config)
        return len(names), multi_label
    source = open_source(config)
    return len(source.class_names), source.multi_label


def _resolve(
    config: ml_collections.ConfigDict | str,
) -> tuple[ml_collections.ConfigDict, ModuleType]:
    """A config, and the module that reads its data set, each of which takes a second to import."""
    if isinstance(config, str):
        name, config = config, default_config()
        config.dataset = name
    if config.dataset == "digits":
        from vit_jax.data import digits as kind
    elif _is_local(config.dataset):
        from vit_jax.data import folders as kind
    else:
        from vit_jax.data import tfds as kind
    return config, kind


def class_ids(
    own_names: Sequence[str], class_names: Sequence[str] | None, dataset: str
) -> dict[str, int]:
    """The id of each of a source's classes among the model's; raises if some are not among them."""
    names = own_names if class_names is None else class_names
    ids = {name: index for index, name in enumerate(names)}
    if unknown := [name for name in own_names if name not in ids]:
        raise ValueError(
            f"{dataset} has classes that training did not: {_some(unknown)}. "
            f"Training had {len(names)}: {_some(names)}. Rename them, or remove them."
        )
    return ids


def _some(names: Sequence[str], limit: int = 10) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def local_path(name: str) -> Path:
    return Path(os.path.expanduser(name))  # noqa: PTH111 (pathlib's raises for unknown users)


def _is_local(name: str) -> bool:
    """Whether a name means files on this machine, and not what tfds prepared from them."""
    if not name:
        raise ValueError("config.dataset is empty; give a tfds name, a folder, a CSV, or 'digits'")
    path = local_path(name)
    if path.suffix.lower() in (".csv", ".tsv"):
        return True
    if path.is_dir():
        described = ("dataset_info.json", "*/dataset_info.json", "*/*/dataset_info.json")
        return not any(next(path.glob(pattern), None) for pattern in described)
    if path.is_file():
        raise ValueError(f"{name} is a single file; give the folder of a data set, or a CSV/TSV")
    if path.is_absolute() or name.startswith((".", "~")):
        raise ValueError(f"there is no folder or CSV/TSV file at {name}")
    return False
