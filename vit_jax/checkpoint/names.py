"""Names of parameters: summarised for a reader, compared with a model's, and made into a tree."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import flax.traverse_util

from vit_jax.aliases import Params
from vit_jax.models.kinds import Shapes, flatten
from vit_jax.models.zoo import guess_model

# A block's number is between dots, or after its name and an underscore.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=encoderblock_)\d+(?=/|$)|(?<=MixerBlock_)\d+(?=/|$)")


def summarize(names: Iterable[str]) -> list[str]:
    """Names that differ only in block numbers become one: blocks.{0..11}.norm1.weight."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(without_numbers(name), []).append(name)
    return [with_ranges(pattern, members) for pattern, members in groups.items()]


def listed(names: Iterable[str], most: int = 30) -> str:
    """The names summarised, and only so many of them as a person may want to read."""
    shown = summarize(names)
    more = [f"and {len(shown) - most:,} more"] if len(shown) > most else []
    return ", ".join([*shown[:most], *more])


def without_numbers(name: str) -> str:
    return _NUMBER.sub("*", name)


def with_ranges(pattern: str, names: Sequence[str]) -> str:
    """A pattern from `without_numbers`, with the numbers of `names` filled in."""
    for numbers in zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True):
        pattern = pattern.replace("*", _range(sorted(set(numbers))), 1)
    return pattern


def _range(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    return f"{{{','.join(map(str, numbers))}}}"


def check_fit(found: Shapes, wanted: Shapes, *, where: str) -> None:
    """One error with every missing, extra and misshapen parameter (flat names, `.shape`s)."""
    problems: list[str] = []
    if missing := listed(sorted(set(wanted) - set(found))):
        problems.append(f"the checkpoint has no {missing}")
    if extra := listed(sorted(set(found) - set(wanted))):
        problems.append(f"the model has no {extra}")
    by_shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name in sorted(set(found) & set(wanted)):
        theirs, ours = tuple(found[name].shape), tuple(wanted[name].shape)
        if theirs != ours:
            by_shapes.setdefault((theirs, ours), []).append(name)
    problems += [
        f"{listed(names)}: {theirs} in the checkpoint, {ours} in the model"
        for (theirs, ours), names in by_shapes.items()
    ]
    if problems:
        guess, own = guess_model(found), guess_model(wanted)
        hint = f" The checkpoint looks like a {guess}; try that model."
        raise ValueError(
            f"{where} does not fit the model: {'; '.join(problems[:30])}."
            + (hint if guess and guess != own else "")
        )


def inspect_params(
    *, params: Params, expected: Params, fail_if_extra: bool = True, fail_if_missing: bool = True
) -> Params:
    """The reference's check: compares names alone, and returns `params`."""
    found, wanted = set(flatten(params)), set(flatten(expected))
    problems: list[str] = []
    if fail_if_missing and (missing := sorted(wanted - found)):
        problems.append(f"missing: {', '.join(summarize(missing))}")
    if fail_if_extra and (extra := sorted(found - wanted)):
        problems.append(f"extra: {', '.join(summarize(extra))}")
    if problems:
        raise ValueError(f"The parameters are not the expected ones; {'; '.join(problems)}.")
    return params


def recover_tree(keys: Sequence[str], values: Sequence[object]) -> dict[str, Any]:
    """A nested dict from flat names.

    recover_tree(['a/b', 'a/c'], [1, 2]) is {'a': {'b': 1, 'c': 2}}.
    """
    return flax.traverse_util.unflatten_dict(dict(zip(keys, values, strict=True)), sep="/")
