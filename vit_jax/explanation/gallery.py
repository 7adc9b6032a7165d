"""From explanations to figures: all pictures of a model and of the images it was shown."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
from matplotlib.figure import Figure

from vit_jax.explanation import image_pictures, model_pictures
from vit_jax.explanation.attention import patch_distances
from vit_jax.explanation.features import depths_shown, principal_colors
from vit_jax.explanation.filters import pixel_filters, principal_filters
from vit_jax.explanation.image import ImageExplanation
from vit_jax.explanation.pictures import what_looks
from vit_jax.explanation.positions import position_embedding, position_similarity
from vit_jax.explanation.tokens import tokens_of
from vit_jax.models import MlpMixer

Named = tuple[str, Figure]  # by the names in `pictures`


class Explained(NamedTuple):
    """An image, and what there is to tell about it."""

    name: str
    photo: np.ndarray  # what the model sees of it, 8-bit h w 3, at any resolution
    top: list[tuple[str, float]]  # class names and probabilities, the best first
    chosen: tuple[str, float] | None  # the class whose relevance is shown
    explanation: ImageExplanation


def feature_colors(explained: Sequence[Explained]) -> list[list[np.ndarray]]:
    """For each image its colours at every depth shown, found over all images together."""
    by_depth = zip(*(one.explanation.features for one in explained), strict=True)
    return [list(colors) for colors in zip(*map(principal_colors, by_depth), strict=True)]


def draw_image(
    model: nn.Module, one: Explained, colors: Sequence[np.ndarray], missing: Collection[str]
) -> Iterator[Named]:
    """All pictures of one image but those that are `missing`; `colors` are its `feature_colors`."""
    found = one.explanation
    if "rollout" not in missing:
        title = f"{one.name}: what {what_looks(model)}, through all layers"
        yield "rollout", image_pictures.draw_rollout(one.photo, found.rollout, title)
    if "relevance" not in missing:
        name, probability = one.chosen
        maps = found.attention_relevance, found.integrated_gradients
        title = f"{one.name}: what speaks for “{name}” ({probability:.1%})"
        yield "relevance", image_pictures.draw_relevance(one.photo, *maps, title)
    if "attention" not in missing:
        maps = found.attention_maps, found.pool_maps
        title = f"{one.name}: what {what_looks(model)}"
        yield "attention", image_pictures.draw_attention_maps(one.photo, *maps, title)
    if "features" not in missing:
        title = f"{one.name}: patches whose features are alike have like colours"
        depths = depths_shown(_num_layers(model)) or [0]
        yield "features", image_pictures.draw_features(one.photo, colors, depths, title)


def draw_model(
    model: nn.Module,
    params: Any,
    image_size: tuple[int, int],
    grid: tuple[int, int],
    explained: Sequence[Explained],
    missing: Collection[str],
) -> Iterator[Named]:
    """All pictures of the model but those that are `missing`."""
    if "attention_distance" not in missing:
        stride = [pixels / cells for pixels, cells in zip(image_size, grid, strict=True)]
        uniform = patch_distances(grid, stride).mean()
        mean = np.mean([one.explanation.distances for one in explained], axis=0)
        figure = model_pictures.draw_attention_distance(mean, uniform, len(explained))
        yield "attention_distance", figure
    if "position_similarity" not in missing:
        embedding = position_embedding(model, params, tokens_of(model, grid))
        similarity = position_similarity(embedding)
        yield "position_similarity", model_pictures.draw_position_similarity(similarity)
    what = "first convolution's filters" if "conv_root" in params else "patch filters"
    filters = principal_filters(pixel_filters(params))
    yield "patch_filters", model_pictures.draw_filters(filters, what)


def _num_layers(model: nn.Module) -> int:
    if isinstance(model, MlpMixer):
        return model.num_blocks
    return model.transformer["num_layers"] if model.transformer is not None else 0
