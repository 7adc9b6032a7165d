"""What is tried: a table of kinds, each with a function that makes a case of it.

A case is a name, `KIND:SEED.NUMBER`, and its name decides everything about it. Its maker writes the
input into an empty room and returns a `Trial`, whose `run` returns the name of an outcome that is
allowed, or raises ValueError or OSError, which is allowed too; anything else that it raises is not.
"""

import contextlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.fuzz import checkpoints, commands, images, seeds
from benchmarks.fuzz.seeds import Seeds
from benchmarks.fuzz.trial import Trial
from vit_jax.models import kinds


class Kind(NamedTuple):
    make: Callable[[random.Random, Seeds, Path], Trial]
    share: int  # of ten cases


KINDS = {
    "checkpoints": Kind(checkpoints.damaged, 4),
    "cards": Kind(checkpoints.described, 2),
    "images": Kind(images.damaged, 3),
    "commands": Kind(commands.odd, 1),
}


def names(only: str | None, seed: int) -> Iterator[str]:
    """The names of cases without end, of all kinds in turn."""
    shares = [name for name, kind in KINDS.items() for _ in range(kind.share)]
    for number in itertools.count():
        yield f"{only or shares[number * 3 % len(shares)]}:{seed}.{number}"


def prepared(case: str, good: Path, room: Path) -> Trial:
    """The trial of a case, its input written into a room."""
    kind = KINDS[case.partition(":")[0]]
    with warnings.catch_warnings(action="ignore"):  # zipfile warns of what we do on purpose
        return kind.make(random.Random(case), seeds.read(good), room)


@contextlib.contextmanager
def remembered_shapes() -> Iterator[None]:
    """Within it, each model is traced once: most of a case's time would go into the same few."""
    trace, known = kinds.parameter_shapes, {}

    def shapes(*arguments: Any) -> dict[str, Any]:
        if (key := repr(arguments)) not in known:
            known[key] = trace(*arguments)
        return known[key]

    with mock.patch.object(kinds, "parameter_shapes", shapes):
        yield
