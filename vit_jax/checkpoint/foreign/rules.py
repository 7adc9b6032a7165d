"""Rules that lead from one name and layout to another, and back.

A foreign layout is a list of rules; reading follows them one way and writing the other, so a weight
comes back bit for bit. A rule with several of our names splits the array evenly along its first
axis, as fused qkv projections are stored.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.checkpoint.lazy import Lazy, concatenated, transposed
from vit_jax.checkpoint.plan import Mapped
from vit_jax.checkpoint.tensors import Tensors


class Dims(NamedTuple):
    """What shapes alone do not show when a matrix stands for more than two axes."""

    num_heads: int
    patch: tuple[int, int]


class How(NamedTuple):
    read_as: str  # in words
    written_as: str
    to_ours: Callable[[np.ndarray, Dims], np.ndarray]
    to_theirs: Callable[[np.ndarray, Dims], np.ndarray]


def _heads_first(x: np.ndarray, dims: Dims) -> np.ndarray:  # (h·e, d) -> d h e
    return transposed(x).reshape(x.shape[1], dims.num_heads, -1)


def _flat_kernel(x: np.ndarray, dims: Dims) -> np.ndarray:  # o i h w -> h w i o
    o, i, h, w = x.shape
    return transposed(x.reshape(o, -1)).reshape(i, h, w, o).transpose(1, 2, 0, 3)


def _patch_kernel(x: np.ndarray, dims: Dims) -> np.ndarray:  # (d, h·w·c) -> h w c d
    return transposed(x).reshape(*dims.patch, -1, x.shape[0])


SAME = How("same", "same", lambda x, _: x, lambda x, _: x)
TRANSPOSED = How("transposed", "transposed", lambda x, _: transposed(x), lambda x, _: transposed(x))
CONV = How(
    "transposed (o i h w to h w i o)",
    "transposed (h w i o to o i h w)",
    _flat_kernel,
    lambda x, _: transposed(x.transpose(2, 0, 1, 3).reshape(-1, x.shape[3])).reshape(
        x.shape[3], x.shape[2], *x.shape[:2]
    ),
)
HEADS = How(
    "transposed, heads apart",
    "transposed, heads together",
    _heads_first,
    lambda x, _: transposed(x.reshape(x.shape[0], -1)),
)
HEADS_BIAS = How(
    "heads apart",
    "heads together",
    lambda x, dims: x.reshape(dims.num_heads, -1),
    lambda x, _: x.ravel(),
)
HEADS_OUT = How(
    "transposed, heads apart",
    "transposed, heads together",
    lambda x, dims: transposed(x).reshape(dims.num_heads, -1, x.shape[0]),
    lambda x, _: transposed(x.reshape(-1, x.shape[-1])),
)
PATCHES = How(
    "transposed, patches apart",
    "transposed, patches flat",
    _patch_kernel,
    lambda x, _: transposed(x.reshape(-1, x.shape[-1])),
)
WITH_BATCH_AXIS = How(
    "a leading axis of one",
    "the leading axis of one dropped",
    lambda x, _: x[None],
    lambda x, _: x[0],
)


class Rule(NamedTuple):
    theirs: str
    ours: tuple[str, ...]
    how: How = SAME


def dense(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(f"{theirs}.weight", (f"{ours}/kernel",), TRANSPOSED),
        Rule(f"{theirs}.bias", (f"{ours}/bias",)),
    ]


def norm(theirs: str, ours: str) -> list[Rule]:
    return [Rule(f"{theirs}.weight", (f"{ours}/scale",)), Rule(f"{theirs}.bias", (f"{ours}/bias",))]


def conv(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(f"{theirs}.weight", (f"{ours}/kernel",), CONV),
        Rule(f"{theirs}.bias", (f"{ours}/bias",)),
    ]


def projections(theirs: str, ours: str, parts: Sequence[str], bias: bool = True) -> list[Rule]:
    """One matrix (with `.weight`, `.bias`) for the `parts` among query, key and value."""
    rules = [Rule(f"{theirs}.weight", tuple(f"{ours}/{part}/kernel" for part in parts), HEADS)]
    if bias:
        names = tuple(f"{ours}/{part}/bias" for part in parts)
        rules.append(Rule(f"{theirs}.bias", names, HEADS_BIAS))
    return rules


def output(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(f"{theirs}.weight", (f"{ours}/out/kernel",), HEADS_OUT),
        Rule(f"{theirs}.bias", (f"{ours}/out/bias",)),
    ]


class Source:
    """A foreign file under its layout's own names, without prefixes and older names."""

    def __init__(self, tensors: Tensors, names: Mapping[str, str], where: str):
        self.names = dict(names)  # the layout's -> the file's
        self._tensors, self._where = tensors, where

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def shape(self, name: str, num_axes: int | None = None) -> tuple[int, ...]:
        """The shape of an array that shows the model's size; an error if it is missing."""
        if name not in self.names:
            raise ValueError(
                f"{self._where} has no {name}, which shows the model's size. It is incomplete, or "
                "not one of our models."
            )
        shape = self._tensors.shapes[self.names[name]].shape
        if num_axes is not None and len(shape) != num_axes:
            raise ValueError(
                f"{self._where} has {self.names[name]} {shape}, where {num_axes} axes are needed."
            )
        return shape

    def lazy(self, name: str, rows: slice | None = None) -> Lazy:
        return self._tensors.lazy(self.names[name], rows)

    def count(self, prefix: str) -> int:
        """How many numbers follow a prefix: the depth, for `blocks.`."""
        rest = (name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
        return len({text.split(".")[0] for text in rest})


class Found(NamedTuple):
    mapped: list[Mapped]
    missing: list[str]
    misshapen: list[str]


def read(source: Source, rules: Sequence[Rule], dims: Dims) -> Found:
    """Our leaves, the arrays that are missing, and those that cannot be split, in words."""
    found = Found([], [], [])
    for rule in rules:
        if rule.theirs not in source:
            found.missing.append(rule.theirs)
            continue
        length = source.shape(rule.theirs)[0]
        part, rest = divmod(length, len(rule.ours))
        if rest:
            found.misshapen.append(
                f"{rule.theirs} has {length} rows, not a multiple of {len(rule.ours)}"
            )
        for i, ours in enumerate(rule.ours):
            rows = slice(i * part, (i + 1) * part) if len(rule.ours) > 1 else None
            how = rule.how.read_as
            if rows is not None:
                how = f"part {i + 1} of {len(rule.ours)}, {how}"
            lazy = source.lazy(rule.theirs, rows)
            # A shape that does not fit stays the file's; the check against the model reports it.
            with contextlib.suppress(ValueError, IndexError):
                lazy = lazy.map(lambda x, rule=rule: rule.how.to_ours(x, dims))
            found.mapped.append(Mapped((source.names[rule.theirs],), ours, how, lazy))
    return found


def write(leaves: Mapping[str, Lazy], rules: Sequence[Rule], dims: Dims) -> list[Mapped]:
    mapped: list[Mapped] = []
    for rule in rules:
        parts = [
            leaves[name].map(lambda x, how=rule.how: how.to_theirs(x, dims)) for name in rule.ours
        ]
        how = rule.how.written_as
        if len(parts) > 1:
            how = f"{how}, joined into one"
        array = parts[0] if len(parts) == 1 else concatenated(parts, axis=0)
        mapped.append(Mapped(rule.ours, rule.theirs, how, array))
    return mapped


def num_rows(position_shape: Sequence[int]) -> int:
    return math.prod(position_shape[:-1])
