"""Looking inside a trained model: what it attends to, what it looks for, what speaks for a class.

`numbers` computes arrays and draws nothing; `figures` draws arrays and knows no model. `gallery`
brings the two together, one row per picture, and `page` writes the result as PNG files and HTML.
"""

from vit_jax.explanation.numbers.attention import (
    Tokens,
    attention_distance,
    attention_maps,
    attention_relevance,
    readout_weights,
    rollout,
)
from vit_jax.explanation.numbers.image import (
    ImageExplanation,
    explain_image,
    integrated_gradients,
    principal_colors,
)
from vit_jax.explanation.numbers.parameters import (
    pixel_filters,
    position_embedding,
    position_similarity,
    principal_filters,
)

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
