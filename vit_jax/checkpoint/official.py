"""Google's .npz checkpoints of every generation, as an Orbax handler.

A *plan* says, from names and shapes alone, which array of the file becomes which leaf of our tree,
and how. Restoring walks the plan array by array, so that no second copy of the model is ever on the
host. `docs/decisions/0002-one-tree-of-names.md` says what the generations are and why one tree
serves all.
"""

import dataclasses
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint import inspection, lazy
from vit_jax.checkpoint.card import Card, check_card
from vit_jax.checkpoint.npz import Archive, open_archive, write_archive

log = logging.getLogger(__name__)

POSITION = "Transformer/posembed_input/pos_embedding"
_POSITIONS = ("pos_embedding", "Transformer/pos_embedding", POSITION)

# Where a file may keep the parameters; the first that any key starts with is taken off.
_PREFIXES = ("opt/target/", "params/", "img/")

# Numbered by position in the block (the files) -> numbered per class (linen).
_TO_LINEN = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
_TO_OFFICIAL = {ours: theirs for theirs, ours in _TO_LINEN.items()}
_IN_BLOCK = re.compile(r"(Transformer/encoderblock(?:_\d+)?)/([^/]+)/(.+)")
_GROUP_NORM = re.compile(r"(?:.*/)?gn(?:\d+|_root|_proj)/(?:scale|bias)")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One parameter of ours: its path, its shape, and how it comes out of the file's array."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    convert: Callable[[np.ndarray], np.ndarray]
    note: str | None = None


Plan = Mapping[str, list[Leaf]]  # by the name of the array in the file


