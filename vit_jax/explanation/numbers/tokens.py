"""The tokens that attention runs over, and how much each counts in what the head sees."""

import dataclasses
import math

import jax.numpy as jnp
from jax import Array

from vit_jax.models import MlpMixer, VisionTransformer
from vit_jax.models.vit import WITH_CLASS_TOKEN

Model = VisionTransformer | MlpMixer


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Leading tokens (class and distillation), then the grid row by row, then the registers."""

    num_leading: int
    grid: tuple[int, int]
    num_registers: int
    reads_all: bool = False  # the head sees the mean of leading tokens and patches

    @classmethod
    def for_model(cls, model: Model, grid: tuple[int, int]) -> "Tokens":
        """For images that are cut into a grid of patches (height, width)."""
        if isinstance(model, MlpMixer):
            return cls(0, grid, 0)
        num_leading = (model.classifier in WITH_CLASS_TOKEN) + model.distilled
        return cls(num_leading, grid, model.num_registers, reads_all=model.classifier == "mean")

    @property
    def patches(self) -> slice:
        return slice(self.num_leading, self.num_leading + math.prod(self.grid))

    @property
    def count(self) -> int:
        return self.patches.stop + self.num_registers

    def on_grid(self, values: Array) -> Array:  # (…, n) -> (…, h, w)
        """Keeps the values of the patches, each in its place on the grid."""
        return values[..., self.patches].reshape(*values.shape[:-1], *self.grid)


def readout_weights(tokens: Tokens, pool_attention: Array | None = None) -> Array:  # n
    """How much each token counts in what the head sees; the weights sum to 1.

    A class token has all the weight; DeiT's two tokens have half each. Patches that are averaged,
    or scored one by one, have equal weights. A MAP head weighs patches by its probe's attention
    (`pool_attention`, h 1 n, without registers), averaged over heads.
    """
    if pool_attention is not None:
        weights = pool_attention.mean(0)[0]
        return jnp.pad(weights, (0, tokens.count - weights.shape[0]))
    num_read = tokens.num_leading or math.prod(tokens.grid)
    if tokens.reads_all:
        num_read = tokens.patches.stop
    return jnp.zeros(tokens.count).at[:num_read].set(1 / num_read)
