"""What all pictures share: sizes, colours, photographs under heat maps, mosaics of small maps.

Figures are plain objects, with no global state of pyplot. Colours are told apart by everyone:
viridis for amounts, red and blue for signs, Okabe and Ito's for lines and points.
"""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

AMOUNT, SIGNED = "viridis", "RdBu_r"
BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#555555"
PANEL = 2.6  # inches, the height of a photograph
_CELL = 4  # pixels of a patch in a mosaic
_GAP = 5


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


def show_photo(axes: Axes, photo: np.ndarray, title: str = "Input") -> AxesImage:
    """`photo` is h w 1, 3 or 4, in 8 bits or in 0…1."""
    gray = photo.shape[2] == 1
    picture = axes.imshow(
        photo[:, :, 0] if gray else photo[:, :, :3],
        cmap="gray",
        vmin=0,
        vmax=255 if photo.dtype == np.uint8 else 1,
        extent=_extent(photo),
    )
    _bare(axes, title)
    return picture


def show_heat(
    axes: Axes, photo: np.ndarray, values: np.ndarray, title: str, *, signed: bool = False
) -> AxesImage:
    """Values of the patches over the photograph in gray; the largest is 1."""
    gray = photo[:, :, :3].mean(-1)
    axes.imshow(gray, cmap="gray", vmin=0, vmax=255, extent=_extent(photo))
    picture = axes.imshow(
        scaled(values),
        cmap=SIGNED if signed else AMOUNT,
        vmin=-1 if signed else 0,
        vmax=1,
        alpha=0.6,
        interpolation="bilinear",
        extent=_extent(photo),
    )
    _bare(axes, title)
    return picture


def show_grid(axes: Axes, photo: np.ndarray, colors: np.ndarray, title: str) -> AxesImage:
    """A colour a patch, `gh gw 3`, in the shape of the photograph."""
    picture = axes.imshow(colors, interpolation="nearest", extent=_extent(photo))
    _bare(axes, title)
    return picture


def scaled(values: np.ndarray) -> np.ndarray:
    """With 1 for the largest, whatever its sign; zeros stay zeros."""
    largest = np.abs(values).max()
    return values / largest if largest > 0 else values


def show_mosaic(
    axes: Axes,
    tiles: np.ndarray,
    columns: list[str],
    rows: list[str],
    *,
    aspect: float = 1.0,
    **options,
) -> AxesImage:
    """Small maps `rows columns h w` (or colours, `… h w 3`) in one picture, with named ticks.

    `aspect` is the height of a patch to its width.
    """
    num_rows, num_columns, h, w = tiles.shape[:4]
    cell = max(1, _CELL if max(h, w) > 3 else 4 * _CELL)
    tiles = tiles.repeat(cell, axis=2).repeat(cell, axis=3)
    gaps = [(0, 0), (0, 0), (0, _GAP), (0, _GAP), *[(0, 0)] * (tiles.ndim - 4)]
    fill = 1.0 if tiles.ndim == 5 else np.nan  # white; nothing
    tiles = np.pad(tiles.astype(np.float32), gaps, constant_values=fill).swapaxes(1, 2)
    step_y, step_x = tiles.shape[1], tiles.shape[3]
    whole = tiles.reshape(num_rows * step_y, num_columns * step_x, *tiles.shape[4:])
    picture = axes.imshow(whole[:-_GAP, :-_GAP], interpolation="nearest", aspect=aspect, **options)
    axes.set_xticks((step_x - _GAP - 1) / 2 + step_x * np.arange(num_columns), columns)
    axes.set_yticks((step_y - _GAP - 1) / 2 + step_y * np.arange(num_rows), rows)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return picture


def add_scale(figure: Figure, picture: AxesImage, axes, label: str, **options) -> None:
    bar = figure.colorbar(picture, ax=axes, label=label, **options)
    bar.solids.set_alpha(1)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)
    bar.set_label(label, size=9)


def _extent(photo: np.ndarray) -> tuple[float, float, float, float]:
    return 0, photo.shape[1], photo.shape[0], 0


def _bare(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
