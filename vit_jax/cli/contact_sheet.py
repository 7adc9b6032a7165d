"""One picture of many images, each as the model sees it, with what the model says below it."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vit_jax.cli import command as commands

_CELL = 176  # pixels of an image's longer side
_MARGIN = 12
_LINE = 16
_BEST = 3  # classes told of each image


class ContactSheet:
    """Takes the first MOST images, so that it stays a picture one can look at."""

    MOST = 60

    def __init__(self, card: dict[str, Any]):
        self._mean, self._std = (
            np.array(card["preprocessing"][key], np.float32) for key in ("mean", "std")
        )
        self._cells: list[tuple[Image.Image, list[str]]] = []

    def add(self, image: np.ndarray, path: str, top: Sequence[tuple[str, float]]) -> None:
        """`image` is the model's input, h w c."""
        if len(self._cells) < self.MOST:
            said = [f"{probability:.1%} {name}" for name, probability in top[:_BEST]]
            self._cells.append((self._thumbnail(image), [Path(path).name, *said]))

    def save(self, path: str | os.PathLike) -> None:
        """Writes a PNG, whole or not at all."""
        if not self._cells:
            raise ValueError(f"{path} is not drawn: none of the images could be read.")
        with commands.replacing(path) as partial:
            self.draw().save(partial, "PNG")

    def draw(self) -> Image.Image:
        num_columns = math.ceil(math.sqrt(len(self._cells)))
        num_rows = math.ceil(len(self._cells) / num_columns)
        width, height = self._cells[0][0].size
        step_x = max(width, _CELL) + _MARGIN
        step_y = height + (_BEST + 1) * _LINE + _MARGIN
        size = (num_columns * step_x + _MARGIN, num_rows * step_y + _MARGIN)
        sheet = Image.new("RGB", size, "white")
        draw = ImageDraw.Draw(sheet)
        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"  # it has more than Latin letters
        font = ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), 12)
        bold = ImageFont.truetype(str(fonts / "DejaVuSans-Bold.ttf"), 12)
        for index, (image, lines) in enumerate(self._cells):
            x = _MARGIN + index % num_columns * step_x
            y = _MARGIN + index // num_columns * step_y
            sheet.paste(image, (x, y))
            for number, line in enumerate(lines):
                style = bold if number == 1 else font
                place = (x, y + height + 2 + number * _LINE)
                color = "gray" if number == 0 else "black"
                draw.text(place, _fitting(line, style, step_x - 4), fill=color, font=style)
        return sheet

    def _thumbnail(self, image: np.ndarray) -> Image.Image:
        pixels = np.clip(255 * (image * self._std + self._mean), 0, 255).round().astype(np.uint8)
        if pixels.shape[2] not in (1, 3, 4):
            pixels = pixels[:, :, :1]
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        factor = _CELL / max(picture.size)
        size = [round(side * factor) for side in picture.size]
        kind = Image.Resampling.NEAREST if factor > 2 else Image.Resampling.BICUBIC
        return picture.convert("RGB").resize(size, kind)


def _fitting(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """The text, cut short with an ellipsis where it would run into its neighbour."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
