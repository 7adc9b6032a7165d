"""Options as the commands read them: argparse with one-line errors, and types of values."""

import contextlib
import itertools
import os
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vit_jax.allowed import Allowed, did_you_mean, number, whole


class Parser(ArgumentParser):
    """Shows docstrings as they are written, and raises where argparse would print and exit."""

    def __init__(self, prog: str | None = None, **options: Any):
        formatter = RawDescriptionHelpFormatter
        super().__init__(prog, formatter_class=formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See --help.")

    def refuse_unknown(self, argv: Sequence[str]) -> None:
        """Raises if an option does not exist; argparse would first miss the one that was meant.

        Also if one is empty, as a variable that is not set: it must not mean the current directory.
        """
        known = list(self._known())
        for word in itertools.takewhile(lambda word: word != "--", argv):
            name, equals, value = word.partition("=")
            if not word or (name.startswith("--") and equals and not value):
                self.error(f"{name or 'an argument'} is empty")
            if name.startswith("--") and name not in known:
                self.error(f"there is no option {name}{did_you_mean(name, known)}")
            if name in known and value == "--":  # argparse would take it for no value at all
                self.error(f"argument {name}: '--' is not a value")

    def _known(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            commands = action.choices if isinstance(action.choices, dict) else {}
            for parser in commands.values():
                if isinstance(parser, Parser):
                    yield from parser._known()


def of_kind(kind: Callable[[str], Any], allowed: Allowed) -> Callable[[str], Any]:
    """The type of an option that is a number within limits."""

    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if allowed.holds(value := kind(text)):
                return value
        raise ArgumentTypeError(f"{text!r} is not {allowed.words}")

    return parse


def up_to(most: int, least: int = 1) -> Callable[[str], int]:
    return of_kind(int, whole(least, most))


count = up_to(1_000_000)
batch_size = up_to(4096)
fraction = of_kind(float, number(above=0, most=1))
seconds = of_kind(float, number(above=0, most=86_400))
_side = up_to(2**13)


def size(text: str) -> tuple[int, int]:
    """224 or 256,192 as (height, width)."""
    sides = text.split(",")
    try:
        height, width = map(_side, sides if len(sides) == 2 else [text, text])
        return height, width
    except ArgumentTypeError as e:
        needed = "neither one side nor HEIGHT,WIDTH, each from 1 to 8,192 pixels"
        raise ArgumentTypeError(f"{text!r} is {needed}") from e


def out_path(text: str) -> Path:
    """Something to write. That it can be written is checked before hours of work, not after."""
    path = _path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{path} cannot be written: there is no directory {path.parent}")
    if not all(os.access(place, os.W_OK) for place in (path.parent, path) if place.exists()):
        raise ArgumentTypeError(f"{path} cannot be written: no permission. Choose another place")
    return path


def out_file(text: str) -> Path:
    path = _path(text)
    if path.exists() and not path.is_file():
        kind = "directory" if path.is_dir() else "device"
        raise ArgumentTypeError(f"{text} is a {kind}; give the name of a file to write")
    return out_path(text)


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111 (pathlib's raises for unknown users)


def out_dir(text: str) -> Path:
    """It need not exist, nor those above it."""
    path = _path(text)
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ArgumentTypeError(f"{existing} is a file; give the name of a directory")
    if not os.access(existing, os.W_OK):
        raise ArgumentTypeError(f"{path} cannot be written: no permission. Choose another place")
    return path
