"""What a layout finds out about a foreign file, or decides about a file to write."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign.rules import Rule
from vit_jax.checkpoint.foreign.tokens import Token
from vit_jax.checkpoint.plan import Mapped

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
    are the texts that go beside them.
    """

    rules: list[Rule]
    mapped: list[Mapped] = dataclasses.field(default_factory=list)
    files: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    unused: list[str] = dataclasses.field(default_factory=list)  # our leaves that must be zero
    notes: list[str] = dataclasses.field(default_factory=list)


def resolve_heads(
    given: int | None, known: Any, width: int, *, where: str, head_dim: int = 64
) -> tuple[int, str | None]:
    """The number of heads, which no weight tells: said by the caller, by the file's own
    configuration, or (with a note) taken to be the published one of that width.
    """
    if given or known:
        return int(given or known), None
    num_heads = _HEADS.get(width) or (width // head_dim if width % head_dim == 0 else None)
    if not num_heads:
        raise ValueError(
            f"{where} does not tell its number of heads, and none is known for a width of {width}. "
            "Say it: --num_heads=N (num_heads= in Python), or put the model's config.json beside "
            "it."
        )
    return num_heads, f"note: {num_heads} heads, as published models of width {width} have"


def refuse(problems: Sequence[str], layout: str, hint: str = "write --to npz instead") -> None:
    if problems:
        raise ValueError(f"{layout} cannot hold this model: {'; '.join(problems)}; {hint}.")
