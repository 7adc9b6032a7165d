"""Writing a checkpoint in any format, and converting one from any other, one array at a time."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from vit_jax.aliases import Params, Size
from vit_jax.checkpoint import foreign, official, opening, orbax_directory
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.lazy import Lazy, from_array
from vit_jax.checkpoint.names import check_fit
from vit_jax.checkpoint.plan import Plan
from vit_jax.models.kinds import Shaped, flatten
from vit_jax.untrusted import as_path

_WRITERS = {"npz": official.write, "orbax": orbax_directory.write}
TARGETS = (*_WRITERS, *foreign.LAYOUTS)


class Report(NamedTuple):
    source_format: str
    target_format: str
    lines: list[str]
    num_parameters: int


def convert(
    source: epath.PathLike,
    target: epath.PathLike,
    *,
    to: str | None = None,
    num_heads: int | None = None,
    image_size: Size | None = None,
) -> Report:
    """Writes the checkpoint at `source` to `target`; reports what was done, line by line.

    Without `to`, a target named .npz is written as such, .safetensors in timm's layout, and
    anything else as an Orbax directory. Nothing is left behind if it fails.
    """
    target = as_path(target)
    to = to or _format_by_name(target)
    if to not in TARGETS:
        raise ValueError(f"There is no format {to!r} to write; choose {', '.join(TARGETS)}.")
    _refuse_same(source, target)
    with opening.open(source, num_heads=num_heads, image_size=image_size) as found:
        written = write(found.plan.leaves, found.card, target, to=to, where=str(source))
        lines = [f"read ({found.format}):", *found.plan.describe()]
        lines += [f"wrote ({to}):", *written.describe()]
        count = sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in found.shapes.values())
        return Report(found.format, to, lines, count)


def _format_by_name(path: epath.Path) -> str:
    if path.name.endswith(".npz"):
        return "npz"
    return "timm" if path.name.endswith(".safetensors") else "orbax"


def _refuse_same(source: epath.PathLike, target: epath.Path) -> None:
    source = as_path(source)
    if source.exists() and target.exists() and source.resolve() == target.resolve():
        raise ValueError(
            f"{source} would be written over itself; give another name for the result."
        )


def save(
    params: Params, path: epath.PathLike, *, card: Card | None = None, to: str = "npz"
) -> None:
    """Writes an official .npz (ViT-paper names), which the reference, timm and Hugging Face read
    too; or, with a card and `to`, an orbax, timm, hf or lucidrains checkpoint.
    """
    leaves = {name: from_array(leaf) for name, leaf in flatten(params).items()}
    write(leaves, card, path, to=to)


def write(
    leaves: Mapping[str, Lazy],
    card: Card | None,
    path: epath.PathLike,
    *,
    to: str,
    where: str = "The model",
) -> Plan:
    """Writes leaves by flat name in a format of TARGETS, after comparing them with the card.

    All formats but npz and orbax need a card.
    """
    path = as_path(path)
    if card is not None:
        wanted: dict[str, Shaped] = dict(card.parameter_shapes())
        if card.grid is None:  # any number of positions will do
            wanted |= {name: leaves[name] for name in wanted if name in leaves and "pos" in name}
        check_fit(leaves, wanted, where=where)
    if to in _WRITERS:
        return _WRITERS[to](leaves, path, card, where)
    if card is None:
        raise ValueError(
            f"{where} has no card, and its parameters are not those of a Vision Transformer, "
            f"so it cannot be written --to {to}; write --to npz or orbax."
        )
    return foreign.write(path, leaves, card, to)
