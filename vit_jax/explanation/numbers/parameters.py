"""What the parameters show without an image: figure 7 of the ViT paper, left and middle."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from sklearn.decomposition import PCA

from vit_jax.aliases import Params
from vit_jax.explanation.numbers.attention import Tokens
from vit_jax.models import VisionTransformer
from vit_jax.models.position import PositionEmbedding


class Filters(NamedTuple):
    components: np.ndarray  # k h w c, each of unit length, the strongest first
    explained: np.ndarray  # k: the share of the filters' variance along each


def pixel_filters(params: Params) -> np.ndarray:  # h w c d
    """The kernel applied to the pixels: the patch embedding, or a hybrid's first convolution.

    The latter is standardised, as the network uses it.
    """
    if "conv_root" in params:
        kernel = np.asarray(params["conv_root"]["kernel"])
        return (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2)).clip(1e-12)
    return np.asarray(params["embedding" if "embedding" in params else "stem"]["kernel"])


def principal_filters(kernel: np.ndarray, count: int = 28) -> Filters:
    """The directions in which the d filters of a kernel `h w c d` differ most; 28 in the paper."""
    filters = kernel.reshape(-1, kernel.shape[-1]).T  # d hwc
    pca = PCA(min(count, *filters.shape), svd_solver="full").fit(filters)
    components = np.asarray(pca.components_).reshape(-1, *kernel.shape[:3])
    return Filters(components, pca.explained_variance_ratio_)


def position_embedding(
    model: VisionTransformer, params: Params, tokens: Tokens
) -> np.ndarray:  # h w d
    """What the model adds to each patch for its position."""
    learned = params["Transformer"].get("posembed_input", {})
    embedding = PositionEmbedding(model.position, tokens.grid)
    zeros = jnp.zeros((1, tokens.patches.stop, model.hidden_size))  # registers have no position
    added = np.asarray(embedding.apply({"params": learned}, zeros))[0, tokens.patches]
    return added.reshape(*tokens.grid, -1)


def position_similarity(embedding: np.ndarray) -> np.ndarray:  # h w d -> h w h w
    """Cosine similarity: [i, j] is the map of how similar each position is to position (i, j)."""
    unit = embedding / np.linalg.norm(embedding, axis=-1, keepdims=True).clip(1e-12)
    return np.einsum("ijd,hwd->ijhw", unit, unit, optimize=True)
