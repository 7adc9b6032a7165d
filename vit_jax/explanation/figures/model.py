"""Figures of a model as a whole: figure 7 of the ViT paper."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from vit_jax.explanation.figures import primitives

_FILTER_COLUMNS = 7
_MOST_TILES = 16  # per side, in the figure of positions


def draw_attention_distance(distances: np.ndarray, uniform: float, num_images: int) -> Figure:
    """`distances` are `l h` in pixels; `uniform` is the distance of uniform attention."""
    num_layers, num_heads = distances.shape
    figure = primitives.new_figure(5.2, 3.6)
    axes = figure.subplots()
    layers = np.arange(1, num_layers + 1)
    points = np.repeat(layers, num_heads), distances.reshape(-1)
    axes.scatter(*points, s=24, color=primitives.BLUE, alpha=0.75, lw=0, label="a head", zorder=3)
    line = {"color": primitives.ORANGE, "lw": 1.5, "label": "mean of the heads"}
    axes.plot(layers, distances.mean(1), **line, zorder=2)
    axes.axhline(uniform, color=primitives.GRAY, lw=1, ls="--", label="attention to all alike")
    axes.set_xlabel("Network depth (layer)")
    axes.set_ylabel("Mean attention distance (pixels)")
    axes.set_ylim(0, 1.08 * max(uniform, distances.max()))
    axes.set_xlim(0.4, num_layers + 0.6)
    axes.xaxis.set_major_locator(MultipleLocator(math.ceil(num_layers / 16)))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    images = "1 image" if num_images == 1 else f"{num_images} images"
    axes.set_title(f"How far attention looks, over {images}", fontsize=11)
    return figure


def draw_position_similarity(similarity: np.ndarray) -> Figure:  # h w h w
    """One tile per position; of a large grid, only every second, third, … row and column."""
    h, w = similarity.shape[:2]
    rows, columns = (range(0, size, math.ceil(size / _MOST_TILES)) for size in (h, w))
    tiles = similarity[np.ix_(rows, columns)]
    # Tiles have the shape of the grid, and the longer side of the whole is seven inches.
    inches = 7 / max(len(rows) * h, len(columns) * w)
    figure = primitives.new_figure(
        max(3.2, inches * len(columns) * w) + 1.4, max(2.2, inches * len(rows) * h) + 0.9
    )
    axes = figure.subplots()
    names = [[str(index + 1) for index in indices] for indices in (columns, rows)]
    picture = primitives.show_mosaic(axes, tiles, *names, lowest=-1)
    axes.set_xlabel("Patch column")
    axes.set_ylabel("Patch row")
    primitives.add_scale(figure, picture, axes, "cosine similarity")
    axes.set_title("Similarity of position embeddings", fontsize=11)
    return figure


def draw_filters(components: np.ndarray, explained: np.ndarray, name: str) -> Figure:
    """`components` are `k h w c`, shown around middle gray above the variance that each explains.

    `name` says whose components they are, in the title.
    """
    count, h, w, channels = components.shape
    if channels not in (1, 3):
        components = components.mean(-1, keepdims=True)
    largest = np.abs(components).max((1, 2, 3), keepdims=True)
    colors = 0.5 + 0.5 * components / np.maximum(largest, np.finfo(np.float32).tiny)
    colors = np.broadcast_to(colors, (count, h, w, 3))
    num_rows = math.ceil(count / _FILTER_COLUMNS)
    figure = primitives.new_figure(6.4, num_rows * (0.75 * min(h / w, 2) + 0.3) + 0.6)
    every = figure.subplots(num_rows, _FILTER_COLUMNS, squeeze=False).reshape(-1)
    for axes in every:
        axes.set_axis_off()
    for axes, color, share in zip(every, colors, explained, strict=False):
        axes.imshow(color, interpolation="nearest")
        place = {"transform": axes.transAxes, "ha": "center", "va": "top"}
        axes.text(0.5, -0.04, f"{share:.1%}", fontsize=8, **place)
    figure.suptitle(f"First {count} principal components of the {name}", fontsize=11)
    return figure
