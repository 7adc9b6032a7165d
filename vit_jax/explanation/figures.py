"""Arrays as matplotlib figures: of what a model makes of an image, and of a model as a whole.

Nothing here knows a model. `photo` is what the model sees of the image, 8-bit `h w 3`, at any
resolution. Maps are `gh gw`, one value per patch. Figures are plain objects; pyplot and its global
state are not used. The colours are safe for colour-blind readers: viridis for amounts, red and blue
for signs, Okabe and Ito's for lines.
"""

import io
import math
import textwrap
from collections.abc import Sequence

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MultipleLocator
from PIL import Image

AMOUNT, SIGNED = "viridis", "RdBu_r"
BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#555555"
PANEL = 2.6  # inches, the height of a photograph
_PHOTO = 640  # pixels of a photograph's longer side
_CELL = 4  # pixels of a patch in a mosaic
_GAP = 5
_STRONGEST = 3  # percent
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
_FILTER_COLUMNS = 7
_MOST_TILES = 16  # per side, in the figure of positions
_TINY = np.finfo(np.float32).tiny


def draw_attention_maps(
    photo: np.ndarray, maps: np.ndarray, pool_maps: np.ndarray | None, title: str
) -> Figure:  # l h gh gw
    """One column per layer, one row per head; each map has its own scale."""
    layers = [str(layer + 1) for layer in range(len(maps))]
    if pool_maps is not None:
        maps = np.concatenate([maps, pool_maps[None]])
        layers.append("pool")
    num_layers, num_heads, gh, gw = maps.shape
    tiles = (maps / np.maximum(maps.max((2, 3), keepdims=True), _TINY)).swapaxes(0, 1)
    height, width = photo.shape[:2]
    tile = np.clip(11 / num_layers, 0.45, 1.0)  # inches
    tile_height = tile * np.clip(height / width, 0.4, 2.5)
    widths = max(1.6, 2 * tile), num_layers * tile
    figure = new_figure(sum(widths) + 1.6, max(num_heads * tile_height, 1.2) + 1.0, title)
    left, right = figure.subplots(1, 2, width_ratios=widths)
    show(left, photo, photo, "Input")
    left.set_anchor("N")
    heads = [str(head + 1) for head in range(num_heads)]
    show_mosaic(right, tiles, layers, heads, lowest=0, scale="share of map's largest")
    right.set_aspect((height / gh) / (width / gw))
    right.set_anchor("N")
    right.set_xlabel("Layer", fontsize=9)
    right.set_ylabel("Head", fontsize=9)
    return figure


def draw_rollout(photo: np.ndarray, rollout: np.ndarray, title: str) -> Figure:
    figure, (left, right) = beside_photo(photo, 2, title, extra_width=0.7)
    mask = enlarged(scaled(rollout), photo)
    show(left, photo, photo / 255 * mask[:, :, None], "Attended to")
    show_heat(right, photo, rollout, "Attention rollout")
    return figure


def draw_relevance(
    photo: np.ndarray, attention: np.ndarray | None, gradients: np.ndarray, title: str
) -> Figure:
    """By attention, which a model may lack, and by integrated gradients."""
    count = 1 if attention is None else 2
    figure, axes = beside_photo(photo, count, title, extra_width=0.7 * count)
    if attention is not None:
        show_heat(axes[0], photo, attention, "Attention × gradient")
    show_heat(axes[-1], photo, gradients, "Integrated gradients", signed=True)
    return figure


def draw_features(
    photo: np.ndarray, colors: Sequence[np.ndarray], depths: Sequence[int], title: str
) -> Figure:
    """`colors` are principal components `gh gw 3`, one for each depth (the number of blocks)."""
    figure, axes = beside_photo(photo, len(colors), title)
    for panel, components, depth in zip(axes, colors, depths, strict=True):
        name = f"After layer {depth}" if depth else "Patch embedding"
        show(panel, photo, as_rgb(components), name, interpolation="nearest")
    note = "1st component: dark to light.   2nd: blue to yellow.   3rd: green to red."
    figure.supxlabel(note, fontsize=8, color=GRAY)
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


