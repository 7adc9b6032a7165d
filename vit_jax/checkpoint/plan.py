"""How a checkpoint becomes our parameters, or vice versa: array by array, and in words."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from vit_jax.checkpoint.lazy import Lazy
from vit_jax.checkpoint.names import with_ranges, without_numbers


class Mapped(NamedTuple):
    """One array of the result: what it is made from, its name, and how, in words."""

    sources: tuple[str, ...]
    target: str
    how: str
    array: Lazy


@dataclasses.dataclass(frozen=True)
class Plan:
    mapped: list[Mapped]
    dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # name, reason
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def leaves(self) -> dict[str, Lazy]:
        return {mapped.target: mapped.array for mapped in self.mapped}

    def describe(self) -> list[str]:
        """The plan in a few lines: arrays that differ only in block numbers share one."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        unchanged = 0
        for mapped in self.mapped:
            if mapped.how == "same" and mapped.sources == (mapped.target,):
                unchanged += 1
                continue
            sources = _folded(mapped.sources) or "(nothing)"
            key = (without_numbers(sources), without_numbers(mapped.target), mapped.how)
            groups.setdefault(key, []).append(sources)
        lines = [
            f"  {with_ranges(pattern, sources)} -> {target}: {how}"
            for (pattern, target, how), sources in groups.items()
        ]
        if unchanged:
            lines.append(f"  {unchanged} arrays unchanged in name and layout")
        lines += [f"  dropped {name}: {reason}" for name, reason in self.dropped]
        return lines + [f"  {note}" for note in self.notes]


def _folded(names: Sequence[str]) -> str:
    """a/query/kernel, a/key/kernel as a/{query,key}/kernel; others with a plus between them."""
    if len(names) < 2:
        return "".join(names)
    parts = [name.split("/") for name in names]
    if len({len(part) for part in parts}) > 1:
        return " + ".join(names)
    differing = [i for i, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1:
        return " + ".join(names)
    where = differing[0]
    folded = "{" + ",".join(p[where] for p in parts) + "}"
    return "/".join([*parts[0][:where], folded, *parts[0][where + 1 :]])
