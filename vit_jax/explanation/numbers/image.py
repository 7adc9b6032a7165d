"""Everything there is to know about one image, in one pass through the network and back."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.explanation.numbers.attention import attention_distance, attention_maps, rollout
from vit_jax.explanation.numbers.features import depths_shown
from vit_jax.explanation.numbers.relevance import (
    attention_relevance,
    class_score,
    integrated_gradients,
    positive_evidence,
)
from vit_jax.explanation.numbers.tokens import Model, Tokens, readout_weights
from vit_jax.models import Intermediates, capture_with_gradients


class ImageExplanation(NamedTuple):
    """None where the model has no such thing. `gh gw` is the grid, one value per patch."""

    features: list[np.ndarray]  # gh gw d at each of `depths_shown`
    attention_maps: np.ndarray | None = None  # l h gh gw
    pool_maps: np.ndarray | None = None  # h gh gw, of a MAP head's probe
    rollout: np.ndarray | None = None  # gh gw
    distances: np.ndarray | None = None  # l h, in pixels
    attention_relevance: np.ndarray | None = None  # gh gw, for the class
    integrated_gradients: np.ndarray | None = None  # gh gw, for the class


def explain_image(
    model: Model, params: Mapping[str, Any], image: np.ndarray, class_index: int | None
) -> ImageExplanation:
    """`image` is `h w c`, preprocessed. Without a class (or a head) there is no relevance."""
    pixels = jnp.asarray(image)
    index = None if class_index is None else jnp.int32(class_index)
    found = _explain(model, params, pixels, index)
    if index is not None:
        found["integrated_gradients"] = integrated_gradients(model, params, pixels, index)
    return ImageExplanation(**jax.tree.map(np.asarray, found))


# One program: the attention of all layers never leaves the device.
@partial(jax.jit, static_argnames="model")
def _explain(
    model: Model, params: Mapping[str, Any], image: Array, class_index: Array | None
) -> dict[str, Any]:
    """The fields of `ImageExplanation`, but for integrated gradients."""

    def score(outputs: Array) -> Array:
        return jnp.zeros(()) if class_index is None else class_score(outputs, class_index)

    _, inside, gradients = capture_with_gradients(model, params, image[None], score)
    _, rows, columns, _ = inside.patch_embedding.shape
    tokens = Tokens.for_model(model, (rows, columns))
    found: dict[str, Any] = {"features": _features(tokens, inside)}
    if not inside.attention:
        return found
    attention = jnp.concatenate(cast(list[Array], inside.attention))  # l h n n
    pool = None if inside.pool_attention is None else inside.pool_attention[0]  # h 1 n
    readout = readout_weights(tokens, pool)
    stride = image.shape[0] / rows, image.shape[1] / columns
    found |= {
        "attention_maps": attention_maps(attention, readout, tokens),
        "pool_maps": None if pool is None else tokens.on_grid(pool[:, 0]),
        "rollout": tokens.on_grid(readout @ rollout(attention)),
        "distances": attention_distance(attention, tokens, stride),
    }
    if class_index is None:
        return found
    relevance = attention_relevance(attention, jnp.concatenate(gradients.attention))
    if pool is not None and gradients.pool_attention is not None:
        evidence = positive_evidence(pool, gradients.pool_attention[0])
        readout = readout_weights(tokens, evidence[None])
        relevance = relevance + jnp.eye(tokens.count)  # the probe also sees each token itself
    found["attention_relevance"] = tokens.on_grid(readout @ relevance)
    return found


def _features(tokens: Tokens, inside: Intermediates) -> list[Array]:
    if not inside.blocks:
        return [inside.patch_embedding[0]]
    blocks = cast(list[Array], inside.blocks)
    shown = [blocks[depth - 1][0] for depth in depths_shown(len(blocks))]
    return [block[tokens.patches].reshape(*tokens.grid, -1) for block in shown]
