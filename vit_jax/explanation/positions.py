"""How alike position embeddings are: figure 7 of the ViT paper, in the middle."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from vit_jax.explanation.tokens import Tokens
from vit_jax.models.position import PositionEmbedding


def position_embedding(
    model: nn.Module, params: Mapping[str, Any], tokens: Tokens
) -> np.ndarray:  # h w d
    """What the model adds to each patch for its place."""
    learned = params["Transformer"].get("posembed_input", {})
    embedding = PositionEmbedding(model.position, tokens.grid)
    zeros = jnp.zeros((1, tokens.patches.stop, model.hidden_size))  # registers have no position
    added = embedding.apply({"params": learned}, zeros)[0, tokens.patches]
    return np.asarray(added).reshape(*tokens.grid, -1)


def position_similarity(embedding: np.ndarray) -> np.ndarray:  # h w d -> h w h w
    """Cosine similarity: [i, j] is the picture of how alike all positions are to (i, j)'s."""
    unit = embedding / np.linalg.norm(embedding, axis=-1, keepdims=True).clip(1e-12)
    return np.einsum("ijd,hwd->ijhw", unit, unit, optimize=True)