def draw_attention_distance(distances: np.ndarray, uniform: float, num_images: int) -> Figure:
    """`distances` are `l h` in pixels; `uniform` is the distance of uniform attention."""
    num_layers, num_heads = distances.shape
    figure = new_figure(5.2, 3.6)
    axes = figure.subplots()
    layers = np.arange(1, num_layers + 1)
    points = np.repeat(layers, num_heads), distances.reshape(-1)
    axes.scatter(*points, s=24, color=BLUE, alpha=0.75, lw=0, label="a head", zorder=3)
    mean = distances.mean(1)
    axes.plot(layers, mean, color=ORANGE, lw=1.5, label="mean of the heads", zorder=2)
    axes.axhline(uniform, color=GRAY, lw=1, ls="--", label="attention to all alike")
    axes.set(xlabel="Network depth (layer)", ylabel="Mean attention distance (pixels)")
    axes.set(xlim=(0.4, num_layers + 0.6), ylim=(0, 1.08 * max(uniform, distances.max())))
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
    # Tiles have the shape of the grid, and the longer side of the whole is seven inches.
    inches = 7 / max(len(rows) * h, len(columns) * w)
    width, height = max(3.2, inches * len(columns) * w), max(2.2, inches * len(rows) * h)
    figure = new_figure(width + 1.4, height + 0.9)
    axes = figure.subplots()
    names = [[str(index + 1) for index in indices] for indices in (columns, rows)]
    tiles = similarity[np.ix_(rows, columns)]
    show_mosaic(axes, tiles, *names, lowest=-1, scale="cosine similarity")
    axes.set(xlabel="Patch column", ylabel="Patch row")
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
    colors = 0.5 + 0.5 * components / np.maximum(largest, _TINY)
    colors = np.broadcast_to(colors, (count, h, w, 3))
    num_rows = math.ceil(count / _FILTER_COLUMNS)
    title = f"First {count} principal components of the {name}"
    figure = new_figure(6.4, num_rows * (0.75 * min(h / w, 2) + 0.3) + 0.6, title)
    every = figure.subplots(num_rows, _FILTER_COLUMNS, squeeze=False).reshape(-1)
    for axes in every:
        axes.set_axis_off()
    for axes, color, share in zip(every, colors, explained, strict=False):
        axes.imshow(color, interpolation="nearest")
        place = {"transform": axes.transAxes, "ha": "center", "va": "top"}
        axes.text(0.5, -0.04, f"{share:.1%}", fontsize=8, **place)
    return figure


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """In inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    if title:
        short = textwrap.shorten(title, 90, placeholder="…") or title[:90]
        figure.suptitle(short, fontsize=11, parse_math=False)
    return figure


def beside_photo(
    photo: np.ndarray, count: int, title: str, extra_width: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure of the photograph and, in the same row, `count` axes of the same shape."""
    width = PANEL * np.clip(photo.shape[1] / photo.shape[0], 0.4, 2.5)
    figure = new_figure((1 + count) * (width + 0.12) + extra_width, PANEL + 0.9, title)
    first, *others = figure.subplots(1, 1 + count)
    show(first, photo, photo, "Input")
    return figure, others


def sized_photo(image: np.ndarray) -> np.ndarray:
    """An 8-bit image `h w c` as `h w 3`, its longer side between half and all of _PHOTO pixels.

    Larger images are reduced; the pixels of smaller ones are repeated.
    """
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    photo = Image.fromarray(np.ascontiguousarray(image[:, :, :3]))
    photo.thumbnail((_PHOTO, _PHOTO))
    times = math.ceil(_PHOTO / 2 / max(photo.size))
    return np.asarray(photo).repeat(times, axis=0).repeat(times, axis=1)


