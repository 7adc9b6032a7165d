"""Figures of what a model makes of one image.

`photo` is what the model sees of the image, 8-bit `h w 3`, at any resolution. Maps are `gh gw`, one
value per patch.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.explanation.figures import primitives

_CHROMA = 0.13  # reach of OKLab's two colour axes; nearly every mixture then exists in sRGB
_DARKEST, _LIGHTEST = 0.25, 0.92
_LAB_TO_LMS = np.array(
    [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ]
)
_LMS_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def draw_attention_maps(
    photo: np.ndarray, maps: np.ndarray, pool_maps: np.ndarray | None, title: str
) -> Figure:  # l h gh gw
    """One column per layer, one row per head; each map has its own scale."""
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
    figure = primitives.new_figure(
        num_layers * tile + photo_width + 1.6, max(num_heads * tile_height, 1.2) + 1.0
    )
    left, right = figure.subplots(1, 2, width_ratios=[photo_width, num_layers * tile])
    primitives.show_photo(left, photo)
    left.set_anchor("N")
    heads = [str(head + 1) for head in range(num_heads)]
    aspect = (height / gh) / (width / gw)
    picture = primitives.show_mosaic(right, tiles, names, heads, lowest=0, aspect=aspect)
    right.set_anchor("N")
    right.set_xlabel("Layer", fontsize=9)
    right.set_ylabel("Head", fontsize=9)
    primitives.add_scale(figure, picture, right, "share of map's largest")
    primitives.set_title(figure, title)
    return figure


def draw_rollout(photo: np.ndarray, rollout: np.ndarray, title: str) -> Figure:
    figure, (first, second, third) = primitives.panels(photo, 3, extra_width=0.7)
    primitives.show_photo(first, photo)
    mask = primitives.enlarged(primitives.scaled(rollout), photo)
    primitives.show_photo(second, photo / 255 * mask[:, :, None], "Attended to")
    primitives.show_heat(figure, third, photo, rollout, "Attention rollout")
    primitives.set_title(figure, title)
    return figure


def draw_relevance(
    photo: np.ndarray,
    attention_relevance: np.ndarray | None,
    integrated_gradients: np.ndarray,
    title: str,
) -> Figure:
    """A model without attention has only integrated gradients."""
    count = 1 if attention_relevance is None else 2
    figure, axes = primitives.panels(photo, 1 + count, extra_width=0.7 * count)
    primitives.show_photo(axes[0], photo)
    if attention_relevance is not None:
        name = "Attention × gradient"
        primitives.show_heat(figure, axes[1], photo, attention_relevance, name)
    name = "Integrated gradients"
    primitives.show_heat(figure, axes[-1], photo, integrated_gradients, name, signed=True)
    primitives.set_title(figure, title)
    return figure


def draw_features(
    photo: np.ndarray, colors: Sequence[np.ndarray], depths: Sequence[int], title: str
) -> Figure:
    """`colors` are principal components `gh gw 3`, one for each depth (the number of blocks)."""
    figure, axes = primitives.panels(photo, 1 + len(colors))
    primitives.show_photo(axes[0], photo)
    for panel, components, depth in zip(axes[1:], colors, depths, strict=True):
        name = f"After layer {depth}" if depth else "Patch embedding"
        primitives.show_grid(panel, photo, as_rgb(components), name)
    primitives.set_title(figure, title)
    note = "1st component: dark to light.   2nd: blue to yellow.   3rd: green to red."
    figure.supxlabel(note, fontsize=8, color=primitives.GRAY)
    return figure


def as_rgb(components: np.ndarray) -> np.ndarray:  # (…, 3) in 0…1 -> sRGB in 0…1
    """The first component as lightness, the second blue to yellow, the third green to red.

    In OKLab (Ottosson 2020), where equal distances look equal. The third component, the weakest, is
    the one that readers who cannot tell green from red lose; a print in gray keeps the first.
    """
    lightness = _DARKEST + (_LIGHTEST - _DARKEST) * components[..., 0]
    yellow, red = (_CHROMA * (2 * components[..., i] - 1) for i in (1, 2))
    lab = np.stack([lightness, red, yellow], axis=-1)
    linear = ((lab @ _LAB_TO_LMS.T) ** 3 @ _LMS_TO_RGB.T).clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
