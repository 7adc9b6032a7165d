"""Images in rows with words below: none overlap, none get lost."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.cli.contact_sheet import CELL, LINE, MARGIN, Cell, draw, save, square


def image(height=20, width=20, channels=3, value=100):
    return np.full((height, width, channels), value, np.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(20, 40), (400, 200)])
def test_every_image_is_drawn_with_its_longer_side_as_long_as_a_cell(height, width, channels):
    cells = [Cell(image(height, width, channels, value)) for value in (10, 20, 30)]
    pixels = np.asarray(draw(square(cells)))
    area = CELL * CELL * min(height, width) // max(height, width)
    for value in (10, 20, 30):
        assert (pixels == value).all(-1).sum() == area


def test_words_end_before_the_next_cell_and_may_be_as_long_as_a_row_where_they_are_alone():
    long = "a name much too long for the picture above it, " * 3
    sheets = {
        "crowded": draw([[Cell(image(), lines=[long]), Cell(image(), lines=["x"])]]),
        "alone": draw([[Cell(image(), lines=[long]), Cell(image())]]),
    }
    for name, sheet in sheets.items():
        words = np.asarray(sheet.convert("L"))[MARGIN + CELL + 2 : MARGIN + CELL + LINE] < 128
        between = words[:, MARGIN + CELL + MARGIN - 4 : MARGIN + CELL + MARGIN]
        assert between.any() == (name == "alone")


def test_a_heading_starts_a_group():
    rows = [[Cell(image(value=10)), Cell(image(value=20)), Cell(image(value=30))]]
    pixels = np.asarray(draw(rows, headings={0: "one", 1: "two"}))
    left = [np.nonzero((pixels == value).all(-1).any(0))[0][0] for value in (10, 20, 30)]
    assert np.diff(left).tolist() == [CELL + 2 * MARGIN, CELL + MARGIN]


@pytest.mark.parametrize(("name", "kind"), [("a.png", "PNG"), ("a.jpg", "JPEG"), ("a", "PNG")])
def test_the_name_decides_the_format(name, kind, tmp_path):
    save(draw([[Cell(image(), "title", ["é ж 中"])]]), tmp_path / name)
    with Image.open(tmp_path / name) as sheet:
        assert sheet.format == kind
    assert [path.name for path in tmp_path.iterdir()] == [name]
