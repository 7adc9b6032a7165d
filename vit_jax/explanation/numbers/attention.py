"""Attention as maps, rollout, distances and relevance for a class, for one image at a time.

Attention is `l h n n` (layers, heads, queries, keys): what `models.capture` returns, stacked.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.aliases import Size
from vit_jax.models import MlpMixer, Model
from vit_jax.models.vit import WITH_CLASS_TOKEN


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Leading tokens (class and distillation), then the grid row by row, then the registers."""

    num_leading: int
    grid: Size
    num_registers: int
    reads_all: bool = False  # the head sees the mean of leading tokens and patches

    @classmethod
    def for_model(cls, model: Model, grid: Size) -> "Tokens":
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


def attention_maps(attention: Array, readout: Array, tokens: Tokens) -> Array:  # l h gh gw
    """How much the tokens that the head reads look at each patch, per layer and head.

    With a class token that is the token's own row. A map sums to 1 minus the attention paid to
    tokens off the grid.
    """
    return tokens.on_grid(jnp.einsum("q,lhqk->lhk", readout, attention))


def rollout(attention: Array) -> Array:  # n n
    """How much of each input token (column) reaches each output token (row) through all layers.

    Attention rollout (Abnar & Zuidema 2020), as in figure 6 of the ViT paper: average the heads,
    average that with the identity for the residual connection, and multiply from the first layer
    to the last. Rows sum to 1.
    """
    identity = jnp.eye(attention.shape[-1])

    def through(reached: Array, layer: Array) -> tuple[Array, None]:
        return (layer.mean(0) + identity) / 2 @ reached, None

    return jax.lax.scan(through, identity, attention)[0]


def attention_relevance(attention: Array, gradients: Array) -> Array:  # l h n n -> n n
    """How much each input token (column) matters to each output token (row), for a class.

    Chefer, Gur & Wolf (2021): like rollout, but each weight counts by how much it speaks for the
    class (weight · gradient where positive, averaged over heads), and nothing is normalised. The
    identity it starts from is subtracted at the end: a token matters only through attention.
    """
    identity = jnp.eye(attention.shape[-1])

    def through(relevance: Array, layer: tuple[Array, Array]) -> tuple[Array, None]:
        return relevance + positive_evidence(*layer) @ relevance, None

    return jax.lax.scan(through, identity, (attention, gradients))[0] - identity


def positive_evidence(weights: Array, gradient: Array) -> Array:  # h q k -> q k
    return jax.nn.relu(weights * gradient).mean(0)


def attention_distance(
    attention: Array, tokens: Tokens, stride: tuple[float, float]
) -> Array:  # l h
    """Mean distance in pixels from a patch to the patches it looks at, weighted by attention.

    As in figure 7 of the ViT paper, measured between the centres of patches that lie `stride`
    (height, width) pixels apart. Attention to tokens off the grid is left out and the rest is
    renormalised, so that a strong class token does not look like a short distance.
    """
    among = attention[..., tokens.patches, tokens.patches]  # l h q k
    weighted = jnp.einsum("lhqk,qk->lhq", among, patch_distances(tokens.grid, stride))
    total = among.sum(-1).clip(jnp.finfo(jnp.float32).tiny)  # l h q
    return (weighted / total).mean(-1)


def patch_distances(grid: Size, stride: tuple[float, float]) -> np.ndarray:  # hw hw
    """Pixels between the centres of any two patches."""
    centres = np.indices(grid).reshape(2, -1).T * np.array(stride)
    return np.linalg.norm(centres[:, None] - centres[None], axis=-1)
