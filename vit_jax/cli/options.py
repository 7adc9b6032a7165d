"""Options as the commands read them: argparse with one-line errors, and types of values."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Shows docstrings as they are written, and raises where argparse would print and exit."""

    def __init__(
        self, prog: str | None = None, description: str | None = None, add_help: bool = True
    ):
        super().__init__(
            prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=add_help,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See --help.")


def size(text: str) -> tuple[int, int]:
    """224 or 256,192 as (height, width)."""
    sides = [part.strip() for part in text.split(",")]
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor HEIGHT,WIDTH")
    return int(sides[0]), int(sides[-1])


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def fraction(text: str) -> float:
    """A number above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and at most 1")
    return value
