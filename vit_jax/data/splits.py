"""Split expressions (`train[:90%]+extra[5:]`) and held-out splits, for sources that are lists.

tfds has its own reader of the same expressions; this one serves folders, tables and arrays.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

_TERM = re.compile(r"(?P<name>[^\[\]+]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


def select(expression: str, splits: Mapping[str, Sequence[T]], dataset: str) -> list[T]:
    """The examples that an expression names, in order. `all` is all splits, one after the other."""
    chosen: list[T] = []
    for name, start, stop in _terms(expression):
        if name in splits:
            members = splits[name]
        elif name == "all":
            members = [example for split in splits.values() for example in split]
        else:
            raise ValueError(
                f"{dataset} has no split '{name}'; it has {', '.join(splits)} "
                "(set config.pp.train and config.pp.test)"
            )
        bounds = (_boundary(bound, len(members)) for bound in (start, stop))
        chosen += members[slice(*bounds)]
    if not chosen:
        counts = ", ".join(f"{name} ({len(members)})" for name, members in splits.items())
        raise ValueError(f"split '{expression}' of {dataset} has no examples; there are {counts}")
    return chosen


def base_names(expression: str) -> list[str]:
    """The splits an expression draws from: `train[:5]+test` gives train and test."""
    return [name for name, _, _ in _terms(expression)]


def hold_out(
    examples: Sequence[T],
    fraction: float,
    key: Callable[[T], str],
    stratum: Callable[[T], Hashable],
) -> dict[str, list[T]]:
    """A train and a test split, the same on every machine, with `fraction` of each stratum in test.

    Examples are ordered by a hash of their key, so a slice of either split is a fair sample too.
    A stratum of two or more has at least one in test.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"test_fraction={fraction} is not a share: at least 0, and less than 1")
    ordered = in_hash_order(examples, key)
    groups = defaultdict(list)
    for example in ordered:
        groups[stratum(example)].append(key(example))
    held_out = set()
    for keys in groups.values():
        least = 1 if fraction > 0 and len(keys) > 1 else 0
        held_out.update(keys[: max(least, round(fraction * len(keys)))])
    return {
        "train": [example for example in ordered if key(example) not in held_out],
        "test": [example for example in ordered if key(example) in held_out],
    }


def in_hash_order(examples: Sequence[T], key: Callable[[T], str]) -> list[T]:
    """A shuffle that depends on nothing but the keys."""
    return sorted(examples, key=lambda e: hashlib.sha256(key(e).encode(errors="replace")).digest())


def _terms(expression: str) -> list[tuple[str, str | None, str | None]]:
    terms = []
    for part in expression.split("+"):
        if not (match := _TERM.fullmatch(part.strip())):
            raise ValueError(
                f"split '{expression}' was not understood at '{part}'; "
                "write for example train, train[:90%], train[10%:20%]+test[:5]"
            )
        terms.append((match["name"], match["start"], match["stop"]))
    return terms


def _boundary(bound: str | None, length: int) -> int | None:
    """Percentages round to the nearest example, as tfds rounds them."""
    if bound is None:
        return None
    if bound.endswith("%"):
        percent = int(bound[:-1])
        if abs(percent) > 100:
            raise ValueError(f"a split boundary of {bound} is outside -100% to 100%")
        return round((percent + 100 if percent < 0 else percent) * length / 100)
    return int(bound)
