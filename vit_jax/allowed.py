"""Which values are allowed, as a value that says so in words.

The tables of options (config.py) and of a model's fields (models/fields.py) are made of these.
"""

import difflib
import numbers
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MOST = 10**9  # of anything counted, unless a table says otherwise
HUGE = 3e38  # almost the largest float32


class Allowed(NamedTuple):
    words: str  # as in "it must be …"
    holds: Callable[[Any], bool]
    brief: str = ""  # for --help, where the kind of a value goes without saying

    def problem(self, name: str, value: object) -> list[str]:
        """What to say of a value that is not allowed, or nothing."""
        if self.holds(value):
            return []
        given = repr(value)
        given = given if len(given) <= 100 else f"{given[:99]}…"
        return [f"{name} is {given} and must be {self.words}"]


def whole(least: int, most: int = MOST) -> Allowed:
    def holds(value: Any) -> bool:
        return _is(numbers.Integral, value) and least <= value <= most

    brief = f"{least} or more" if most == MOST else f"{least:,} to {most:,}"
    return Allowed(f"a whole number from {least:,} to {most:,}", holds, brief)


def number(
    least: float = -HUGE, most: float = HUGE, *, above: float = -HUGE, below: float = HUGE
) -> Allowed:
    """A finite number within limits, which `above` and `below` themselves are not."""
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    brief = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if abs(limit) < HUGE)

    def holds(value: Any) -> bool:
        return _is(numbers.Real, value) and least <= value <= most and above < value < below

    return Allowed(f"a number {brief}" if brief else "a finite number", holds, brief)


def one_of(*values: str | int) -> Allowed:
    *others, last = map(str, values)
    words = f"{', '.join(others)} or {last}" if others else last
    return Allowed(words, lambda value: type(value) in (str, int) and value in values, words)


def optional(allowed: Allowed) -> Allowed:
    return Allowed(f"{allowed.words}, or None", lambda v: v is None or allowed.holds(v))


def several(allowed: Allowed, counts: Iterable[int], words: str) -> Allowed:
    """A tuple or list of as many as one of `counts`, each of them allowed."""

    def holds(value: Any) -> bool:
        is_list = isinstance(value, tuple | list) and len(value) in counts
        return is_list and all(map(allowed.holds, value))

    return Allowed(words, holds)


def ordered(allowed: Allowed) -> Allowed:
    """Two values, the first no larger than the second."""
    pair = several(allowed, [2], f"(first, last) in this order, each {allowed.words}")
    return Allowed(pair.words, lambda value: pair.holds(value) and value[0] <= value[1])


def either(first: Allowed, second: Allowed) -> Allowed:
    words = f"{first.words}, or {second.words}"
    return Allowed(words, lambda value: first.holds(value) or second.holds(value))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most like a wrong one, for the end of a message about it."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_pattern(value: object) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):  # of what Python may read otherwise one day
            return isinstance(value, str) and value != "" and bool(re.compile(value))
    except (re.error, RecursionError, OverflowError):
        return False


switch = Allowed("True or False", lambda value: isinstance(value, bool))
text = Allowed("text", lambda value: isinstance(value, str))
named = Allowed("a name", lambda value: isinstance(value, str) and bool(value.strip()))
pattern = Allowed("a regular expression", _is_pattern)
