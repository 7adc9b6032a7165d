"""Looking inside a trained model: what it attends to, what it looks for, what speaks for a class.

`numbers` computes arrays and draws nothing; `figures` draws arrays and knows no model. `page`
brings the two together, and writes the result as PNG files and HTML.
"""

from vit_jax.explanation.numbers import ImageExplanation as ImageExplanation
from vit_jax.explanation.numbers import Tokens as Tokens
from vit_jax.explanation.numbers import attention_distance as attention_distance
from vit_jax.explanation.numbers import attention_maps as attention_maps
from vit_jax.explanation.numbers import attention_relevance as attention_relevance
from vit_jax.explanation.numbers import explain_image as explain_image
from vit_jax.explanation.numbers import integrated_gradients as integrated_gradients
from vit_jax.explanation.numbers import pixel_filters as pixel_filters
from vit_jax.explanation.numbers import position_embedding as position_embedding
from vit_jax.explanation.numbers import position_similarity as position_similarity
from vit_jax.explanation.numbers import principal_colors as principal_colors
from vit_jax.explanation.numbers import principal_filters as principal_filters
from vit_jax.explanation.numbers import readout_weights as readout_weights
from vit_jax.explanation.numbers import rollout as rollout
