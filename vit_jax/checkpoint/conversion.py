"""From any format to any other, one array at a time."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import numpy as np
from etils import epath

from vit_jax.checkpoint import foreign, formats, official, store
from vit_jax.checkpoint.card import Card, check_card, infer_card, parameter_shapes
from vit_jax.checkpoint.inspection import check_fit
from vit_jax.checkpoint.lazy import Lazy, Mapped, Plan, from_array, read_ahead, read_all
from vit_jax.checkpoint.npz import Archive, open_archive, write_archive

TARGETS = ("npz", "orbax", *foreign.LAYOUTS)


class Opened(NamedTuple):
    """A checkpoint whose names and shapes are known and whose weights are not read yet."""

    format: str
    plan: Plan
    card: Card | None


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
    image_size: Sequence[int] | None = None,
) -> Report:
    """Writes the checkpoint at `source` to `target`; returns what was done, line by line.

    Without `to`, a target named .npz becomes one, .safetensors becomes timm's, and anything else an
    Orbax directory. Nothing is left behind if it fails.
    """
    target = epath.Path(target).expanduser()
    to = to or _target_of(target)
    if to not in TARGETS:
        raise ValueError(f"There is no format {to!r} to write; choose {', '.join(TARGETS)}.")
    _refuse_same(source, target)
    with opened(source, num_heads=num_heads, image_size=image_size) as checkpoint:
        leaves = checkpoint.plan.leaves()
        written = write(leaves, checkpoint.card, target, to=to, where=str(source))
        lines = [f"read ({checkpoint.format}):", *checkpoint.plan.told()]
        lines += [f"wrote ({to}):", *written.told()]
        count = sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves.values())
        return Report(checkpoint.format, to, lines, count)


def _target_of(path: epath.Path) -> str:
    if path.name.endswith(".npz"):
        return "npz"
    return "timm" if path.name.endswith(".safetensors") else "orbax"


def _refuse_same(source: epath.PathLike, target: epath.Path) -> None:
    source = epath.Path(source).expanduser()
    if source.exists() and target.exists() and source.resolve() == target.resolve():
        raise ValueError(
            f"{source} would be written over itself; give another name for the result."
        )


@contextlib.contextmanager
def opened(
    path: epath.PathLike,
    *,
    num_heads: int | None = None,
    image_size: Sequence[int] | None = None,
) -> Iterator[Opened]:
    """The checkpoint at a path, of whatever format, as our leaves.

    `num_heads` and `image_size` (height, width) are for files that do not tell them.
    """
    kind, path = formats.recognise(path)
    if kind == formats.SAFETENSORS:
        plan, card, layout = foreign.open_plan(path, num_heads=num_heads)
        yield Opened(layout, plan, card)
    elif kind in (formats.ORBAX, formats.RUN):
        if kind == formats.RUN:
            tree, card = store.read_step(path)
        else:
            tree, card = store.read(path), store.read_card(path)
        flat = flax.traverse_util.flatten_dict(tree, sep="/")
        leaves = {name: from_array(array) for name, array in flat.items()}
        plan = Plan([Mapped((name,), name, "same", leaf) for name, leaf in leaves.items()])
        card = card or infer_card(leaves, source=path.name, image_size=image_size)
        yield Opened(kind, plan, card)
    else:
        with open_archive(path) as archive:
            plan = _official_plan(archive)
            card = official.card_of(archive) or infer_card(
                plan.leaves(), source=path.name, image_size=image_size
            )
            yield Opened(kind, plan, card)


def _official_plan(archive: Archive) -> Plan:
    latest: dict[str, np.ndarray] = {}  # of a stacked array all blocks are taken in turn

    def read(name: str) -> np.ndarray:
        if name not in latest:
            latest.clear()
            latest[name] = archive.read(name)
        return latest[name]

    mapped = []
    steps = official.plan(archive.shapes)
    for name, leaves in steps.items():
        for leaf in leaves:
            lazy = Lazy(
                tuple(leaf.shape),
                np.dtype(leaf.dtype),
                lambda name=name, leaf=leaf: leaf.convert(read(name)),
            )
            how = leaf.note or ("same" if name == leaf.path else "renamed")
            if len(leaves) > 1:
                how = "one block of the stack"
            mapped.append(Mapped((name,), leaf.path, how, lazy))
    outside = sorted(set(archive.shapes) - set(steps))
    return Plan(mapped, [(name, "not a parameter (optimizer or step)") for name in outside])


def write(
    leaves: Mapping[str, Lazy],
    card: Card | None,
    path: epath.PathLike,
    *,
    to: str,
    where: str = "The model",
) -> Plan:
    """Writes flat leaves in a format of TARGETS. All but npz and orbax need a card."""
    path = epath.Path(path).expanduser()
    if card is not None:
        check_card(card, where=f"The card of {where}")
        wanted = parameter_shapes(card)
        if card["grid"] is None:  # as many positions as there are
            wanted |= {name: leaves[name] for name in wanted if name in leaves and "pos" in name}
        check_fit(leaves, wanted, where=where)
    if to in foreign.LAYOUTS:
        if card is None:
            raise ValueError(
                f"{where} has no card, and its parameters are not those of a Vision Transformer, "
                f"so it cannot be written --to {to}; write --to npz or orbax."
            )
        return foreign.write(path, leaves, card, to)
    if to == "orbax":
        plan = Plan([Mapped((name,), name, "same", leaf) for name, leaf in leaves.items()])
        flat = read_all(leaves, where=where)
        store.write(flax.traverse_util.unflatten_dict(flat, sep="/"), path, card)
        return plan
    plan = official.write_plan(leaves)
    text = json.dumps(card) if card is not None else None
    write_archive(path, read_ahead(plan.leaves(), where=where), card=text)
    return plan


def save_as(params: Mapping[str, Any], card: Card, path: epath.PathLike, *, to: str) -> Plan:
    """Writes a parameter tree of ours in any format of TARGETS."""
    flat = flax.traverse_util.flatten_dict(dict(params), sep="/")
    return write({name: from_array(leaf) for name, leaf in flat.items()}, card, path, to=to)
