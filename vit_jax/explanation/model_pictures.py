"""Pictures of a model as a whole: figure 7 of the ViT paper."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from vit_jax.explanation import drawing
from vit_jax.explanation.filters import Filters

_FILTER_COLUMNS = 7
_MOST_TILES = 16  # a side, in the picture of positions


def draw_attention_distance(distances: np.ndarray, uniform: float, num_images: int) -> Figure:
    """`distances` are `l h` in pixels; `uniform` is what attention to all patches alike has."""
    num_layers, num_heads = distances.shape
    figure = drawing.new_figure(5.2, 3.6)
    axes = figure.subplots()
    layers = np.arange(1, num_layers + 1)
    points = np.repeat(layers, num_heads), distances.reshape(-1)
    axes.scatter(*points, s=24, color=drawing.BLUE, alpha=0.75, lw=0, label="a head", zorder=3)
    line = {"color": drawing.ORANGE, "lw": 1.5, "label": "mean of the heads"}
    axes.plot(layers, distances.mean(1), **line, zorder=2)
    axes.axhline(uniform, color=drawing.GRAY, lw=1, ls="--", label="attention to all alike")
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
    """A tile a position; of a large grid, every second, third, … row and column has one."""
    h, w = similarity.shape[:2]
    rows, columns = (range(0, size, math.ceil(size / _MOST_TILES)) for size in (h, w))
    tiles = similarity[np.ix_(rows, columns)]
    # A tile of inches in the shape of the grid, the longer side of the whole seven of them.
    inches = 7 / max(len(rows) * h, len(columns) * w)
    figure = drawing.new_figure(
        max(3.2, inches * len(columns) * w) + 1.4, max(2.2, inches * len(rows) * h) + 0.9
    )
    axes = figure.subplots()
    picture = drawing.show_mosaic(
        axes,
        tiles,
        [str(column + 1) for column in columns],
        [str(row + 1) for row in rows],
        cmap=drawing.AMOUNT,
        vmin=-1,
        vmax=1,
    )
    axes.set_xlabel("Patch column")
    axes.set_ylabel("Patch row")
    drawing.add_scale(figure, picture, axes, "cosine similarity")
    axes.set_title("Similarity of position embeddings", fontsize=11)
    return figure


def draw_filters(filters: Filters, what: str) -> Figure:
    """Each component around middle gray; beneath it its share of the variance."""
    components, explained = filters
    count, h, w, channels = components.shape
    if channels not in (1, 3):
        components = components.mean(-1, keepdims=True)
    largest = np.abs(components).max((1, 2, 3), keepdims=True)
    colors = 0.5 + 0.5 * components / np.maximum(largest, np.finfo(np.float32).tiny)
    colors = np.broadcast_to(colors, (count, h, w, 3))
    num_rows = math.ceil(count / _FILTER_COLUMNS)
    figure = drawing.new_figure(6.4, num_rows * (0.75 * min(h / w, 2) + 0.3) + 0.6)
    every = figure.subplots(num_rows, _FILTER_COLUMNS, squeeze=False).reshape(-1)
    for axes in every:
        axes.set_axis_off()
    for axes, color, share in zip(every, colors, explained, strict=False):
        axes.imshow(color, interpolation="nearest")
        place = {"transform": axes.transAxes, "ha": "center", "va": "top"}
        axes.text(0.5, -0.04, f"{share:.1%}", fontsize=8, **place)
    title = f"First {count} principal components of the {what}"
    figure.suptitle(title, fontsize=11)
    return figure
