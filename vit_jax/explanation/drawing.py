"""What all pictures share: sizes, colours, photographs under heat maps, mosaics of small maps.

Figures are plain objects, with no global state of pyplot. Colours are told apart by everyone:
viridis for amounts, red and blue for signs, Okabe and Ito's for lines and points.
"""

import io
import textwrap

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

AMOUNT, SIGNED = "viridis", "RdBu_r"
BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#555555"
PANEL = 2.6  # inches, the height of a photograph
_CELL = 4  # pixels of a patch in a mosaic
_GAP = 5
_STRONGEST = 3


def new_figure(width: float, height: float) -> Figure:
    """In inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    return figure


def panels(photo: np.ndarray, count: int, extra_width: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A row of axes in the shape of a photograph, with space for a title above and a note below."""
    width = PANEL * np.clip(photo.shape[1] / photo.shape[0], 0.4, 2.5)
    figure = new_figure(count * (width + 0.12) + extra_width, PANEL + 0.9)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def set_title(figure: Figure, text: str) -> None:
    figure.suptitle(shortened(text, 90), fontsize=11, parse_math=False)


def shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="…") or text[:width]


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
    """Values of the patches in colour over the photograph in gray, `scaled`.

    Amounts are coloured from the least to the most there is; signed ones stronger the larger, and
    what is near zero leaves the photograph as it is.
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
    label = (
        "against the class         for it"
        if signed
        else f"1: the strongest {_STRONGEST} % of patches"
    )
    add_scale(figure, color, axes, label)


def enlarged(values: np.ndarray, photo: np.ndarray) -> np.ndarray:
    """Numbers of patches as numbers of pixels, linear in between."""
    size = photo.shape[1], photo.shape[0]
    return cv2.resize(values.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)


def show_grid(axes: Axes, photo: np.ndarray, colors: np.ndarray, title: str) -> None:
    """A colour a patch, `gh gw 3`, in the shape of the photograph."""
    axes.imshow(colors, interpolation="nearest", extent=_extent(photo))
    _bare(axes, title)


def scaled(values: np.ndarray) -> np.ndarray:
    """Divided so that the strongest patches, `_STRONGEST` percent of them, are 1 (or -1).

    Trained models park attention in a few patches that show nothing, corners often; with the
    largest of all as the scale they would leave the rest of the picture dark.
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
    aspect: float = 1.0,
    **options,
) -> AxesImage:
    """Small maps `rows columns h w` in one picture, with named ticks.

    `aspect` is the height of a patch to its width.
    """
    num_rows, num_columns, h, w = tiles.shape
    cell = _CELL if max(h, w) > 3 else 4 * _CELL  # so that gaps stay narrow
    tiles = tiles.repeat(cell, axis=2).repeat(cell, axis=3)
    gaps = [(0, 0), (0, 0), (0, _GAP), (0, _GAP)]
    tiles = np.pad(tiles.astype(np.float32), gaps, constant_values=np.nan)
    step_y, step_x = tiles.shape[2:]
    whole = tiles.swapaxes(1, 2).reshape(num_rows * step_y, num_columns * step_x)
    picture = axes.imshow(whole[:-_GAP, :-_GAP], interpolation="nearest", aspect=aspect, **options)
    axes.set_xticks((step_x - _GAP - 1) / 2 + step_x * np.arange(num_columns), columns)
    axes.set_yticks((step_y - _GAP - 1) / 2 + step_y * np.arange(num_rows), rows)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return picture


def add_scale(figure: Figure, colors: ScalarMappable, axes: Axes, label: str) -> None:
    """A colour bar as tall as the picture, beside it."""
    box = axes.get_window_extent()
    width = 0.12 * figure.dpi / box.width  # inches, as a share of the axes
    beside = axes.inset_axes([1 + width / 2, 0, width, 1])
    bar = figure.colorbar(colors, cax=beside)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    bar.set_label(label, size=9)


def as_png(figure: Figure) -> bytes:
    """Without the margins that nothing is drawn on."""
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
