"""Which pictures there are, what each says, and why a model may not have one."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn

from vit_jax.models import MlpMixer

Grid = tuple[int, int]


def why_no_attention(model: nn.Module, _: Grid) -> str | None:
    if isinstance(model, MlpMixer):
        return "a Mixer has no attention"
    return None if model.transformer is not None else "the model has no transformer"


def why_no_positions(model: nn.Module, grid: Grid) -> str | None:
    if isinstance(model, MlpMixer):
        return "a Mixer has no position embeddings"
    kinds = {
        "none": "the model has no position embeddings",
        "relative": "its positions are relative: biases of attention, no embeddings to compare",
    }
    return why_no_attention(model, grid) or kinds.get(model.position)


def why_no_features(_: nn.Module, grid: Grid) -> str | None:
    return "the grid is one patch, with none to compare it to" if grid == (1, 1) else None


def why_no_class(model: nn.Module, _: Grid) -> str | None:
    return None if model.num_classes else "the model has no head, so no classes"


class Picture(NamedTuple):
    title: str
    caption: str
    why_not: Callable[[nn.Module, Grid], str | None]  # None where the model has the picture


OF_AN_IMAGE = {
    "rollout": Picture(
        "Attention rollout",
        "Attention multiplied through all layers, residual connections included (Abnar & Zuidema "
        "2020; figure 6 of the ViT paper): how much of each patch arrives where the answer is "
        "read. It knows nothing of classes.",
        why_no_attention,
    ),
    "relevance": Picture(
        "Relevance for a class",
        "Left: attention weighted by how much it raises the score of the class (Chefer et al. "
        "2021). Right: what each patch adds to that score, compared with a gray image (integrated "
        "gradients, Sundararajan et al. 2017).",
        why_no_class,
    ),
    "attention": Picture(
        "Attention maps",
        "One map for each layer and head, each on a scale of its own.",
        why_no_attention,
    ),
    "features": Picture(
        "Features as colours",
        "The three main directions in which patches differ, found over all images together: a "
        "colour means the same in each of them at the same depth.",
        why_no_features,
    ),
}

OF_THE_MODEL = {
    "attention_distance": Picture(
        "Mean attention distance",
        "How far from a patch the patches lie that it looks at, weighted by attention; the mean "
        "over patches and images (figure 7, right, of the ViT paper).",
        why_no_attention,
    ),
    "position_similarity": Picture(
        "Position embeddings",
        "Each tile compares the position of one patch with those of all patches (figure 7, middle, "
        "of the ViT paper).",
        why_no_positions,
    ),
    "patch_filters": Picture(
        "Filters",
        "The directions in which the filters that meet the pixels differ most, with their share "
        "of the variance (figure 7, left, of the ViT paper).",
        lambda model, grid: None,
    ),
}


def missing_pictures(model: nn.Module, grid: Grid) -> dict[str, str]:
    """A line for each picture that a model cannot have, by the picture's name."""
    every = OF_AN_IMAGE | OF_THE_MODEL
    reasons = {name: picture.why_not(model, grid) for name, picture in every.items()}
    return {name: f"No {name}: {reason}." for name, reason in reasons.items() if reason}


def what_looks(model: nn.Module) -> str:
    """Whose attention the maps and rollout of a model show."""
    if model.distilled:
        return "the class and distillation tokens look at"
    return {
        "token": "the class token looks at",
        "token_unpooled": "the class token looks at",
        "map": "the patches look at, weighted as they are pooled",
    }.get(model.classifier, "the patches look at, on average")
