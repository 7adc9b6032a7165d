"""One picture of many images in rows, with a few words below them."""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vit_jax.atomic import replacing
from vit_jax.printable import printable

CELL = 176  # pixels of an image's longer side
MARGIN = 12
LINE = 16
_LONGEST = 1000  # letters, more than fit into any row


class Cell(NamedTuple):
    """An image, `h w c` in 8 bits; below it a title in gray, then lines, the first of them bold."""

    image: np.ndarray
    title: str = ""
    lines: Sequence[str] = ()

    @property
    def words(self) -> list[tuple[str, str, str]]:
        """Text, font and colour, line by line."""
        title = [(printable(self.title), "DejaVuSans", "gray")] if self.title else []
        lines = [printable(line) for line in self.lines]
        first = [(line, "DejaVuSans-Bold", "black") for line in lines[:1]]
        return title + first + [(line, "DejaVuSans", "black") for line in lines[1:]]


def square(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    """About as many rows as columns."""
    columns = math.ceil(math.sqrt(len(cells)))
    return [cells[start : start + columns] for start in range(0, len(cells), columns)]


def draw(rows: Sequence[Sequence[Cell]], headings: Mapping[int, str] | None = None) -> Image.Image:
    """Images of one shape in rows. A heading goes above its column, which begins a new group.

    Words are cut at the width of their image, or of the row if only its first image has any.
    """
    headings = headings or {}
    width, height = _thumbnail(rows[0][0].image).size
    crowded = any(cell.words for row in rows for cell in row[1:])
    step_x = (max(width, CELL) if crowded else width) + MARGIN
    step_y = height + LINE * max(len(cell.words) for row in rows for cell in row) + MARGIN
    left = [MARGIN]
    for column in range(1, max(map(len, rows))):
        left.append(left[-1] + step_x + MARGIN * (column in headings))
    top = MARGIN + LINE * bool(headings)
    sheet = Image.new("RGB", (left[-1] + step_x, top + step_y * len(rows)), "white")

    pen = ImageDraw.Draw(sheet)
    for column, heading in headings.items():
        pen.text((left[column], MARGIN // 2), heading, "gray", _font("DejaVuSans"))
    for y, row in enumerate(rows):
        for x, cell in zip(left, row, strict=False):
            place = x, top + y * step_y
            sheet.paste(_thumbnail(cell.image), place)
            room = step_x - 4 if crowded else sheet.width - x
            for number, (text, font, color) in enumerate(cell.words):
                below = x, place[1] + height + 2 + number * LINE
                pen.text(below, _shortened(text, _font(font), room), color, _font(font))
    return sheet


def save(sheet: Image.Image, path: str | os.PathLike[str]) -> None:
    """Writes the format that the name ends in, else PNG; the whole file or none."""
    with replacing(path) as partial:
        sheet.save(partial, None if Path(path).suffix else "PNG")


def _thumbnail(image: np.ndarray) -> Image.Image:
    channels = image.shape[2] if image.shape[2] in (1, 3, 4) else 1
    picture = Image.fromarray(image[:, :, 0] if channels == 1 else image)
    factor = CELL / max(picture.size)
    size = [max(1, round(side * factor)) for side in picture.size]
    kind = Image.Resampling.NEAREST if factor > 2 else Image.Resampling.BICUBIC
    return picture.convert("RGB").resize(size, kind)


@functools.cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    """matplotlib's fonts have more than Latin letters."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf"), 12)


def _shortened(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    text = text[:_LONGEST]
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
