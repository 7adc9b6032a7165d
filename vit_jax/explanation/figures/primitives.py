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
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

AMOUNT, SIGNED = "viridis", "RdBu_r"
BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#555555"
PANEL = 2.6  # inches, the height of a photograph
_PHOTO = 640  # pixels of a photograph's longer side
_CELL = 4  # pixels of a patch in a mosaic
_GAP = 5
_STRONGEST = 3  # percent


def new_figure(width: float, height: float) -> Figure:
    """In inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06)
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def panels(photo: np.ndarray, count: int, extra_width: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A row of axes in the shape of a photograph, with room for a title above and a note below."""
    width = PANEL * np.clip(photo.shape[1] / photo.shape[0], 0.4, 2.5)
    figure = new_figure(count * (width + 0.12) + extra_width, PANEL + 0.9)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def set_title(figure: Figure, text: str) -> None:
    short = textwrap.shorten(text, 90, placeholder="…") or text[:90]
    figure.suptitle(short, fontsize=11, parse_math=False)


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


def show_photo(axes: Axes, photo: np.ndarray, title: str = "Input") -> None:
    """`photo` is h w 3, in 8 bits or in 0…1."""
    axes.imshow(photo, extent=_extent(photo))
    _bare(axes, title)


def show_heat(
    figure: Figure,
    axes: Axes,
    photo: np.ndarray,
    values: np.ndarray,
    title: str,
    *,
    signed: bool = False,
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
    axes.imshow(mixed.clip(0, 1), extent=_extent(photo))
    _bare(axes, title)
    strongest = f"1: the strongest {_STRONGEST} % of patches"
    add_scale(figure, color, axes, "against the class         for it" if signed else strongest)


def enlarged(values: np.ndarray, photo: np.ndarray) -> np.ndarray:
    """One value per pixel from one per patch, interpolated linearly."""
    size = photo.shape[1], photo.shape[0]
    return cv2.resize(values.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)


def show_grid(axes: Axes, photo: np.ndarray, colors: np.ndarray, title: str) -> None:
    """One colour per patch, `gh gw 3`, in the shape of the photograph."""
    axes.imshow(colors, interpolation="nearest", extent=_extent(photo))
    _bare(axes, title)


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
    aspect: float = 1.0,
) -> AxesImage:
    """Small maps `rows columns h w` in one picture, with named ticks; colours from `lowest` to 1.

    `aspect` is the height of a patch divided by its width.
    """
    num_rows, num_columns, h, w = tiles.shape
    cell = _CELL if max(h, w) > 3 else 4 * _CELL  # so that gaps stay narrow
    tiles = tiles.repeat(cell, axis=2).repeat(cell, axis=3)
    gaps = [(0, 0), (0, 0), (0, _GAP), (0, _GAP)]
    tiles = np.pad(tiles.astype(np.float32), gaps, constant_values=np.nan)
    step_y, step_x = tiles.shape[2:]
    whole = tiles.swapaxes(1, 2).reshape(num_rows * step_y, num_columns * step_x)[:-_GAP, :-_GAP]
    picture = axes.imshow(
        whole, interpolation="nearest", aspect=aspect, cmap=AMOUNT, vmin=lowest, vmax=1
    )
    axes.set_xticks((step_x - _GAP - 1) / 2 + step_x * np.arange(num_columns), columns)
    axes.set_yticks((step_y - _GAP - 1) / 2 + step_y * np.arange(num_rows), rows)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return picture


def add_scale(figure: Figure, colors: ScalarMappable, axes: Axes, label: str) -> None:
    """A colour bar beside the axes, as tall as they are."""
    box = axes.get_window_extent()
    width = 0.12 * figure.dpi / box.width  # inches, as a share of the axes
    beside = axes.inset_axes((1 + width / 2, 0, width, 1))
    bar = figure.colorbar(colors, cax=beside)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    bar.set_label(label, size=9)


def as_png(figure: Figure) -> bytes:
    """Without empty margins."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=180, bbox_inches="tight", pad_inches=0.08)
    return file.getvalue()


def _extent(photo: np.ndarray) -> tuple[float, float, float, float]:
    return 0, photo.shape[1], photo.shape[0], 0


def _bare(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
