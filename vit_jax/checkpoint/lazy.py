"""Arrays that are described but not read yet, and the record of where each comes from.

Every format is read as a list of `Mapped` leaves and written from one. A conversion therefore holds
one array at a time, and knows all names and shapes, hence all errors, before it reads a weight.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import cv2
import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Lazy:
    """An array's shape and dtype, and the way to read it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Lazy":
        """The array after `function`, whose result's shape must not depend on the values."""
        # No memory behind it: one zero, with strides of zero.
        stand_in = function(np.broadcast_to(np.zeros((), self.dtype), self.shape))
        return Lazy(stand_in.shape, stand_in.dtype, lambda: function(self.read()))


class Mapped(NamedTuple):
    """One array of the result: what it is made from, its name, and how, in words."""

    sources: tuple[str, ...]
    target: str
    how: str
    array: Lazy


@dataclasses.dataclass
class Plan:
    """How a whole checkpoint is read into our names, or written from them."""

    mapped: list[Mapped]
    dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # name, reason
    notes: list[str] = dataclasses.field(default_factory=list)

    def leaves(self) -> dict[str, Lazy]:
        return {mapped.target: mapped.array for mapped in self.mapped}

    def told(self) -> list[str]:
        """The plan in a few lines: what differs only in numbers is told once."""
        groups: dict[tuple[str, str, str], list[tuple[int, ...]]] = {}
        unchanged = 0
        for mapped in self.mapped:
            if mapped.how == "same" and mapped.sources == (mapped.target,):
                unchanged += 1
                continue
            sources = _folded(mapped.sources) or "(nothing)"
            key = (_numberless(sources), _numberless(mapped.target), mapped.how)
            groups.setdefault(key, []).append(_numbers(sources))
        lines = [
            f"  {_with_ranges(sources, numbers)} -> {target}: {how}"
            for (sources, target, how), numbers in groups.items()
        ]
        if unchanged:
            lines.append(f"  {unchanged} arrays unchanged in name and layout")
        lines += [f"  dropped {name}: {reason}" for name, reason in self.dropped]
        return lines + [f"  {note}" for note in self.notes]


def from_array(array: Any) -> Lazy:
    return Lazy(tuple(array.shape), np.dtype(array.dtype), lambda: np.asarray(array))


def concatenated(parts: Sequence[Lazy], axis: int) -> Lazy:
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    read = lambda: np.concatenate([part.read() for part in parts], axis=axis)  # noqa: E731
    return Lazy(tuple(shape), parts[0].dtype, read)


def transposed(matrix: np.ndarray) -> np.ndarray:
    """A matrix's transpose in memory of its own: seven times faster than NumPy's copy of `.T`."""
    if not any(matrix.strides) or matrix.itemsize not in (2, 4, 8):
        return matrix.T
    words = np.ascontiguousarray(matrix).view(
        {2: np.uint16, 4: np.int32, 8: np.float64}[matrix.itemsize]
    )
    return cv2.transpose(words).view(matrix.dtype)


def is_finite(array: np.ndarray) -> bool:
    if not np.issubdtype(array.dtype, np.floating) and array.dtype != ml_dtypes.bfloat16:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one pass and no temporary; a NaN or inf anywhere shows in it
            return True
    return bool(np.isfinite(array).all())


def read_ahead(leaves: Mapping[str, Lazy], *, where: str) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array, each read while the one before it is written; two are in memory at a time.

    After the last one, NaN or infinite weights are an error that names them.
    """
    names, not_finite = list(leaves), []

    def read(name: str) -> np.ndarray:
        array = np.asarray(leaves[name].read(), order="C")
        if not is_finite(array):
            not_finite.append(name)
        return array

    with ThreadPoolExecutor(max_workers=1) as reader:
        upcoming = reader.submit(read, names[0]) if names else None
        for name, following in itertools.zip_longest(names, names[1:]):
            array = upcoming.result()
            upcoming = reader.submit(read, following) if following is not None else None
            yield name, array
            del array
    refuse_not_finite(not_finite, where)


def read_all(leaves: dict[str, Lazy], *, where: str) -> dict[str, np.ndarray]:
    """All arrays; NaN or infinite weights are an error that names them."""
    arrays = {name: leaf.read() for name, leaf in leaves.items()}
    refuse_not_finite([name for name, array in arrays.items() if not is_finite(array)], where)
    return arrays


def refuse_not_finite(names: Sequence[str], where: str) -> None:
    if names:
        raise ValueError(
            f"{where} has NaN or infinite weights in {', '.join(summarized(names)[:6])}. The model "
            "that wrote it had diverged; use an earlier checkpoint."
        )


def summarized(names: Iterable[str]) -> list[str]:
    """Names that differ only in numbers, once: blocks.{0..11}.norm1.weight."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        groups.setdefault(_numberless(name), []).append(_numbers(name))
    return [_with_ranges(name, numbers) for name, numbers in groups.items()]


def _folded(names: Sequence[str]) -> str:
    """a/query/kernel, a/key/kernel as a/{query,key}/kernel; else joined by a plus."""
    if len(names) < 2:
        return "".join(names)
    parts = [name.split("/") for name in names]
    if len({len(part) for part in parts}) > 1:
        return " + ".join(names)
    differing = [i for i, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1:
        return " + ".join(names)
    where = differing[0]
    folded = "{" + ",".join(p[where] for p in parts) + "}"
    return "/".join([*parts[0][:where], folded, *parts[0][where + 1 :]])


# A block's number stands between dots, or after an underscore before a slash.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=encoderblock_)\d+(?=/)|(?<=MixerBlock_)\d+(?=/)")


def _numberless(name: str) -> str:
    return _NUMBER.sub("*", name)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(name))


def _with_ranges(name: str, numbers: list[tuple[int, ...]]) -> str:
    for values in zip(*numbers, strict=True):
        low, high = min(values), max(values)
        name = name.replace("*", str(low) if low == high else f"{{{low}..{high}}}", 1)
    return name
