"""Names and messages from outside, made safe to print.

A file may be called anything but "/": escape sequences that a terminal would obey, line breaks,
marks that turn the direction of text, bytes that are not UTF-8. They are shown, as `\\x1b`.
"""

import io
import logging
import re
import sys
from typing import Any

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction
    "\u2028\u2029\ud800-\udfff]"  # line breaks; what stands for bytes that are not UTF-8
)


def printable(text: object) -> str:
    """One line that does nothing but show the text."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], str(text))


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


class Formatter(logging.Formatter):
    """Log messages may be of several lines, and are printable otherwise."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def prepare_streams() -> None:
    """Lets this process print and log anything, and read any name, whatever the locale."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        errors = "surrogateescape" if stream is sys.stdin else "backslashreplace"
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    logging.setLogRecordFactory(_record)  # for handlers of libraries, which may come later


def _record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = logging.LogRecord(*args, **kwargs)
    if record.name.partition(".")[0] == "vit_jax":
        record.msg, record.args = printable_lines(record.getMessage()), None
    return record