def show(
    axes: Axes, photo: np.ndarray, colors: np.ndarray, title: str, interpolation: str | None = None
) -> None:
    """Colours `… … 3`, in 8 bits or in 0…1, in the place and shape of the photograph."""
    height, width = photo.shape[:2]
    axes.imshow(colors, interpolation=interpolation, extent=(0, width, height, 0))
    axes.set_title(title, fontsize=9)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def show_heat(
    axes: Axes, photo: np.ndarray, values: np.ndarray, title: str, *, signed: bool = False
) -> None:
    """The patches' values in colour, `scaled`, over the photograph in gray.

    Amounts use the colours from the smallest value to the largest. Signed values are more opaque
    the larger they are, so that values near zero leave the photograph as it is.
    """
    values = enlarged(scaled(values), photo)
    low = -1.0 if signed else min(float(values.min()), 0.99)
    color = ScalarMappable(Normalize(low, 1), SIGNED if signed else AMOUNT)
    opacity = np.abs(values) if signed else np.full_like(values, 0.62)
    gray = photo.mean(-1) / 255 * (1.0 if signed else 0.85)
    mixed = color.to_rgba(values)[:, :, :3] * opacity[:, :, None]
    mixed = mixed + (gray * (1 - opacity))[:, :, None]
    show(axes, photo, mixed.clip(0, 1), title)
    strongest = f"1: the strongest {_STRONGEST} % of patches"
    add_scale(axes, color, "against the class         for it" if signed else strongest)


def enlarged(values: np.ndarray, photo: np.ndarray) -> np.ndarray:
    """One value per pixel from one per patch, interpolated linearly."""
    size = photo.shape[1], photo.shape[0]
    return cv2.resize(values.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)


def scaled(values: np.ndarray) -> np.ndarray:
    """Divided and clipped so that the strongest patches, _STRONGEST percent, are 1 (or -1).

    Trained models park attention in a few patches that show nothing, often corners; if the largest
    value set the scale, those would leave the rest of the figure dark.
    """
    sizes = np.abs(values)
    largest = np.percentile(sizes, 100 - _STRONGEST) or sizes.max()
    return (values / largest).clip(-1, 1) if largest > 0 else values


def show_mosaic(
    axes: Axes, tiles: np.ndarray, columns: list[str], rows: list[str], *, lowest: float, scale: str
) -> None:
    """Small maps `rows columns h w` in one picture, with named ticks.

    Colours go from `lowest` to 1; `scale` says what they mean.
    """
    num_rows, num_columns, h, w = tiles.shape
    cell = _CELL if max(h, w) > 3 else 4 * _CELL  # so that gaps stay narrow
    tiles = tiles.repeat(cell, axis=2).repeat(cell, axis=3)
    gaps = [(0, 0), (0, 0), (0, _GAP), (0, _GAP)]
    tiles = np.pad(tiles.astype(np.float32), gaps, constant_values=np.nan)
    step_y, step_x = tiles.shape[2:]
    whole = tiles.swapaxes(1, 2).reshape(num_rows * step_y, num_columns * step_x)[:-_GAP, :-_GAP]
    picture = axes.imshow(whole, AMOUNT, Normalize(lowest, 1), interpolation="nearest")
    axes.set_xticks((step_x - _GAP - 1) / 2 + step_x * np.arange(num_columns), columns)
    axes.set_yticks((step_y - _GAP - 1) / 2 + step_y * np.arange(num_rows), rows)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    add_scale(axes, picture, scale)


def add_scale(axes: Axes, colors: ScalarMappable, label: str) -> None:
    """A colour bar beside the axes, as tall as they are."""
    width = 0.12 * axes.figure.dpi / axes.get_window_extent().width  # inches, as a share of them
    beside = axes.inset_axes((1 + width / 2, 0, width, 1))
    bar = axes.figure.colorbar(colors, cax=beside)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    bar.set_label(label, size=9)


def as_png(figure: Figure) -> bytes:
    """Without empty margins."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=180, bbox_inches="tight", pad_inches=0.08)
    return file.getvalue()
