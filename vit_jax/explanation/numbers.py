"""What is inside a model, as arrays. Nothing here draws.

First everything there is to know about one image, in one pass through the network and back; then
the functions of attention it is made of; then what the parameters show without an image. Attention
is `l h n n` (layers, heads, queries, keys): what `models.capture` returns for an image, stacked.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn.decomposition import PCA

from vit_jax.aliases import Params, Size
from vit_jax.models import MlpMixer, Model, VisionTransformer, capture, capture_with_gradients
from vit_jax.models.position import PositionEmbedding
from vit_jax.models.vit import WITH_CLASS_TOKEN

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


def attention_distance(attention: Array, tokens: Tokens, stride: tuple[float, float]) -> Array:
    """Mean distance `l h`, in pixels, from a patch to those it looks at, weighted by attention.

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


def pixel_filters(params: Params) -> np.ndarray:  # h w c d
    """The kernel applied to the pixels: the patch embedding, or a hybrid's first convolution.

    The latter is standardised, as the network uses it.
    """
    if "conv_root" in params:
        kernel = np.asarray(params["conv_root"]["kernel"])
        return (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2)).clip(1e-12)
    return np.asarray(params["embedding" if "embedding" in params else "stem"]["kernel"])


def principal_filters(kernel: np.ndarray, count: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """The directions in which the d filters of a kernel `h w c d` differ most; 28 in the paper.

    As `k h w c`, each of unit length, the strongest first; and the share of variance along each.
    """
    filters = kernel.reshape(-1, kernel.shape[-1]).T  # d hwc
    pca = PCA(min(count, *filters.shape), svd_solver="full").fit(filters)
    components = np.asarray(pca.components_).reshape(-1, *kernel.shape[:3])
    return components, pca.explained_variance_ratio_


def position_embedding(model: VisionTransformer, params: Params, tokens: Tokens) -> np.ndarray:
    """What the model adds to each patch for its position, `h w d`."""
    learned = params["Transformer"].get("posembed_input", {})
    embedding = PositionEmbedding(model.position, tokens.grid)
    zeros = jnp.zeros((1, tokens.patches.stop, model.hidden_size))  # registers have no position
    added = np.asarray(embedding.apply({"params": learned}, zeros))[0, tokens.patches]
    return added.reshape(*tokens.grid, -1)


def position_similarity(embedding: np.ndarray) -> np.ndarray:  # h w d -> h w h w
    """Cosine similarity: [i, j] is the map of how similar each position is to position (i, j)."""
    unit = embedding / np.linalg.norm(embedding, axis=-1, keepdims=True).clip(1e-12)
    return np.einsum("ijd,hwd->ijhw", unit, unit, optimize=True)
