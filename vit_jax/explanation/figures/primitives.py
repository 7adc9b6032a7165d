"""What all figures share: sizes, colours, photographs under heat maps, mosaics of small maps.

Figures are plain objects; pyplot and its global state are not used. The colours are safe for
colour-blind readers: viridis for amounts, red and blue for signs, Okabe and Ito's for lines.
"""

import io
import math
import textwrap

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

AMOUNT, SIGNED = "viridis", "RdBu_r"
BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#555555"
PANEL = 2.6  # inches, the height of a photograph
_PHOTO = 640  # pixels of a photograph's longer side
_CELL = 4  # pixels of a patch in a mosaic
_GAP = 5
_STRONGEST = 3  # percent


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
    axes: Axes,
    tiles: np.ndarray,
    columns: list[str],
    rows: list[str],
    *,
    lowest: float,
    scale: str,
    aspect: float = 1.0,
) -> None:
    """Small maps `rows columns h w` in one picture, with named ticks; colours from `lowest` to 1.

    `scale` is what the colours mean; `aspect` is the height of a patch divided by its width.
    """
    num_rows, num_columns, h, w = tiles.shape
    cell = _CELL if max(h, w) > 3 else 4 * _CELL  # so that gaps stay narrow
    tiles = tiles.repeat(cell, axis=2).repeat(cell, axis=3)
    gaps = [(0, 0), (0, 0), (0, _GAP), (0, _GAP)]
    tiles = np.pad(tiles.astype(np.float32), gaps, constant_values=np.nan)
    step_y, step_x = tiles.shape[2:]
    whole = tiles.swapaxes(1, 2).reshape(num_rows * step_y, num_columns * step_x)[:-_GAP, :-_GAP]
    norm = Normalize(lowest, 1)
    picture = axes.imshow(whole, AMOUNT, norm, interpolation="nearest", aspect=aspect)
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
