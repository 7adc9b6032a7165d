"""Looking inside a trained model: what it attends to, what it looks for, what speaks for a class.

`numbers` computes arrays and draws nothing; `figures` draws arrays and knows no model. `gallery`
brings the two together, one row per picture, and `page` writes the result as PNG files and HTML.
"""

from vit_jax.explanation.numbers.attention import attention_distance, attention_maps, rollout
from vit_jax.explanation.numbers.features import principal_colors
from vit_jax.explanation.numbers.image import ImageExplanation, explain_image
from vit_jax.explanation.numbers.parameters import (
    pixel_filters,
    position_embedding,
    position_similarity,
    principal_filters,
)
from vit_jax.explanation.numbers.relevance import attention_relevance, integrated_gradients
from vit_jax.explanation.numbers.tokens import Tokens, readout_weights

__all__ = [
    "ImageExplanation",
    "Tokens",
    "attention_distance",
    "attention_maps",
    "attention_relevance",
    "explain_image",
    "integrated_gradients",
    "pixel_filters",
    "position_embedding",
    "position_similarity",
    "principal_colors",
    "principal_filters",
    "readout_weights",
    "rollout",
]
