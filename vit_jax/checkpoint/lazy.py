"""Arrays whose shape and dtype are known and whose values are not read yet.

Opening a checkpoint of any format gives such arrays by flat name, in our names, whatever it takes
to make them: reading, slicing, transposing, joining. So all errors in names and shapes are found
before a weight is read, weights are read one array at a time, and each process can read the part
that it holds.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor

import cv2
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from vit_jax.checkpoint.names import listed
from vit_jax.models.fields import MAX_LAYERS

Index = tuple[slice, ...]  # a part of an array; () is all of it

MAX_ARRAYS = 10_000  # in a file
_MAX_SIDE = 2**31
# Trained weights shrink two or three times, fresh zeros without end; small models may be all zeros.
_MAX_COMPRESSION, _SMALL = 16, 64 << 20


@dataclasses.dataclass(frozen=True)
class Lazy:
    """`load` reads a part. `row` is (array, i) if this is row i of another lazy array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[Index], np.ndarray]
    row: "tuple[Lazy, int] | None" = None

    def __post_init__(self):
        if not all(0 <= side < _MAX_SIDE for side in self.shape):
            raise ValueError(f"no array has the shape {self.shape}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, index: Index = ()) -> np.ndarray:
        return self.load(index)

    def rows(self, start: int, stop: int) -> "Lazy":
        """Some of its rows; no others are read."""
        rows, shape = (slice(start, stop),), (stop - start, *self.shape[1:])
        return Lazy(shape, self.dtype, lambda index: self.read(rows)[index])

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Lazy":
        """The array after `function`, whose result's shape must not depend on the values."""
        # No memory behind it: one zero, with strides of zero.
        stand_in = function(np.broadcast_to(np.zeros((), self.dtype), self.shape))
        return Lazy(stand_in.shape, stand_in.dtype, lambda index: function(self.read())[index])


def from_array(array: np.ndarray | jax.Array) -> Lazy:
    return Lazy(array.shape, np.dtype(array.dtype), lambda index: np.asarray(array)[index])


def concatenated(parts: Sequence[Lazy], axis: int) -> Lazy:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)

    def load(index: Index) -> np.ndarray:
        return np.concatenate([part.read() for part in parts], axis=axis)[index]

    return Lazy(tuple(shape), parts[0].dtype, load)


def check_count(arrays: Sized) -> None:
    if len(arrays) > MAX_ARRAYS:
        raise ValueError(f"it holds {len(arrays):,} arrays, of {MAX_ARRAYS:,} that are possible")


def check_claims(arrays: Iterable[Lazy], stored: int) -> None:
    """Raises if arrays are said to be far larger than the bytes stored for them could hold."""
    if (claimed := sum(array.nbytes for array in arrays)) > _MAX_COMPRESSION * stored + _SMALL:
        told = f"{stored:,} bytes are said to hold arrays of {claimed:,} bytes"
        raise ValueError(f"{told}, and no weights can be compressed so well")


def unstacked(array: Lazy, latest: dict[int, np.ndarray]) -> list[Lazy]:
    """The rows along the first axis, one for each block.

    The array is kept in `latest` until another one is read: its rows cost one read of it.
    """
    if not array.shape or array.shape[0] > MAX_LAYERS:
        raise ValueError(f"{array.shape} is no stack of at most {MAX_LAYERS:,} blocks")

    def row(i: int) -> Lazy:
        def load(index: Index) -> np.ndarray:
            if index:
                return array.read((slice(i, i + 1), *index))[0]
            if id(array) not in latest:
                latest.clear()
                latest[id(array)] = array.read()
            return latest[id(array)][i]

        return Lazy(array.shape[1:], array.dtype, load, row=(array, i))

    return [row(i) for i in range(array.shape[0])]


