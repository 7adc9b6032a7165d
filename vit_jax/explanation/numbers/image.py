"""Everything there is to know about one image, in one pass through the network and back."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn.decomposition import PCA

from vit_jax.aliases import Params
from vit_jax.explanation.numbers import attention as of_attention
from vit_jax.explanation.numbers.attention import Tokens, readout_weights
from vit_jax.models import Model, capture, capture_with_gradients

NUM_COLORS = 3
NUM_STEPS = 32  # points along the path of integrated gradients


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
    model: Model, params: Params, image: np.ndarray, class_index: int | None
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
    model: Model, params: Params, image: Array, class_index: Array | None
) -> dict[str, Any]:
    """The fields of `ImageExplanation`, but for integrated gradients."""

    def score(outputs: Array) -> Array:
        return jnp.zeros(()) if class_index is None else class_score(outputs, class_index)

    _, inside, gradients = capture_with_gradients(model, params, image[None], score)
    _, rows, columns, _ = inside.patch_embedding.shape
    tokens = Tokens.for_model(model, (rows, columns))
    blocks = cast(list[Array], inside.blocks)
    shown = [blocks[depth - 1][0, tokens.patches] for depth in depths_shown(len(blocks))]
    features = [block.reshape(rows, columns, -1) for block in shown]
    found: dict[str, Any] = {"features": features or [inside.patch_embedding[0]]}
    if not inside.attention:
        return found
    attention = jnp.concatenate(cast(list[Array], inside.attention))  # l h n n
    pool = None if inside.pool_attention is None else inside.pool_attention[0]  # h 1 n
    readout = readout_weights(tokens, pool)
    stride = image.shape[0] / rows, image.shape[1] / columns
    found |= {
        "attention_maps": of_attention.attention_maps(attention, readout, tokens),
        "pool_maps": None if pool is None else tokens.on_grid(pool[:, 0]),
        "rollout": tokens.on_grid(readout @ of_attention.rollout(attention)),
        "distances": of_attention.attention_distance(attention, tokens, stride),
    }
    if class_index is None:
        return found
    relevance = of_attention.attention_relevance(attention, jnp.concatenate(gradients.attention))
    if pool is not None and gradients.pool_attention is not None:
        evidence = of_attention.positive_evidence(pool, gradients.pool_attention[0])
        readout = readout_weights(tokens, evidence[None])
        relevance = relevance + jnp.eye(tokens.count)  # the probe also sees each token itself
    found["attention_relevance"] = tokens.on_grid(readout @ relevance)
    return found


def class_score(outputs: Array, class_index: int | Array) -> Array:
    """The score of a class, averaged over tokens where the model does not pool them."""
    return outputs[..., class_index].mean()


@partial(jax.jit, static_argnames="model")
def integrated_gradients(
    model: Model, params: Params, image: Array, class_index: int | Array
) -> Array:  # H W c -> gh gw
    """What each patch adds to the score of a class, compared with an image of zeros (gray).

    Sundararajan, Taly & Yan (2017), along the line between the patch embeddings of the two images;
    without a ResNet that is the line between the images themselves. The patches sum to
    score(image) - score(gray), as closely as NUM_STEPS points resolve the line; negative values
    speak against the class.
    """
    both = jnp.stack([jnp.zeros_like(image), image])
    gray, given = capture(model, params, both, blocks=())[1].patch_embedding

    def score(embedding: Array) -> Array:
        variables = {"params": params, "perturbations": {"patch_embedding": embedding - given}}
        outputs = model.apply(variables, image[None], train=False)
        return class_score(cast(Array, outputs), class_index)

    def accumulate(total: Array, step: Array) -> tuple[Array, None]:
        place, weight = step
        return total + weight * jax.grad(score)(gray + place * (given - gray)), None

    roots, weights = np.polynomial.legendre.leggauss(NUM_STEPS)  # on -1…1
    roots = (roots + 1) / 2
    # Squared, so that points crowd near gray, where the score of a trained model rises.
    steps = jnp.asarray([roots**2, roots * weights], given.dtype).T
    mean_gradient, _ = jax.lax.scan(accumulate, jnp.zeros_like(given), steps)
    return ((given - gray) * mean_gradient).sum(-1)


def depths_shown(num_layers: int) -> list[int]:
    """The blocks (counted from 1) after which features are shown: the last of each quarter."""
    return sorted({round(num_layers * quarter / 4) for quarter in range(1, 5)} - {0})


def principal_colors(features: Sequence[np.ndarray]) -> list[np.ndarray]:  # h w d -> h w 3 each
    """The three main directions in which patches differ, each stretched to 0…1.

    Found over all images together, so that a colour means the same in each. Every feature vector is
    first brought to zero mean and unit deviation, as the network's last LayerNorm does; otherwise
    a few patches with huge features would take the components for themselves.
    """
    flat = np.concatenate([image.reshape(-1, image.shape[-1]) for image in features])
    flat = flat - flat.mean(1, keepdims=True)
    flat = flat / flat.std(1, keepdims=True).clip(1e-6)
    count = min(NUM_COLORS, *flat.shape)
    projected = PCA(count, svd_solver="full").fit_transform(flat)
    low, high = np.percentile(projected, [1, 99], axis=0)
    reach = (high - low).clip(1e-4 * (high - low).max() + 1e-12)  # rounding errors stay unseen
    spread = (0.5 + (projected - (low + high) / 2) / reach).clip(0, 1)
    spread = np.pad(spread, ((0, 0), (0, NUM_COLORS - count)), constant_values=0.5)
    shapes = [(*image.shape[:2], NUM_COLORS) for image in features]
    ends = np.cumsum([height * width for height, width, _ in shapes])[:-1]
    return [
        part.reshape(*shape) for part, shape in zip(np.split(spread, ends), shapes, strict=True)
    ]