def plan(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Plan:
    """Which array becomes which parameters, for a file with arrays of these names and shapes."""
    names = _strip_prefixes(shapes)
    add_row = "cls" in names.values() and _lacks_class_row(names, shapes)
    return {
        name: list(_leaves(path, shapes[name].shape, shapes[name].dtype, add_row))
        for name, path in names.items()
    }


def _lacks_class_row(names: Mapping[str, str], shapes: Mapping[str, Any]) -> bool:
    """Whether positions are of the patches alone: big_vision's way, whose files have a prefix, or
    the table at the root. Elsewhere in a prefixed file both occur; a square number of rows tells.
    """
    table = next((name for name, path in names.items() if path in _POSITIONS), None)
    if table is None:
        return False
    has_prefix = names[table] != table
    is_square = math.isqrt(shapes[table].shape[-2]) ** 2 == shapes[table].shape[-2]
    return names[table] == "pos_embedding" or (
        is_square and (has_prefix or names[table] != POSITION)
    )


def _strip_prefixes(shapes: Mapping[str, Any]) -> dict[str, str]:
    names = {name: name for name in shapes}
    for prefix in _PREFIXES:
        inside = {n: p.removeprefix(prefix) for n, p in names.items() if p.startswith(prefix)}
        if inside:
            if outside := sorted(set(names) - set(inside)):
                log.info(
                    "Left %d arrays outside %s alone: %s", len(outside), prefix, _some(outside)
                )
            names = inside
    return names


def _leaves(path: str, shape: tuple[int, ...], dtype: Any, add_row: bool) -> Iterator[Leaf]:
    if path in _POSITIONS:
        yield _position_leaf(shape, dtype, add_row)
    elif _GROUP_NORM.fullmatch(path):
        yield Leaf(path, (math.prod(shape),), dtype, np.ravel)
    elif path.startswith("Transformer/encoderblock/"):
        for i in range(shape[0]):
            unstacked = path.replace("encoderblock/", f"encoderblock_{i}/")
            yield Leaf(_linen_name(unstacked), shape[1:], dtype, lambda x, i=i: x[i])
    else:
        yield Leaf(_linen_name(path), shape, dtype, lambda x: x)


def _position_leaf(shape: tuple[int, ...], dtype: Any, add_row: bool) -> Leaf:
    """Position rows as (1, n, d); where the class token has none, zeros say the same."""
    rows, width = shape[-2:]
    if not add_row:
        return Leaf(POSITION, (1, rows, width), dtype, lambda x: x.reshape(1, rows, width))
    note = f"the class token has no position row of its own; {rows} rows became {rows + 1}"

    def prepend(x):
        return np.pad(x.reshape(1, rows, width), ((0, 0), (1, 0), (0, 0)))

    return Leaf(POSITION, (1, rows + 1, width), dtype, prepend, note)


def _linen_name(path: str) -> str:
    if match := _IN_BLOCK.fullmatch(path):
        block, module, rest = match.groups()
        return f"{block}/{_TO_LINEN.get(module, module)}/{rest}"
    return path


def _official_name(path: str) -> str:
    if match := _IN_BLOCK.fullmatch(path):
        block, module, rest = match.groups()
        return f"{block}/{_TO_OFFICIAL.get(module, module)}/{rest}"
    return path


def to_official(params: Mapping[str, Any]) -> dict[str, Any]:
    """Our tree as the flat names and shapes of the ViT-paper files, which every reader knows."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    return {
        _official_name(path): array.reshape(1, 1, 1, -1) if _GROUP_NORM.fullmatch(path) else array
        for path, array in flat.items()
    }


def read(path: epath.PathLike, target: Any = None) -> dict[str, Any]:
    """The parameters of an .npz as a nested dict.

    Without a target, NumPy arrays as they are in the file. With one (a tree of ShapeDtypeStructs,
    each with a dtype and perhaps a sharding), JAX arrays of that dtype on those devices; any
    difference in names or shapes is an error that lists them all.
    """
    with open_archive(path) as archive:
        steps = plan(archive.shapes)
        wanted = None
        if target is not None:
            wanted = flax.traverse_util.flatten_dict(target, sep="/")
            found = {leaf.path: leaf for leaves in steps.values() for leaf in leaves}
            inspection.check_fit(found, wanted, where=str(path))
        flat = dict(_read_leaves(archive, steps, wanted, path))
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def _read_leaves(
    archive: Archive, steps: Plan, wanted: Mapping[str, Any] | None, path: epath.PathLike
) -> Iterator[tuple[str, Any]]:
    not_finite = []
    for name, leaves in steps.items():
        array = archive.read(name)
        if not lazy.is_finite(array):
            not_finite.append(name)
        for leaf in leaves:
            if leaf.note:
                log.info("%s: %s", leaf.path, leaf.note)
            value = leaf.convert(array)
            yield leaf.path, value if wanted is None else place(value, wanted[leaf.path])
    if not_finite:
        raise ValueError(
            f"{path} has NaN or infinite weights in {_some(not_finite)}. The model that wrote it "
            "had diverged; use an earlier checkpoint."
        )


def place(value: np.ndarray, target: jax.ShapeDtypeStruct) -> jax.Array:
    """The array in the target's dtype, each shard on its device; other hosts' shards are not
    touched.
    """
    value = value.astype(target.dtype, copy=False)
    sharding = getattr(target, "sharding", None)
    if sharding is None:
        return jax.device_put(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def write(params: Mapping[str, Any], path: epath.PathLike, card: Card | None = None) -> None:
    """Writes an .npz; its card, if any, travels where other readers of the file do not look."""
    text = None
    if card is not None:
        check_card(card)
        text = json.dumps(card)
    write_archive(path, to_official(params), card=text)


def card_of(archive: Archive) -> Card | None:
    """The card that the file was written with, if it was."""
    if (text := archive.card) is None:
        return None
    try:
        card = json.loads(text)
    except ValueError:
        return None  # some other program's comment
    if not isinstance(card, dict) or "format" not in card:
        return None
    check_card(card, where="The card of the .npz")
    return card


def write_plan(leaves: Mapping[str, lazy.Lazy]) -> lazy.Plan:
    """What `write` would write, for leaves that are not read yet."""
    mapped = []
    for path, leaf in leaves.items():
        name, how = _official_name(path), "same"
        if _GROUP_NORM.fullmatch(path):
            leaf, how = leaf.map(lambda x: x.reshape(1, 1, 1, -1)), "three leading axes of one"
        elif name != path:
            how = "renamed"
        mapped.append(lazy.Mapped((path,), name, how, leaf))
    return lazy.Plan(mapped)


def _some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class OfficialHandler(ocp.CheckpointHandler):
    """Reads and writes official files for Orbax: a file, or the directory that it saved itself."""

    FILE = "params.npz"

    def save(self, directory: epath.Path, args: "OfficialSave") -> None:
        write(args.item, directory / self.FILE)

    def restore(
        self, directory: epath.Path, args: "OfficialRestore | None" = None
    ) -> dict[str, Any]:
        return read(self._file(directory), args.item if args else None)

    def metadata(self, directory: epath.Path) -> dict[str, jax.ShapeDtypeStruct]:
        with open_archive(self._file(directory)) as archive:
            leaves = [leaf for group in plan(archive.shapes).values() for leaf in group]
        flat = {leaf.path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves}
        return flax.traverse_util.unflatten_dict(flat, sep="/")

    def _file(self, path: epath.Path) -> epath.Path:
        return path / self.FILE if path.is_dir() else path


class _FileOrDirectory(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """Orbax takes a checkpoint that is not a directory for a half-written one; a file is whole."""

    @classmethod
    async def validate_final(cls, final_path: epath.Path) -> None:
        if not final_path.is_file():
            await super().validate_final(final_path)


class OfficialCheckpointer(ocp.Checkpointer):
    """Orbax's own interface to official files.

        checkpointer = OfficialCheckpointer()
        params = checkpointer.restore("B_16.npz", args=OfficialRestore(abstract_params))

    Each array of the abstract tree says its dtype and sharding, and lands on its devices so.
    """

    def __init__(self, **options: Any):
        super().__init__(OfficialHandler(), temporary_path_class=_FileOrDirectory, **options)


@ocp.args.register_with_handler(OfficialHandler, for_save=True)
@dataclasses.dataclass
class OfficialSave(ocp.args.CheckpointArgs):
    item: Mapping[str, Any]


@ocp.args.register_with_handler(OfficialHandler, for_restore=True)
@dataclasses.dataclass
class OfficialRestore(ocp.args.CheckpointArgs):
    """`item`: a tree of jax.ShapeDtypeStruct with our names, or None for plain NumPy arrays."""

    item: Any = None
