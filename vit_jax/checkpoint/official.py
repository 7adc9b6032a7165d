"""Google's .npz checkpoints of every generation.

From names and shapes alone, `read_plan` says which array of the file becomes which leaf of our
tree. `docs/decisions/0002-one-tree-of-names.md` describes the generations and why one tree serves
them all.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from etils import epath

from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.lazy import Lazy, concatenated, from_array, read_ahead, unstacked
from vit_jax.checkpoint.names import summarize
from vit_jax.checkpoint.npz import Archive, write_archive
from vit_jax.checkpoint.plan import Mapped, Plan
from vit_jax.models.kinds import Shapes, square
from vit_jax.models.layers import ATTENTION
from vit_jax.untrusted import parse_json

log = logging.getLogger(__name__)

POSITION = "Transformer/posembed_input/pos_embedding"
_POSITIONS = ("pos_embedding", "Transformer/pos_embedding", POSITION)

# Where a file may keep the parameters. Each prefix that any name starts with is stripped.
_PREFIXES = ("opt/target/", "params/", "img/")

# Numbered by position in the block (the files) -> numbered per class (linen).
_TO_LINEN = {
    "MultiHeadDotProductAttention_1": ATTENTION,
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
_TO_OFFICIAL = {ours: theirs for theirs, ours in _TO_LINEN.items()}
_IN_BLOCK = re.compile(r"(Transformer/encoderblock(?:_\d+)?)/([^/]+)/(.+)")
_GROUP_NORM = re.compile(r"(?:.*/)?gn(?:\d+|_root|_proj)/(?:scale|bias)")


def read_plan(archive: Archive) -> Plan:
    """Which array of a file becomes which parameters, and how."""
    names = _strip_prefixes(archive.arrays)
    add_row = "cls" in names.values() and _lacks_class_row(names, archive.arrays)
    mapped: list[Mapped] = []
    latest: dict[int, np.ndarray] = {}
    for name, path in names.items():
        mapped += _mapped(name, path, archive.arrays[name], add_row, latest)
    outside = sorted(set(archive.arrays) - set(names))
    return Plan(mapped, [(name, "not a parameter (optimizer or step)") for name in outside])


def _lacks_class_row(names: Mapping[str, str], shapes: Shapes) -> bool:
    """Whether only the patches have positions, as in big_vision, whose files have a prefix or the
    table at the root. Other prefixed files have either; a square number of rows decides.
    """
    for table, path in names.items():
        if path in _POSITIONS and len(shapes[table].shape) > 1:
            is_square = square(shapes[table].shape[-2]) is not None
            has_prefix = path != table
            return path == "pos_embedding" or (is_square and (has_prefix or path != POSITION))
    return False


def _strip_prefixes(stored: Iterable[str]) -> dict[str, str]:
    names = {name: name for name in stored}
    for prefix in _PREFIXES:
        inside = {n: p.removeprefix(prefix) for n, p in names.items() if p.startswith(prefix)}
        if inside:
            if outside := summarize(sorted(set(names) - set(inside))):
                shown = ", ".join(outside[:6])
                log.info("Left %d arrays outside %s alone: %s", len(outside), prefix, shown)
            names = inside
    return names


def _mapped(
    name: str, path: str, array: Lazy, add_row: bool, latest: dict[int, np.ndarray]
) -> Iterator[Mapped]:
    if path in _POSITIONS:
        yield _position(name, array, add_row)
    elif _GROUP_NORM.fullmatch(path):
        how = "same" if len(array.shape) == 1 else "leading axes of one dropped"
        yield Mapped((name,), path, how, array.map(np.ravel))
    elif path.startswith("Transformer/encoderblock/"):
        for i, row in enumerate(unstacked(array, latest)):
            ours = _renamed(path.replace("encoderblock/", f"encoderblock_{i}/"), _TO_LINEN)
            yield Mapped((name,), ours, "one block of the stack", row)
    else:
        ours = _renamed(path, _TO_LINEN)
        yield Mapped((name,), ours, "same" if ours == name else "renamed", array)


def _position(name: str, array: Lazy, add_row: bool) -> Mapped:
    """Position rows as (1, n, d), with zeros for a class token that has none."""
    if len(array.shape) < 2:
        raise ValueError(f"{name} has the shape {array.shape}, and a table of positions two axes")
    rows, width = array.shape[-2:]
    table = array.map(lambda x: x.reshape(1, rows, width))
    if not add_row:
        return Mapped((name,), POSITION, "same" if name == POSITION else "renamed", table)
    how = f"the class token has no position row of its own; {rows} rows became {rows + 1}"
    log.info("%s: %s.", POSITION, how)
    row = from_array(np.zeros((1, 1, width), table.dtype))
    return Mapped((name,), POSITION, how, concatenated([row, table], axis=1))


def _renamed(path: str, modules: Mapping[str, str]) -> str:
    if match := _IN_BLOCK.fullmatch(path):
        block, module, rest = match.groups()
        return f"{block}/{modules.get(module, module)}/{rest}"
    return path


def write(leaves: Mapping[str, Lazy], path: epath.PathLike, card: Card | None, where: str) -> Plan:
    """Writes an .npz in the names and shapes of the ViT-paper files, which every reader knows; the
    card, if any, is where other readers do not look.
    """
    mapped: list[Mapped] = []
    for ours, leaf in leaves.items():
        name = _renamed(ours, _TO_OFFICIAL)
        how = "same" if name == ours else "renamed"
        if _GROUP_NORM.fullmatch(ours):
            leaf, how = leaf.map(lambda x: x.reshape(1, 1, 1, -1)), "three leading axes of one"
        mapped.append(Mapped((ours,), name, how, leaf))
    plan = Plan(mapped)
    write_archive(path, read_ahead(plan.leaves, where=where), card=card.dumps() if card else None)
    return plan


def read_card(archive: Archive) -> Card | None:
    """The card that the file was written with, if any."""
    if archive.card is None:
        return None
    given = parse_json(archive.card, where="The card in it")
    ours = "format" in given  # else it is some other program's comment
    return Card.from_json(given, where="The card in it") if ours else None
