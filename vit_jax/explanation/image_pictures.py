"""Pictures of what a model makes of one image.

`photo` is what the model sees of the image, 8-bit `h w 3`, at any resolution.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.explanation import drawing
from vit_jax.explanation.features import as_rgb


def draw_attention_maps(
    photo: np.ndarray,
    maps: np.ndarray,
    pool_maps: np.ndarray | None,
    title: str,
) -> Figure:  # l h gh gw
    """A column a layer, a row a head; each map on a scale of its own."""
    names = [str(layer + 1) for layer in range(len(maps))]
    if pool_maps is not None:
        maps = np.concatenate([maps, pool_maps[None]])
        names.append("pool")
    num_layers, num_heads, gh, gw = maps.shape
    largest = maps.max((2, 3), keepdims=True)
    tiles = (maps / np.maximum(largest, np.finfo(np.float32).tiny)).swapaxes(0, 1)
    height, width = photo.shape[:2]
    tile = np.clip(11 / num_layers, 0.45, 1.0)  # inches
    tile_height = tile * np.clip(height / width, 0.4, 2.5)
    photo_width = max(1.6, 2 * tile)
    figure = drawing.new_figure(
        num_layers * tile + photo_width + 1.6, max(num_heads * tile_height, 1.2) + 1.0
    )
    left, right = figure.subplots(1, 2, width_ratios=[photo_width, num_layers * tile])
    drawing.show_photo(left, photo)
    left.set_anchor("N")
    heads = [str(head + 1) for head in range(num_heads)]
    aspect = (height / gh) / (width / gw)
    picture = drawing.show_mosaic(
        right, tiles, names, heads, aspect=aspect, cmap=drawing.AMOUNT, vmin=0, vmax=1
    )
    right.set_anchor("N")
    right.set_xlabel("Layer", fontsize=9)
    right.set_ylabel("Head", fontsize=9)
    drawing.add_scale(figure, picture, right, "share of map's largest")
    drawing.set_title(figure, title)
    return figure


def draw_rollout(photo: np.ndarray, rollout: np.ndarray, title: str) -> Figure:  # gh gw
    figure, (first, second, third) = drawing.panels(photo, 3, extra_width=0.7)
    drawing.show_photo(first, photo)
    mask = drawing.enlarged(drawing.scaled(rollout), photo)
    drawing.show_photo(second, photo / 255 * mask[:, :, None], "Attended to")
    drawing.show_heat(figure, third, photo, rollout, "Attention rollout")
    drawing.set_title(figure, title)
    return figure


def draw_relevance(
    photo: np.ndarray,
    attention_relevance: np.ndarray | None,
    integrated_gradients: np.ndarray,
    title: str,
) -> Figure:
    """Both maps `gh gw`; a model without attention has the second alone."""
    has_attention = attention_relevance is not None
    figure, axes = drawing.panels(photo, 2 + has_attention, extra_width=0.7 + 0.7 * has_attention)
    drawing.show_photo(axes[0], photo)
    if has_attention:
        name = "Attention × gradient"
        drawing.show_heat(figure, axes[1], photo, attention_relevance, name)
    name = "Integrated gradients"
    drawing.show_heat(figure, axes[-1], photo, integrated_gradients, name, signed=True)
    drawing.set_title(figure, title)
    return figure


def draw_features(
    photo: np.ndarray, colors: Sequence[np.ndarray], depths: Sequence[int], title: str
) -> Figure:
    """`colors` are principal components `gh gw 3` after the blocks that `depths` count from 1."""
    figure, axes = drawing.panels(photo, 1 + len(colors))
    drawing.show_photo(axes[0], photo)
    for panel, components, depth in zip(axes[1:], colors, depths, strict=True):
        name = f"After layer {depth}" if depth else "Patch embedding"
        drawing.show_grid(panel, photo, as_rgb(components), name)
    drawing.set_title(figure, title)
    note = "1st component: dark to light.   2nd: blue to yellow.   3rd: green to red."
    figure.supxlabel(note, fontsize=8, color=drawing.GRAY)
    return figure
