"""Where numbers become figures, and figures a page: every picture, and why a model may lack it.

The only module of explanations that knows both networks and figures. It writes one PNG per picture,
and an HTML page that holds them all in one file.
"""

import base64
import dataclasses
import functools
import html
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from vit_jax.aliases import Params, Size
from vit_jax.atomic import replacing
from vit_jax.explanation import figures, numbers
from vit_jax.explanation.numbers import ImageExplanation, Tokens
from vit_jax.models import MlpMixer, Model, VisionTransformer, num_layers, patch_stride
from vit_jax.printable import printable

TEMPLATE = Path(__file__).with_name("page.html")
_TOP = 5  # classes
_LONGEST = 200  # bytes of a stem
Drawn = Iterator[tuple[str, Figure]]  # by the names in PICTURES

PICTURES = {  # by the names of their files: title and caption
    "rollout": (
        "Attention rollout",
        "Attention multiplied through all layers, residual connections included (Abnar & Zuidema "
        "2020; figure 6 of the ViT paper): how much of each patch reaches the tokens that the "
        "answer is read from. It does not depend on a class.",
    ),
    "relevance": (
        "Relevance for a class",
        "Left: attention weighted by how much it raises the score of the class (Chefer et al. "
        "2021). Right: what each patch adds to that score, compared with a gray image (integrated "
        "gradients, Sundararajan et al. 2017).",
    ),
    "attention": ("Attention maps", "One map per layer and head, each with its own scale."),
    "features": (
        "Features as colours",
        "The three main directions in which patches differ, found over all images together: at "
        "any one depth, a colour means the same in every image.",
    ),
    "attention_distance": (
        "Mean attention distance",
        "How far away the patches are that a patch looks at, weighted by attention and averaged "
        "over patches and images (figure 7, right, of the ViT paper).",
    ),
    "position_similarity": (
        "Position embeddings",
        "Each tile compares the position embedding of one patch with those of all patches (figure "
        "7, middle, of the ViT paper).",
    ),
    "patch_filters": (
        "Filters",
        "The directions in which the filters applied to the pixels differ most, each with its "
        "share of the variance (figure 7, left, of the ViT paper).",
    ),
}


class Exhibit(NamedTuple):
    """An image, and what the model makes of it."""

    name: str
    photo: np.ndarray  # what the model sees of the image, 8-bit h w 3, at any resolution
    probabilities: Sequence[tuple[str, float]]  # class name and probability; empty without a head
    class_index: int | None  # the class whose relevance is shown
    found: ImageExplanation


