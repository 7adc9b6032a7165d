"""Code for XLA:CPU alone: the same numbers, laid out for the products it computes fast.

docs/performance.md has the measurements behind each of these.
"""

import math
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from vit_jax.models.sharding import automatic_mesh, target_platform

# XLA:CPU runs one batched product on one core, so attention with at least PART_SIZE multiplications
# per head is computed as PARTS products side by side.
PARTS = min(8, os.cpu_count() or 1)
PART_SIZE = 2**20


def on_one_cpu() -> bool:
    """Whether the program being traced is for a CPU and not spread over a mesh."""
    return target_platform() == "cpu" and automatic_mesh() is None


def with_fast_gradient(kernel: Array, train: bool, num_inputs: int = 1) -> Array:
    """The same kernel, laid out in training so that its gradient uses XLA:CPU's fast product.

    XLA:CPU has a fast product for gᵀ·x but not for xᵀ·g, and rewrites one as the other unless a
    barrier stands between the product and its transpose.
    """
    if not train or not on_one_cpu():
        return kernel
    matrix = kernel.reshape(math.prod(kernel.shape[:num_inputs]), -1)
    return jax.lax.optimization_barrier(matrix.T).T.reshape(kernel.shape)


def attend_in_parts(
    attend: Callable[[Array, Array, Array], Array], q: Array, k: Array, v: Array
) -> Array:  # each b h n d
    """`attend` for a few heads at a time, side by side on the cores."""
    large = q.shape[2] * k.shape[2] * q.shape[3] >= PART_SIZE
    parts = min(PARTS, q.shape[1]) if large else 1
    split = zip(*(jnp.array_split(x, parts, axis=1) for x in (q, k, v)), strict=True)
    return jnp.concatenate([attend(*part) for part in split], axis=1)


def patches_as_rows(images: Array, patch_size: tuple[int, int]) -> Array:
    """b H W c to b h w (p·p·c), for a matrix product that equals the patch convolution."""
    b, height, width, c = images.shape
    ph, pw = patch_size
    x = images.reshape(b, height // ph, ph, width // pw, pw, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // ph, width // pw, ph * pw * c)
