"""Smaller weights for an exported model: bfloat16, or int8 matrices with a scale for each output.

Each kind is a pair of functions: from parameters to what is stored, and back inside the program.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from vit_jax.aliases import Params
from vit_jax.models.kinds import flatten

_LEVELS = 127  # of int8, the same on both sides of zero


Stored = Params  # or by flat name, an array or int8 values with their float32 scales


class Weights(NamedTuple):
    dtype: str  # what the model computes in
    store: Callable[[Params], Stored]
    restore: Callable[[Stored], Params]


def _as(dtype: DTypeLike) -> Callable[[Params], Params]:
    return lambda params: jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)


def quantize(params: Params) -> Stored:
    """Kernels become int8; all else stays as it is."""
    return {name: _quantized(name, leaf) for name, leaf in flatten(params).items()}


def dequantize(stored: Stored) -> Params:
    """The parameters again. Without the barrier XLA would unpack them all while it compiles."""
    flat = {}
    for name, leaf in stored.items():
        if isinstance(leaf, tuple):
            values, scale = jax.lax.optimization_barrier(leaf)
            leaf = values.astype(jnp.float32) * scale
        flat[name] = leaf
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def _quantized(
    name: str, leaf: jax.Array | np.ndarray
) -> jax.Array | np.ndarray | tuple[np.ndarray, np.ndarray]:
    if not name.endswith("/kernel"):
        return leaf
    values = np.asarray(leaf, np.float32)
    # The last axis holds the outputs; query, key and value have two such axes (heads, head size).
    is_projection = name.split("/")[-2] in ("query", "key", "value")
    inputs = (0,) if is_projection else tuple(range(values.ndim - 1))
    scale = np.abs(values).max(axis=inputs, keepdims=True) / _LEVELS
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.round(values / scale).astype(np.int8), scale


WEIGHTS = {
    "float32": Weights("float32", _as(np.float32), lambda stored: stored),
    "bfloat16": Weights("bfloat16", _as(jnp.bfloat16), lambda stored: stored),
    "int8": Weights("float32", quantize, dequantize),
}