@dataclasses.dataclass(frozen=True, eq=False)
class Gallery:
    """A model and the images it was shown. Pictures that the model cannot have are left out."""

    model: Model
    params: Params
    grid: Size
    exhibits: Sequence[Exhibit]

    @property
    def facts(self) -> dict[str, str]:
        """What the model is, in a few words and numbers."""
        (rows, columns), (height, width) = self.grid, patch_stride(self.model)
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        vit = self.model if isinstance(self.model, VisionTransformer) else None
        known = {
            "model": self.model.model_name,
            "parameters": f"{count:,}",
            "image": f"{rows * height} × {columns * width}",
            "patches": f"{rows} × {columns}",
            "layers": num_layers(self.model),
            "heads": vit and vit.transformer and vit.transformer["num_heads"],
            "read from": vit and vit.classifier,
            "classes": self.model.num_classes,
        }
        return {name: str(value) for name, value in known.items() if value}

    @property
    def missing(self) -> dict[str, str]:
        """By name, a sentence for each picture that the model cannot have."""
        no_attention = no_positions = None
        if isinstance(self.model, MlpMixer):
            no_attention = "a Mixer has no attention"
            no_positions = "a Mixer has no position embeddings"
        elif self.model.transformer is None:
            no_attention = no_positions = "the model has no transformer"
        elif self.model.position == "none":
            no_positions = "the model has no position embeddings"
        elif self.model.position == "relative":
            no_positions = (
                "its positions are relative: biases on attention, not embeddings to compare"
            )
        no_class = None if self.model.num_classes else "the model has no head and so no classes"
        alone = "the grid is a single patch, with none to compare it with"
        reasons = {
            "rollout": no_attention,
            "relevance": no_class,
            "attention": no_attention,
            "features": alone if self.grid == (1, 1) else None,
            "attention_distance": no_attention,
            "position_similarity": no_positions,
        }
        return {name: f"No {name}: {reason}." for name, reason in reasons.items() if reason}

    @functools.cached_property
    def feature_colors(self) -> list[list[np.ndarray]]:
        """For each image its colours at every depth shown, found over all images together."""
        by_depth = zip(*(one.found.features for one in self.exhibits), strict=True)
        colors = map(numbers.principal_colors, by_depth)
        return [list(of_image) for of_image in zip(*colors, strict=True)]

    def draw_image(self, index: int) -> Drawn:
        name, photo, probabilities, class_index, found = self.exhibits[index]
        looks = f"{name}: what {self._who_looks(found)}"
        if found.rollout is not None:
            title = f"{looks}, through all layers"
            yield "rollout", figures.draw_rollout(photo, found.rollout, title)
        if class_index is not None and found.integrated_gradients is not None:
            class_name, probability = probabilities[class_index]
            title = f"{name}: what speaks for “{class_name}” ({probability:.1%})"
            maps = found.attention_relevance, found.integrated_gradients
            yield "relevance", figures.draw_relevance(photo, *maps, title)
        if found.attention_maps is not None:
            maps = found.attention_maps, found.pool_maps
            yield "attention", figures.draw_attention_maps(photo, *maps, looks)
        if "features" not in self.missing:
            title = f"{name}: patches whose features are alike have like colours"
            depths = numbers.depths_shown(num_layers(self.model)) or [0]
            colors = self.feature_colors[index]
            yield "features", figures.draw_features(photo, colors, depths, title)

    def draw_model(self) -> Drawn:
        model, params = self.model, self.params
        distances = [one.found.distances for one in self.exhibits]
        if known := [one for one in distances if one is not None]:
            uniform = numbers.patch_distances(self.grid, patch_stride(model)).mean()
            mean = np.mean(known, axis=0)
            yield "attention_distance", figures.draw_attention_distance(mean, uniform, len(known))
        if isinstance(model, VisionTransformer) and "position_similarity" not in self.missing:
            tokens = Tokens.for_model(model, self.grid)
            embedding = numbers.position_embedding(model, params, tokens)
            similarity = numbers.position_similarity(embedding)
            yield "position_similarity", figures.draw_position_similarity(similarity)
        name = "first convolution's filters" if "conv_root" in params else "patch filters"
        filters = numbers.principal_filters(numbers.pixel_filters(params))
        yield "patch_filters", figures.draw_filters(*filters, name)

    def _who_looks(self, found: ImageExplanation) -> str:
        """Whose attention the maps and the rollout show."""
        tokens = Tokens.for_model(self.model, self.grid)
        if tokens.reads_all:
            return "the class token and the patches look at, on average"
        patches = "on average" if found.pool_maps is None else "weighted as they are pooled"
        return (
            f"the patches look at, {patches}",
            "the class token looks at",
            "the class and distillation tokens look at",
        )[tokens.num_leading]


def write(directory: Path, gallery: Gallery, title: str) -> None:
    """Draws and writes one picture after another, then index.html, and prints each path."""
    stems = unique_stems([one.name for one in gallery.exhibits])
    contents = images = ""
    for number, (one, stem) in enumerate(zip(gallery.exhibits, stems, strict=True)):
        pictures = _write_figures(directory, gallery.draw_image(number), one.name, f"{stem}_")
        bars = "".join(
            f"<li><span class=bar style='width:{100 * probability:.2f}%'></span>"
            f"<span class=name>{html.escape(name)}</span><span>{probability:.1%}</span></li>"
            for name, probability in sorted(one.probabilities, key=lambda pair: -pair[1])[:_TOP]
        )
        name = html.escape(one.name)
        contents += f'<a href="#image{number}">{name}</a>'
        images += f"<section id=image{number}><h2>{name}</h2>"
        images += f"<ol class=top>{bars}</ol>{pictures}</section>"
    page = string.Template(TEMPLATE.read_text("utf-8")).substitute(
        title=html.escape(title),
        facts="".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in gallery.facts.items()
        ),
        missing="".join(
            f"<p class=missing>{html.escape(line)}</p>" for line in gallery.missing.values()
        ),
        contents=contents,
        images=images,
        model=_write_figures(directory, gallery.draw_model(), "the model"),
    )
    _write(directory / "index.html", page.encode())


def unique_stems(names: Sequence[str]) -> list[str]:
    """File names without their endings, numbered where two would be the same.

    The longest, of 255 bytes, are cut: the names of pictures are longer.
    """
    stems: list[str] = []
    for name in names:
        short = Path(name).stem.encode()[:_LONGEST].decode(errors="ignore")
        stem, number = short, 2
        while stem in stems:
            stem, number = f"{short}-{number}", number + 1
        stems.append(stem)
    return stems


def _write_figures(directory: Path, drawn: Drawn, subject: str, prefix: str = "") -> str:
    """Writes the figures as files, and returns them as HTML that needs no files."""
    text = ""
    for name, figure in drawn:
        png = figures.as_png(figure)
        _write(directory / f"{prefix}{name}.png", png)
        title, caption = map(html.escape, PICTURES[name])
        text += (
            f'<figure><h3>{title}</h3><img loading=lazy alt="{title} of {html.escape(subject)}"'
            f' src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return text


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(content)
    print(printable(path))
