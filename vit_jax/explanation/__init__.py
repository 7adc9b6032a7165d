"""Looking inside a trained model: what it attends to, what it looks for, what speaks for a class.

What is named here computes, and knows nothing of pictures. `image_pictures` and `model_pictures`
draw, and know nothing of models; `gallery` has both meet, `page` makes HTML of the result.
"""

from vit_jax.explanation.attention import attention_distance, attention_maps, rollout
from vit_jax.explanation.features import principal_colors
from vit_jax.explanation.filters import pixel_filters, principal_filters
from vit_jax.explanation.image import ImageExplanation, explain_image
from vit_jax.explanation.positions import position_embedding, position_similarity
from vit_jax.explanation.relevance import attention_relevance, integrated_gradients
from vit_jax.explanation.tokens import Tokens, reader_of, tokens_of

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
    "reader_of",
    "rollout",
    "tokens_of",
]
