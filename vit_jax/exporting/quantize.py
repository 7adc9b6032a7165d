"""Smaller weights of an exported model: bfloat16, or int8 matrices with a scale for each output."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath, keystr, tree_map_with_path

from vit_jax.aliases import Params

WEIGHTS = ("float32", "bfloat16", "int8")
_LEVELS = 127  # of int8, the same on both sides of zero


def quantize(params: Params, weights: str) -> Params:
    """int8: kernels become pairs of int8 values and float32 scales; all else stays as it is."""
    if weights == "int8":
        return tree_map_with_path(_as_int8, params)
    return jax.tree.map(lambda leaf: np.asarray(leaf, jnp.dtype(weights)), params)


def _as_int8(path: KeyPath[Any], leaf: jax.Array | np.ndarray) -> Any:
    name = keystr(path, simple=True, separator="/")
    if not name.endswith("/kernel"):
        return leaf
    values = np.asarray(leaf, np.float32)
    # The last axis holds the outputs; query, key and value have two such axes (heads, head size).
    is_projection = name.split("/")[-2] in ("query", "key", "value")
    inputs = (0,) if is_projection else tuple(range(values.ndim - 1))
    scale = np.abs(values).max(axis=inputs, keepdims=True) / _LEVELS
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.round(values / scale).astype(np.int8), scale


def dequantize(stored: Params) -> Params:
    """The parameters again. Without the barrier XLA would unpack them all while it compiles."""

    def restored(leaf: Any) -> Any:
        if not isinstance(leaf, tuple):
            return leaf
        values, scale = jax.lax.optimization_barrier(leaf)
        return values.astype(jnp.float32) * scale

    return jax.tree.map(restored, stored, is_leaf=lambda node: isinstance(node, tuple))
