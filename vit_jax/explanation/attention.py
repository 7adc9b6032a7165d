"""What attention shows: maps, rollout, distances. One image at a time.

Attention is `l h n n` (layers, heads, queries, keys), as `models.capture` gives it stacked.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.explanation.tokens import Tokens


def attention_maps(attention: Array, reader: Array, tokens: Tokens) -> Array:  # l h gh gw
    """How much the tokens that `reader` weighs look at each patch, per layer and head.

    For a class token that is its row; a map sums to 1 less what goes to tokens off the grid.
    """
    return tokens.on_grid(jnp.einsum("q,lhqk->lhk", reader, attention))


def rollout(attention: Array) -> Array:  # n n
    """How much of each input token (column) reaches each output token (row) through all layers.

    Attention rollout (Abnar & Zuidema 2020), as in figure 6 of the ViT paper: the mean over heads,
    half of it the identity for the residual connection, multiplied from the first layer to the
    last. Rows sum to 1.
    """
    identity = jnp.eye(attention.shape[-1])

    def through(reached, layer):
        return (layer.mean(0) + identity) / 2 @ reached, None

    return jax.lax.scan(through, identity, attention)[0]


def attention_distance(attention: Array, tokens: Tokens, stride: tuple[int, int]) -> Array:  # l h
    """Mean distance in pixels from a patch to the patches it looks at, weighted by how much.

    As figure 7 of the ViT paper, between the centres of patches that lie `stride` (height, width)
    pixels apart. What a patch gives to tokens off the grid is left out and the rest taken as the
    whole, so that a strong class token does not look like a short distance.
    """
    among = attention[..., tokens.patches, tokens.patches]  # l h q k
    weighted = jnp.einsum("lhqk,qk->lhq", among, patch_distances(tokens.grid, stride))
    total = among.sum(-1).clip(jnp.finfo(jnp.float32).tiny)  # l h q
    return (weighted / total).mean(-1)


def patch_distances(grid: tuple[int, int], stride: tuple[int, int]) -> np.ndarray:  # hw hw
    """Pixels between the centres of any two patches."""
    centres = np.stack(np.mgrid[: grid[0], : grid[1]], axis=-1).reshape(-1, 2) * np.array(stride)
    return np.linalg.norm(centres[:, None] - centres[None], axis=-1)
