"""Communication between the devices of a compiled program: operations, shapes and bytes."""

import collections
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_ITEM_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "f8": 1}
_OPERATION = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"([a-z]+\d+\w*|pred)\[([\d,]*)\]")


class Collective(NamedTuple):
    kind: str
    shape: tuple[int, ...]  # of the result on one device
    bytes: int


def find_collectives(hlo: str) -> list[Collective]:
    """Every collective in the text of a compiled program; the body of a loop counts once."""
    return [
        Collective(match[2], *array)
        for line in hlo.splitlines()
        if (match := _OPERATION.search(line))
        for array in _results(match[1], asynchronous="-start(" in line)
    ]


def summary(collectives: Iterable[Collective]) -> dict[str, dict[str, int]]:
    """For each kind: the count, the total bytes, and the bytes of the largest."""
    groups = collections.defaultdict(list)
    for collective in collectives:
        groups[collective.kind].append(collective.bytes)
    return {
        kind: {"count": len(groups[kind]), "bytes": sum(groups[kind]), "largest": max(groups[kind])}
        for kind in KINDS
        if kind in groups
    }


def _results(text: str, *, asynchronous: bool) -> list[tuple[tuple[int, ...], int]]:
    """The arrays of a result type. An asynchronous start lists its operands, then its results, then
    scalars for its own use.
    """
    arrays = [
        (shape := tuple(int(n) for n in dimensions.split(",") if n), _bytes(kind, shape))
        for kind, dimensions in _ARRAY.findall(re.sub(r"\{[^{}]*\}", "", text))
    ]
    if asynchronous and text.startswith("("):
        arrays = [array for array in arrays if array[0]]
        return arrays[len(arrays) // 2 :]
    return arrays


def _bytes(kind: str, shape: tuple[int, ...]) -> int:
    bits = re.search(r"\d+", kind)
    item = _ITEM_BYTES.get(kind) or max(1, int(bits[0]) // 8 if bits else 1)
    return item * math.prod(shape)
