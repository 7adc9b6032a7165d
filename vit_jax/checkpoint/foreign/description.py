"""What a layout does, what it finds out about a file, and what it decides about one to write."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from vit_jax.aliases import Json, Size
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import rules
from vit_jax.checkpoint.foreign.rules import Dims, Rule, Source
from vit_jax.checkpoint.foreign.tokens import Token
from vit_jax.checkpoint.lazy import Lazy
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer, kinds

# Widths whose heads are not 64 wide (ViT-H, g, G, So400m, giant-opt).
_HEADS = {1280: 16, 1408: 16, 1664: 16, 1152: 16, 1536: 16}
# The weights whose shapes show the size of a model.
_NEEDED = re.compile(
    r"(embedding|stem|(Transformer/encoderblock|MixerBlock)_0/.*(query|Dense_0))/kernel"
)


@dataclasses.dataclass
class Reading:
    card: Card
    rules: list[Rule]
    tokens: list[Token] = dataclasses.field(default_factory=list)
    position: str | None = None
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)  # pattern -> reason
    zeros: str = ""  # a pattern for leaves of ours that the layout lacks
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Writing:
    """`rules` for the weights that only change name and layout, `mapped` for the others; `files`
    are the JSON files that go beside them.
    """

    rules: list[Rule]
    mapped: list[Mapped] = dataclasses.field(default_factory=list)
    files: dict[str, Json] = dataclasses.field(default_factory=dict)
    zeros: str = ""  # a pattern for leaves of ours that the layout lacks, and that must be zero
    notes: list[str] = dataclasses.field(default_factory=list)


class Layout(Protocol):
    """The functions of a layout's module."""

    def source_names(self, names: Collection[str]) -> dict[str, str] | None:
        """The file's name of each array, by the name that the rules use; None for other files."""
        ...

    def describe(self, source: Source, config: Json, num_heads: int | None) -> Reading: ...


class WritableLayout(Layout, Protocol):
    def prepare(
        self, model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]
    ) -> Writing: ...


def recognise(
    source: Source,
    body: Sequence[Rule],
    *,
    width: int,
    num_heads: int | None,
    patch: Sequence[int] = (),
) -> tuple[kinds.Found, int, list[str]]:
    """The model, as far as it shows in shapes once they are ours; its number of classes; and notes
    on what was assumed, such as `num_heads` if they are None.
    """
    num_heads, notes = _resolve_heads(num_heads, width, source.where)
    present = [rule for rule in body if rule.theirs in source]
    mapped = rules.read(source, present, Dims(num_heads, patch)).mapped
    shapes = {item.target: item.array for item in mapped}
    if (found := kinds.recognise(shapes)) is None:
        needed = [rule.theirs for rule in body if _NEEDED.fullmatch(rule.ours[0])]
        shown = ", ".join(f"{name} {source.shape(name)}" for name in needed)
        raise ValueError(f"{source.where} cannot become one of our models: it has {shown}.")
    num_classes = shapes["head/kernel"].shape[-1] if "head/kernel" in shapes else 0
    return found, num_classes, notes


def _resolve_heads(num_heads: int | None, width: int, where: str) -> tuple[int, list[str]]:
    """The number of heads, which no weight shows: a known one, or (with a note) the published one
    for that width.
    """
    if num_heads is not None:
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"{where}: {num_heads} heads do not divide a width of {width}.")
        return num_heads, []
    num_heads = _HEADS.get(width) or (width // 64 if width % 64 == 0 else None)
    if not num_heads:
        raise ValueError(
            f"{where} does not say how many heads it has, and no published model has a width of "
            f"{width}. Give --num_heads=N (num_heads= in Python), or put the model's config.json "
            "beside it."
        )
    return num_heads, [f"note: {num_heads} heads, as published models of width {width} have"]


def find_grid(
    count: int | None, size: Sequence[int] | int | None, stride: Sequence[int]
) -> Size | None:
    """The grid of `count` patches: that of an image size if it has as many, else a square one."""
    if size:
        height, width = (size, size) if isinstance(size, int) else size
        grid = height // stride[0], width // stride[1]
        if count is None or count == grid[0] * grid[1]:
            return grid
    return None if count is None else kinds.square(count)


def refuse(layout: str, problems: Mapping[str, object]) -> None:
    """Raises with those problems that have a true value."""
    if found := "; ".join(problem for problem, exists in problems.items() if exists):
        hint = "write --to npz, which holds every model"
        raise ValueError(f"{layout} cannot hold this model: {found}; {hint}.")
