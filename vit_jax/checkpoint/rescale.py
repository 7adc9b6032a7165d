"""Fitting weights to another resolution or patch size: position grids and patch kernels.

A resize is separable and linear, so each convention is one function from (old, new) to the matrix
that resizes one axis. Conventions differ in where they put the samples and how they weigh them; a
checkpoint should be rescaled the way its own library would do it.
"""

import math
from collections.abc import Callable

import numpy as np

from vit_jax.aliases import Size
from vit_jax.models.kinds import square


def rescale_grid(
    posemb: np.ndarray,
    old_grid: Size,
    new_grid: Size,
    *,
    num_extra_tokens: int = 0,
    convention: str = "google",
) -> np.ndarray:
    """Resizes the grid rows of a position embedding (1, extra + h·w, d); keeps the extra rows."""
    posemb = np.asarray(posemb)
    num_rows = num_extra_tokens + math.prod(old_grid)
    if posemb.ndim != 3 or posemb.shape[1] != num_rows:
        raise ValueError(
            f"A {old_grid[0]}×{old_grid[1]} grid with {num_extra_tokens} extra tokens has "
            f"{num_rows} position rows, but the embedding has shape {posemb.shape}."
        )
    if tuple(old_grid) == tuple(new_grid):
        return posemb
    extra, grid = posemb[0, :num_extra_tokens], posemb[0, num_extra_tokens:]
    grid = resize(grid.reshape(*old_grid, -1), new_grid, convention)
    return np.concatenate([extra, grid.reshape(-1, grid.shape[-1])]).astype(posemb.dtype)[None]


def interpolate_posembed(posemb: np.ndarray, num_tokens: int, has_class_token: bool) -> np.ndarray:
    """The reference's function: square grids, corner-aligned linear. `num_tokens` counts the class
    token.
    """
    num_extra = int(has_class_token)
    old = _square_grid(posemb.shape[1] - num_extra)
    new = _square_grid(num_tokens - num_extra)
    return rescale_grid(posemb, old, new, num_extra_tokens=num_extra)


def _square_grid(num_patches: int) -> Size:
    if (grid := square(num_patches)) is None:
        raise ValueError(
            f"{num_patches} patches are not a square grid; give the grid as (height, width)."
        )
    return grid


def resize_patch_kernel(kernel: np.ndarray, patch_size: Size) -> np.ndarray:
    """FlexiViT's pseudo-inverse resize of a patch kernel (h, w, c, d) (Beyer et al. 2023).

    A resized patch gets the same embedding from the new kernel as the patch got from the old one:
    exactly for larger patches, in the least-squares sense for smaller ones.
    """
    old_size, (channels, width) = kernel.shape[:2], kernel.shape[2:]
    if old_size == tuple(patch_size):
        return kernel
    rows, columns = (_linear(old, new) for old, new in zip(old_size, patch_size, strict=True))
    to_new = np.linalg.pinv(np.kron(rows, columns).T)  # new pixels × old pixels
    flat = kernel.reshape(math.prod(old_size), channels * width).astype(np.float64)
    return (to_new @ flat).reshape(*patch_size, channels, width).astype(kernel.dtype)


def resize(grid: np.ndarray, new_size: Size, convention: str) -> np.ndarray:
    """Resizes (h, w, d) to (*new_size, d)."""
    if convention not in CONVENTIONS:
        raise ValueError(f"No resize convention {convention!r}; choose {', '.join(CONVENTIONS)}.")
    matrix = CONVENTIONS[convention]
    rows, columns = (matrix(old, new) for old, new in zip(grid.shape[:2], new_size, strict=True))
    return np.einsum("ih,jw,hwd->ijd", rows, columns, grid.astype(np.float64), optimize=True)


def _google(old: int, new: int) -> np.ndarray:
    """Linear between samples, first on first and last on last (scipy.ndimage.zoom with order=1)."""
    return _gather(np.linspace(0, old - 1, new) if new > 1 else np.zeros(1), old, _triangle, 1)


def _linear(old: int, new: int) -> np.ndarray:
    """Linear between pixel centres, no antialiasing (torch bilinear, align_corners=False)."""
    return _gather(_centres(old, new), old, _triangle, 1)


def _torch_bicubic(old: int, new: int) -> np.ndarray:
    """Cubic with a = -0.75, no antialiasing, the border repeated (Hugging Face, DINO)."""
    return _gather(_centres(old, new), old, lambda x: _cubic(x, -0.75), 2)


def _cubic_antialias(old: int, new: int) -> np.ndarray:
    """Cubic with a = -0.5, stretched when it shrinks, cut off at the border (timm)."""
    stretch = max(1.0, old / new)
    distance = (np.arange(old)[None, :] - _centres(old, new)[:, None]) / stretch
    weights = _cubic(distance, -0.5)
    return weights / weights.sum(axis=1, keepdims=True)


def _centres(old: int, new: int) -> np.ndarray:
    return (np.arange(new) + 0.5) * old / new - 0.5


def _gather(
    positions: np.ndarray, old: int, kernel: Callable[[np.ndarray], np.ndarray], reach: int
) -> np.ndarray:
    """Weights of the samples within `reach` of each position; the border is repeated beyond it."""
    matrix = np.zeros((len(positions), old))
    first = np.floor(positions).astype(int)
    for tap in range(1 - reach, 1 + reach):
        index = first + tap
        np.add.at(
            matrix, (np.arange(len(positions)), index.clip(0, old - 1)), kernel(positions - index)
        )
    return matrix


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(x))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


CONVENTIONS = {
    "google": _google,
    "linear": _linear,
    "cubic_antialias": _cubic_antialias,
    "torch_bicubic": _torch_bicubic,
}
