"""How tokens learn where they are: the kinds of position embedding.

`learned` is what the published checkpoints use. The other kinds follow the ablation of the ViT
paper (Dosovitskiy et al. 2021, appendix D.4) and sin-cos (Chen et al. 2021). Rescaling a loaded
grid to another resolution is the business of `vit_jax.checkpoint`.
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

KINDS = ("learned", "none", "learned2d", "sincos2d", "relative")

# as in the published models
_INIT = nn.initializers.normal(stddev=0.02)


class PositionEmbedding(nn.Module):
    """Adds a position to each token. `relative` adds nothing here: it biases the attention.

    The tokens are the class token, if there is one, then the grid row by row. `learned` has a row
    for the class token too, as published; the 2-D kinds skip it (it is a learned vector anyway).
    """

    kind: str
    grid: tuple[int, int]

    @nn.compact
    def __call__(self, x: Array) -> Array:  # x: b n d
        if self.kind in ("none", "relative"):
            return x
        if self.kind == "learned":
            table = self.param("pos_embedding", _INIT, (1, *x.shape[1:]))
            return x + table.astype(x.dtype)
        if self.kind == "learned2d":
            table = self._learned_2d(x.shape[-1])
        else:
            assert self.kind == "sincos2d", self.kind
            table = sincos_2d(*self.grid, x.shape[-1])
        num_extra = x.shape[1] - table.shape[0]
        return x + jnp.pad(table, ((num_extra, 0), (0, 0))).astype(x.dtype)

    def _learned_2d(self, width: int) -> Array:
        """Half of the channels encode the column (x), half the row (y)."""
        h, w = self.grid
        of_column = self.param("pos_embedding_x", _INIT, (w, width // 2))
        of_row = self.param("pos_embedding_y", _INIT, (h, width - width // 2))
        columns = jnp.broadcast_to(of_column[None, :], (h, w, width // 2))
        rows = jnp.broadcast_to(of_row[:, None], (h, w, width - width // 2))
        return jnp.concatenate([columns, rows], axis=-1).reshape(h * w, width)


def sincos_2d(h: int, w: int, width: int, temperature: float = 10_000.0) -> np.ndarray:
    """Fixed positions: sine and cosine of x, then y, at width/4 frequencies each. (h·w, width)"""
    if width % 4 or width < 8:
        raise ValueError(f"sincos2d positions need a width of 8, 12, 16, …, not {width}.")
    frequency = temperature ** -(np.arange(width // 4) / (width // 4 - 1))
    y, x = np.mgrid[:h, :w]
    x, y = x.reshape(-1, 1) * frequency, y.reshape(-1, 1) * frequency
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype(np.float32)


class RelativePositionBias(nn.Module):
    """A bias per head for each 2-D offset between two patches, added to the attention logits.

    Tokens that are not on the grid (class token, registers) share three biases per head: to a
    patch, from a patch, and among themselves.
    """

    grid: tuple[int, int]
    num_heads: int
    num_leading: int  # extra tokens before the grid
    num_trailing: int  # and after it

    @nn.compact
    def __call__(self) -> Array:  # 1 h n n
        h, w = self.grid
        offsets = self.param("offsets", _INIT, (2 * h - 1, 2 * w - 1, self.num_heads))
        table = offsets.reshape(-1, self.num_heads)
        index = offset_index(h, w)
        if self.num_leading or self.num_trailing:
            extra = self.param("extra", _INIT, (3, self.num_heads))
            base = table.shape[0]
            table = jnp.concatenate([table, extra])
            index = _with_extra_tokens(index, self.num_leading, self.num_trailing, base)
        return table[index].transpose(2, 0, 1)[None]


def offset_index(h: int, w: int) -> np.ndarray:
    """The index, among the (2h-1)(2w-1) offsets, of that from patch i to patch j. (h·w, h·w)"""
    row, column = (a.reshape(-1) for a in np.mgrid[:h, :w])
    down = row[None, :] - row[:, None] + h - 1
    right = column[None, :] - column[:, None] + w - 1
    return down * (2 * w - 1) + right


def _with_extra_tokens(index: np.ndarray, leading: int, trailing: int, base: int) -> np.ndarray:
    to_patch, from_patch, among = base, base + 1, base + 2
    n = index.shape[0]
    padded = np.full((leading + n + trailing,) * 2, among)
    patches = slice(leading, leading + n)
    padded[:, patches] = to_patch
    padded[patches, :] = from_patch
    padded[patches, patches] = index
    return padded
