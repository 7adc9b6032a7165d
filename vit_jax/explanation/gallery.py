"""Where numbers become figures: every picture, with what it shows and why a model may lack it.

The only module of explanations that knows both networks and figures.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from vit_jax.explanation.figures import image as image_figures
from vit_jax.explanation.figures import model as model_figures
from vit_jax.explanation.numbers.attention import patch_distances
from vit_jax.explanation.numbers.features import depths_shown, principal_colors
from vit_jax.explanation.numbers.image import ImageExplanation, explain_image
from vit_jax.explanation.numbers.parameters import (
    pixel_filters,
    position_embedding,
    position_similarity,
    principal_filters,
)
from vit_jax.explanation.numbers.tokens import Model, Tokens
from vit_jax.models import MlpMixer, VisionTransformer, num_layers, patch_stride

Size = tuple[int, int]  # height, width
_TOP = 5


class Exhibit(NamedTuple):
    """An image, and what the model makes of it."""

    name: str
    photo: np.ndarray  # what the model sees of the image, 8-bit h w 3, at any resolution
    top: list[tuple[str, float]]  # class names and probabilities, the best first
    chosen: tuple[str, float] | None  # the class whose relevance is shown
    numbers: ImageExplanation


def explain_photo(
    model: Model,
    params: Mapping[str, Any],
    image: np.ndarray,
    *,
    name: str,
    photo: np.ndarray,
    class_names: Sequence[str],
    probabilities: np.ndarray | None,
    class_index: int | None = None,
) -> Exhibit:
    """`image` is what the model takes, `photo` what people see. The default class is the likeliest.

    `probabilities` are `(…, k)`, averaged if the model scores every token; None without a head.
    """
    top, chosen = [], None
    if probabilities is not None:
        mean = probabilities.reshape(-1, len(class_names)).mean(0)
        named = list(zip(class_names, mean.tolist(), strict=True))
        best = np.argsort(-mean, kind="stable")[:_TOP]
        top = [named[index] for index in best]
        class_index = int(best[0]) if class_index is None else class_index
        chosen = named[class_index]
    return Exhibit(name, photo, top, chosen, explain_image(model, params, image, class_index))


@dataclasses.dataclass(frozen=True, eq=False)
class Gallery:
    """A model and the images it was shown."""

    model: Model
    params: Mapping[str, Any]
    grid: Size
    exhibits: Sequence[Exhibit]

    @property
    def missing(self) -> dict[str, str]:
        """By name, a sentence for each picture that the model cannot have."""
        return missing_pictures(self.model, self.grid)

    @property
    def facts(self) -> dict[str, str]:
        """What the model is, in a few words and numbers."""
        (rows, columns), (height, width) = self.grid, patch_stride(self.model)
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        heads = read_from = None
        if isinstance(self.model, VisionTransformer):
            heads = self.model.transformer and self.model.transformer["num_heads"]
            read_from = self.model.classifier
        known = {
            "model": self.model.model_name,
            "parameters": f"{count:,}",
            "image": f"{rows * height} × {columns * width}",
            "patches": f"{rows} × {columns}",
            "layers": num_layers(self.model),
            "heads": heads,
            "read from": read_from,
            "classes": self.model.num_classes,
        }
        return {name: str(value) for name, value in known.items() if value}

    @functools.cached_property
    def feature_colors(self) -> list[list[np.ndarray]]:
        """For each image its colours at every depth shown, found over all images together."""
        by_depth = zip(*(one.numbers.features for one in self.exhibits), strict=True)
        return [list(colors) for colors in zip(*map(principal_colors, by_depth), strict=True)]

    def draw_image(self, index: int) -> Iterator[tuple[str, Figure]]:
        """The pictures of one image, with their names in OF_AN_IMAGE."""
        return self._draw(OF_AN_IMAGE, index)

    def draw_model(self) -> Iterator[tuple[str, Figure]]:
        """The pictures of the model, with their names in OF_THE_MODEL."""
        return self._draw(OF_THE_MODEL)

    def _draw(self, pictures: Mapping[str, "Picture"], *index: int) -> Iterator[tuple[str, Figure]]:
        missing = self.missing
        for name, picture in pictures.items():
            if name not in missing:
                yield name, picture.draw(self, *index)


def missing_pictures(model: Model, grid: Size) -> dict[str, str]:
    """By name, a sentence for each picture that a model cannot have."""
    pictures = OF_AN_IMAGE | OF_THE_MODEL
    reasons = {name: picture.why_missing(model, grid) for name, picture in pictures.items()}
    return {name: f"No {name}: {reason}." for name, reason in reasons.items() if reason}


class Picture(NamedTuple):
    title: str
    caption: str
    draw: Callable[..., Figure]  # of a gallery and, in OF_AN_IMAGE, the index of an exhibit
    why_missing: Callable[[Model, Size], str | None]  # None where the model has the picture


def _rollout(gallery: Gallery, index: int) -> Figure:
    name, photo, _, _, numbers = gallery.exhibits[index]
    assert numbers.rollout is not None
    title = f"{name}: what {_who_looks(gallery.model)}, through all layers"
    return image_figures.draw_rollout(photo, numbers.rollout, title)


def _relevance(gallery: Gallery, index: int) -> Figure:
    name, photo, _, chosen, numbers = gallery.exhibits[index]
    assert chosen is not None and numbers.integrated_gradients is not None
    maps = numbers.attention_relevance, numbers.integrated_gradients
    title = f"{name}: what speaks for “{chosen[0]}” ({chosen[1]:.1%})"
    return image_figures.draw_relevance(photo, *maps, title)


def _attention(gallery: Gallery, index: int) -> Figure:
    name, photo, _, _, numbers = gallery.exhibits[index]
    assert numbers.attention_maps is not None
    title = f"{name}: what {_who_looks(gallery.model)}"
    maps = numbers.attention_maps, numbers.pool_maps
    return image_figures.draw_attention_maps(photo, *maps, title)


def _features(gallery: Gallery, index: int) -> Figure:
    name, photo, *_ = gallery.exhibits[index]
    title = f"{name}: patches whose features are alike have like colours"
    depths = depths_shown(num_layers(gallery.model)) or [0]
    return image_figures.draw_features(photo, gallery.feature_colors[index], depths, title)


def _attention_distance(gallery: Gallery) -> Figure:
    uniform = patch_distances(gallery.grid, patch_stride(gallery.model)).mean()
    every = [one.numbers.distances for one in gallery.exhibits]
    distances = np.mean([one for one in every if one is not None], axis=0)
    return model_figures.draw_attention_distance(distances, uniform, len(every))


def _position_similarity(gallery: Gallery) -> Figure:
    assert isinstance(gallery.model, VisionTransformer)
    tokens = Tokens.for_model(gallery.model, gallery.grid)
    embedding = position_embedding(gallery.model, gallery.params, tokens)
    return model_figures.draw_position_similarity(position_similarity(embedding))


def _patch_filters(gallery: Gallery) -> Figure:
    is_hybrid = "conv_root" in gallery.params
    name = "first convolution's filters" if is_hybrid else "patch filters"
    return model_figures.draw_filters(*principal_filters(pixel_filters(gallery.params)), name)


def _no_attention(model: Model, _: Size) -> str | None:
    if isinstance(model, MlpMixer):
        return "a Mixer has no attention"
    return None if model.transformer is not None else "the model has no transformer"


def _no_positions(model: Model, grid: Size) -> str | None:
    if isinstance(model, MlpMixer):
        return "a Mixer has no position embeddings"
    kinds = {
        "none": "the model has no position embeddings",
        "relative": "its positions are relative: biases on attention, not embeddings to compare",
    }
    return _no_attention(model, grid) or kinds.get(model.position)


def _no_features(_: Model, grid: Size) -> str | None:
    return "the grid is a single patch, with none to compare it with" if grid == (1, 1) else None


def _no_class(model: Model, _: Size) -> str | None:
    return None if model.num_classes else "the model has no head and so no classes"


def _who_looks(model: Model) -> str:
    """Whose attention the maps and the rollout of a model show."""
    assert isinstance(model, VisionTransformer)
    if model.distilled:
        return "the class and distillation tokens look at"
    return {
        "token": "the class token looks at",
        "token_unpooled": "the class token looks at",
        "map": "the patches look at, weighted as they are pooled",
    }.get(model.classifier, "the patches look at, on average")


OF_AN_IMAGE = {
    "rollout": Picture(
        "Attention rollout",
        "Attention multiplied through all layers, residual connections included (Abnar & Zuidema "
        "2020; figure 6 of the ViT paper): how much of each patch reaches the tokens that the "
        "answer is read from. It does not depend on a class.",
        _rollout,
        _no_attention,
    ),
    "relevance": Picture(
        "Relevance for a class",
        "Left: attention weighted by how much it raises the score of the class (Chefer et al. "
        "2021). Right: what each patch adds to that score, compared with a gray image (integrated "
        "gradients, Sundararajan et al. 2017).",
        _relevance,
        _no_class,
    ),
    "attention": Picture(
        "Attention maps",
        "One map per layer and head, each with its own scale.",
        _attention,
        _no_attention,
    ),
    "features": Picture(
        "Features as colours",
        "The three main directions in which patches differ, found over all images together: at "
        "any one depth, a colour means the same in every image.",
        _features,
        _no_features,
    ),
}

OF_THE_MODEL = {
    "attention_distance": Picture(
        "Mean attention distance",
        "How far away the patches are that a patch looks at, weighted by attention and averaged "
        "over patches and images (figure 7, right, of the ViT paper).",
        _attention_distance,
        _no_attention,
    ),
    "position_similarity": Picture(
        "Position embeddings",
        "Each tile compares the position embedding of one patch with those of all patches (figure "
        "7, middle, of the ViT paper).",
        _position_similarity,
        _no_positions,
    ),
    "patch_filters": Picture(
        "Filters",
        "The directions in which the filters applied to the pixels differ most, each with its "
        "share of the variance (figure 7, left, of the ViT paper).",
        _patch_filters,
        lambda model, grid: None,
    ),
}
