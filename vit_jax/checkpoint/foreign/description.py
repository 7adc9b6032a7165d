"""What a layout does, what it finds out about a file, and what it decides about one to write."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from vit_jax.aliases import Json
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign.rules import Rule, Source
from vit_jax.checkpoint.foreign.tokens import Token
from vit_jax.checkpoint.lazy import Lazy
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer

# Widths whose heads are not 64 wide (ViT-H, g, G, So400m, giant-opt).
_HEADS = {1280: 16, 1408: 16, 1664: 16, 1152: 16, 1536: 16}


@dataclasses.dataclass
class Reading:
    card: Card
    rules: list[Rule]
    tokens: list[Token] = dataclasses.field(default_factory=list)
    position: str | None = None
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)  # pattern -> reason
    zeros: list[str] = dataclasses.field(default_factory=list)  # leaves of ours the layout lacks
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Writing:
    """`rules` for the weights that only change name and layout, `mapped` for the others; `files`
    are the JSON files that go beside them.
    """

    rules: list[Rule]
    mapped: list[Mapped] = dataclasses.field(default_factory=list)
    files: dict[str, Json] = dataclasses.field(default_factory=dict)
    unused: list[str] = dataclasses.field(default_factory=list)  # our leaves that must be zero
    notes: list[str] = dataclasses.field(default_factory=list)


class Layout(Protocol):
    """The functions of a layout's module."""

    def recognises(self, names: Collection[str]) -> bool: ...

    def source_names(self, names: Collection[str]) -> dict[str, str]:
        """The file's name of each array, by the name that the rules use."""
        ...

    def describe(
        self, source: Source, config: Json, *, num_heads: int | None, where: str
    ) -> Reading: ...


class WritableLayout(Layout, Protocol):
    def prepare(
        self, model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]
    ) -> Writing: ...


def resolve_heads(
    given: int | None, known: int | None, width: int, *, where: str, head_dim: int = 64
) -> tuple[int, str | None]:
    """The number of heads, which no weight shows: given by the caller, found in the file's own
    configuration, or (with a note) assumed to be the published one for that width.
    """
    if num_heads := given or known:
        return int(num_heads), None
    num_heads = _HEADS.get(width) or (width // head_dim if width % head_dim == 0 else None)
    if not num_heads:
        raise ValueError(
            f"{where} does not say how many heads it has, and no published model has a width of "
            f"{width}. Give --num_heads=N (num_heads= in Python), or put the model's config.json "
            "beside it."
        )
    return num_heads, f"note: {num_heads} heads, as published models of width {width} have"


def refuse(problems: Sequence[str], layout: str, hint: str = "write --to npz instead") -> None:
    if problems:
        raise ValueError(f"{layout} cannot hold this model: {'; '.join(problems)}; {hint}.")
