"""Attention maps, rollout and distances, for one image at a time.

Attention is `l h n n` (layers, heads, queries, keys): what `models.capture` returns, stacked.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.explanation.numbers.tokens import Tokens


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


def patch_distances(grid: tuple[int, int], stride: tuple[float, float]) -> np.ndarray:  # hw hw
    """Pixels between the centres of any two patches."""
    centres = np.indices(grid).reshape(2, -1).T * np.array(stride)
    return np.linalg.norm(centres[:, None] - centres[None], axis=-1)
