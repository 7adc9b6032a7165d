"""All that can be told about one image, in one pass through the network and back."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.explanation.attention import attention_distance, attention_maps, rollout
from vit_jax.explanation.features import depths_shown
from vit_jax.explanation.relevance import (
    attention_relevance,
    class_score,
    integrated_gradients,
    speaking_for,
)
from vit_jax.explanation.tokens import Tokens, reader_of, tokens_of
from vit_jax.models import capture_with_gradients


class ImageExplanation(NamedTuple):
    """None where the model has no such thing; grids are `gh gw`, one number a patch."""

    features: list[Array]  # gh gw d at each of `depths_shown`
    attention_maps: Array | None = None  # l h gh gw
    pool_maps: Array | None = None  # h gh gw, of a MAP head's probe
    rollout: Array | None = None  # gh gw
    distances: Array | None = None  # l h, in pixels
    attention_relevance: Array | None = None  # gh gw, of a class
    integrated_gradients: Array | None = None  # gh gw, of a class


def explain_image(
    model: nn.Module, params: Any, image: Array, class_index: int | None
) -> ImageExplanation:
    """`image` is `h w c`, preprocessed. Without a class (a model without a head) no relevance."""
    image = jnp.asarray(image)
    index = None if class_index is None else jnp.int32(class_index)
    explanation = _explain(model, params, image, index)
    if index is not None:
        gradients = integrated_gradients(model, params, image, index)
        explanation = explanation._replace(integrated_gradients=gradients)
    return jax.tree.map(np.asarray, explanation)


# One program: the attention of all layers never leaves the device.
@partial(jax.jit, static_argnames="model")
def _explain(
    model: nn.Module, params: Any, image: Array, class_index: Array | None
) -> ImageExplanation:
    def score(outputs):
        return 0.0 if class_index is None else class_score(outputs, class_index)

    _, inside, gradients = capture_with_gradients(model, params, image[None], score)
    tokens = tokens_of(model, inside.patch_embedding.shape[1:3])
    features = _features(tokens, inside)
    if not inside.attention:
        return ImageExplanation(features)
    attention = jnp.concatenate(inside.attention)  # l h n n
    pool = inside.pool_attention[0] if inside.pool_attention is not None else None  # h 1 n
    reader = reader_of(tokens, pool)
    stride = [size / cells for size, cells in zip(image.shape, tokens.grid, strict=False)]
    explanation = ImageExplanation(
        features,
        attention_maps(attention, reader, tokens),
        None if pool is None else tokens.on_grid(pool[:, 0]),
        tokens.on_grid(reader @ rollout(attention)),
        attention_distance(attention, tokens, stride),
    )
    if class_index is None:
        return explanation
    relevance = attention_relevance(attention, jnp.concatenate(gradients.attention))
    if pool is not None:
        weight = speaking_for(pool, gradients.pool_attention[0])
        reader = reader_of(tokens, weight[None])
        relevance = relevance + jnp.eye(tokens.count)  # the probe sees each token itself, too
    return explanation._replace(attention_relevance=tokens.on_grid(reader @ relevance))


def _features(tokens: Tokens, inside) -> list[Array]:
    if not inside.blocks:
        return [inside.patch_embedding[0]]
    shown = [inside.blocks[depth - 1][0] for depth in depths_shown(len(inside.blocks))]
    return [block[tokens.patches].reshape(*tokens.grid, -1) for block in shown]
