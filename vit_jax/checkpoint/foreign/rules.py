"""Rules that lead from one name and layout to another, and back.

A foreign layout is a table of names, which gives a list of rules; reading follows them one way and
writing the other, so a weight comes back bit for bit.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.checkpoint.lazy import Lazy, concatenated, transposed
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models.fields import MAX_LAYERS
from vit_jax.models.layers import ATTENTION


class Dims(NamedTuple):
    """What shapes alone do not show when a matrix stands for more than two axes."""

    num_heads: int
    patch: Sequence[int]


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


# Their names to ours, of modules (with a .weight, a .bias) or of single arrays. Several names of
# ours share one array of theirs, which is split evenly along its first axis, as fused qkv are.
Table = Mapping[str, str | tuple[str, ...]]

QUERY, KEY, VALUE, OUT = (f"{ATTENTION}/{part}" for part in ("query", "key", "value", "out"))
QKV = (QUERY, KEY, VALUE)
MLP = ("MlpBlock_0/Dense_0", "MlpBlock_0/Dense_1")
REGISTERS = "Transformer/registers"

_ARRAYS = ("kernel", "bias", "scale", "probe", "cls", "dist", "registers", "pos_embedding")
_NORM = re.compile(r"(.*/)?(\w*[nN]orm\w*|gn\w+)")
_HOWS = {  # by our name
    r".*/(query|key|value)/kernel": HEADS,
    r".*/(query|key|value)/bias": HEADS_BIAS,
    r".*/out/kernel": HEADS_OUT,
    r"(.*/)?(embedding|stem|conv\w+)/kernel": CONV,
    r".*/kernel": TRANSPOSED,
}


def within(theirs: str, ours: str, table: Table) -> dict[str, tuple[str, ...]]:
    """The table of a module's parts, with its own name before theirs."""
    return {
        f"{theirs}.{name}": tuple(f"{ours}/{part}" for part in _each(parts))
        for name, parts in table.items()
    }


def blocks(theirs: str, ours: str, table: Table, num_blocks: int) -> dict[str, tuple[str, ...]]:
    """The table of one block for all of them: theirs.0, ours_0 and so on."""
    tables = (within(f"{theirs}.{i}", f"{ours}_{i}", table) for i in range(num_blocks))
    return {name: parts for table in tables for name, parts in table.items()}


def _each(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def follow(table: Table, hows: Mapping[str, How] | None = None) -> list[Rule]:
    """The rules of a table, whatever arrays a model has. Our name for an array says how it changes,
    except for those in `hows`.
    """
    found: list[Rule] = []
    for theirs, names in table.items():
        ours, kinds = _each(names), {"": ""}
        if ours[0].split("/")[-1] not in _ARRAYS:
            kinds = {
                ".weight": "/scale" if _NORM.fullmatch(ours[0]) else "/kernel",
                ".bias": "/bias",
            }
        for suffix, kind in kinds.items():
            arrays = tuple(name + kind for name in ours)
            how = next((how for p, how in _HOWS.items() if re.fullmatch(p, arrays[0])), SAME)
            found.append(Rule(theirs + suffix, arrays, (hows or {}).get(arrays[0], how)))
    return found


@dataclasses.dataclass(frozen=True)
class Source:
    """A foreign file under its layout's own names, without prefixes and older names."""

    where: str
    names: Mapping[str, str]  # the layout's -> the file's
    arrays: Mapping[str, Lazy]  # by the file's names

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def array(self, name: str) -> Lazy:
        return self.arrays[self.names[name]]

    def shape(self, name: str, num_axes: int | None = None) -> tuple[int, ...]:
        """The shape of an array that shows the model's size; an error if it is missing."""
        if name not in self.names:
            raise ValueError(
                f"{self.where} has no {name}, which shows the model's size. It is incomplete, or "
                "not one of our models."
            )
        shape = self.array(name).shape
        if num_axes is not None and len(shape) != num_axes:
            raise ValueError(
                f"{self.where} has {self.names[name]} {shape}, where {num_axes} axes are needed."
            )
        return shape

    def refuse(self, problems: Sequence[str]) -> None:
        """Raises if there are any."""
        if told := "; ".join(problems[:30]):
            raise ValueError(f"{self.where} cannot become one of our models: {told}.")

    def count(self, prefix: str) -> int:
        """How many numbers follow a prefix: the depth, for `blocks.`."""
        rest = (name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
        count = len({text.split(".")[0] for text in rest})
        if count > MAX_LAYERS:
            raise ValueError(f"{self.where} has {count:,} {prefix}…, of {MAX_LAYERS:,} possible.")
        return count


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
        for i, ours in enumerate(rule.ours):
            lazy, how = source.array(rule.theirs), rule.how.read_as
            if (num_parts := len(rule.ours)) > 1:
                part, rest = divmod(lazy.shape[0], num_parts)
                if rest and not i:
                    problem = f"{lazy.shape[0]} rows, not a multiple of {num_parts}"
                    found.misshapen.append(f"{rule.theirs} has {problem}")
                lazy = lazy.rows(i * part, (i + 1) * part)
                how = f"part {i + 1} of {num_parts}, {how}"
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
        mapped.append(Mapped(rule.ours, rule.theirs, how, concatenated(parts, axis=0)))
    return mapped
