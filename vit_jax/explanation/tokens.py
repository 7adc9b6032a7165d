"""Which of a model's tokens are which, and which of them its answer is read from."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from vit_jax.models import MlpMixer


class Tokens(NamedTuple):
    """The tokens of attention: some in front (class tokens), the grid row by row, registers
    behind.
    """

    num_leading: int
    grid: tuple[int, int]
    num_registers: int

    @property
    def patches(self) -> slice:
        return slice(self.num_leading, self.num_leading + math.prod(self.grid))

    @property
    def count(self) -> int:
        return self.patches.stop + self.num_registers

    def on_grid(self, values: Array) -> Array:  # (…, n) -> (…, h, w)
        """The patches' share of numbers for all tokens, each in its place."""
        return values[..., self.patches].reshape(*values.shape[:-1], *self.grid)


def tokens_of(model: nn.Module, grid: tuple[int, int]) -> Tokens:
    """For images that are cut into a grid of patches (height, width)."""
    if isinstance(model, MlpMixer):
        return Tokens(0, grid, 0)
    has_class_token = model.classifier in ("token", "token_unpooled")
    return Tokens(has_class_token + model.distilled, grid, model.num_registers)


def reader_of(tokens: Tokens, pool_attention: Array | None = None) -> Array:  # n
    """How much each token counts in what the head sees; the numbers sum to 1.

    All of it is the class token's where there is one (half each for DeiT's two). Where patches are
    averaged, or have scores of their own, they count alike. A MAP head weighs them by its probe's
    attention (`pool_attention`, h 1 n; no registers), of which the mean over heads is taken.
    """
    if pool_attention is not None:
        weights = pool_attention.mean(0)[0]
        return jnp.pad(weights, (0, tokens.count - weights.shape[0]))
    num_read = tokens.num_leading or math.prod(tokens.grid)
    return jnp.zeros(tokens.count).at[:num_read].set(1 / num_read)