def stacked(rows: Sequence[Lazy]) -> Lazy:
    """The rows along a new first axis; if they are the rows of one array, that array."""
    origins = [row.row for row in rows if row.row is not None]
    if len(origins) == len(rows):
        parent = origins[0][0]
        same = all(array is parent for array, _ in origins)
        if same and [i for _, i in origins] == list(range(parent.shape[0])):
            return parent

    def load(index: Index) -> np.ndarray:
        chosen = rows[index[0]] if index else rows
        return np.stack([row.read(index[1:]) for row in chosen])

    return Lazy((len(rows), *rows[0].shape), rows[0].dtype, load)


def transposed(matrix: np.ndarray) -> np.ndarray:
    """A transposed copy of a matrix, seven times faster than NumPy's copy of `.T`."""
    if not any(matrix.strides) or matrix.itemsize not in (2, 4, 8):
        return matrix.T
    words = np.ascontiguousarray(matrix).view(
        {2: np.uint16, 4: np.int32, 8: np.float64}[matrix.itemsize]
    )
    return cv2.transpose(words).view(matrix.dtype)


def read_ahead(
    leaves: Mapping[str, Lazy], *, where: str, parts: Mapping[str, Index] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays, each read while the caller uses the last one; two are in memory at a time.

    `parts` says which part to read of each. After the last one, NaN or infinite weights raise an
    error that names them.
    """
    names = list(leaves)
    not_finite: list[str] = []

    def read(name: str) -> np.ndarray:
        array = np.asarray(leaves[name].read(parts[name] if parts else ()), order="C")
        if not is_finite(array):
            not_finite.append(name)
        return array

    with ThreadPoolExecutor(max_workers=1) as reader:
        upcoming = reader.submit(read, names[0]) if names else None
        for name, following in itertools.zip_longest(names, names[1:]):
            assert upcoming is not None
            array = upcoming.result()
            upcoming = reader.submit(read, following) if following is not None else None
            yield name, array
            del array
    if not_finite:
        raise ValueError(
            f"{where} has NaN or infinite weights in {listed(not_finite, 6)}. The "
            "model that wrote it had diverged; use an earlier checkpoint."
        )


def is_finite(array: np.ndarray) -> bool:
    if not np.issubdtype(array.dtype, np.floating) and array.dtype != ml_dtypes.bfloat16:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one pass and no temporary; a NaN or inf shows in the sum
            return True
    return bool(np.isfinite(array).all())


def local_part(shape: Sequence[int], sharding: jax.sharding.Sharding | None) -> Index:
    """The smallest part of an array that covers what this process's devices hold; () is all."""
    if sharding is None:
        return ()
    held = sharding.addressable_devices_indices_map(tuple(shape)).values()
    bounds = [
        (min(start for start, _ in ranges), max(stop for _, stop in ranges))
        for ranges in zip(*(_bounds(index, shape) for index in held), strict=True)
    ]
    if all(stop - start == size for (start, stop), size in zip(bounds, shape, strict=True)):
        return ()
    return tuple(slice(start, stop) for start, stop in bounds)


def place(
    part: np.ndarray,
    index: Index,
    shape: Sequence[int],
    dtype: DTypeLike,
    sharding: jax.sharding.Sharding | None,
) -> jax.Array:
    """Puts an array, of which this process read `part` at `index`, onto the devices holding it."""
    if sharding is None:
        return jnp.asarray(part, dtype)
    part = part.astype(dtype, copy=False)
    offsets = [slice_.start for slice_ in index] or [0] * len(shape)

    def shard(held: Index | None) -> np.ndarray:
        bounds = _bounds(held, shape)
        return part[tuple(slice(a - o, b - o) for (a, b), o in zip(bounds, offsets, strict=True))]

    return jax.make_array_from_callback(tuple(shape), sharding, shard)


def _bounds(index: Index | None, shape: Sequence[int]) -> list[tuple[int, int]]:
    whole = index or tuple(slice(None) for _ in shape)
    return [slice_.indices(size)[:2] for slice_, size in zip(whole, shape, strict=True)]
