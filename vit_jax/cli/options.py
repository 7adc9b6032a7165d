"""Options as the commands read them: argparse with one-line errors, and types of values."""

import os
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any, NoReturn


class Parser(ArgumentParser):
    """Shows docstrings as they are written, and raises where argparse would print and exit."""

    def __init__(self, prog: str | None = None, **options: Any):
        formatter = RawDescriptionHelpFormatter
        super().__init__(prog, formatter_class=formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See --help.")


def size(text: str) -> tuple[int, int]:
    """224 or 256,192 as (height, width)."""
    sides = [part.strip() for part in text.split(",")]
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise ArgumentTypeError(f"{text!r} is neither a number nor HEIGHT,WIDTH")
    return int(sides[0]), int(sides[-1])


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def fraction(text: str) -> float:
    """A number above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0 and at most 1")
    return value


def out_path(text: str) -> Path:
    """Something to write. That it can be written is checked before hours of work, not after."""
    path = Path(text).expanduser()
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{path} cannot be written: there is no directory {path.parent}")
    if not all(os.access(place, os.W_OK) for place in (path.parent, path) if place.exists()):
        raise ArgumentTypeError(f"{path} cannot be written: no permission. Choose another place")
    return path


def out_file(text: str) -> Path:
    if Path(text).expanduser().is_dir():
        raise ArgumentTypeError(f"{text} is a directory; give the name of a file to write")
    return out_path(text)


def out_dir(text: str) -> Path:
    """It need not exist, nor those above it."""
    path = Path(text).expanduser()
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ArgumentTypeError(f"{existing} is a file; give the name of a directory")
    if not os.access(existing, os.W_OK):
        raise ArgumentTypeError(f"{path} cannot be written: no permission. Choose another place")
    return path
