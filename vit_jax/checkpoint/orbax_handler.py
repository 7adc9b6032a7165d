"""Orbax's own interface to official .npz files, on the one road for weights.

    checkpointer = OfficialCheckpointer()
    params = checkpointer.restore("B_16.npz", args=OfficialRestore(abstract_params))

Each array gets the dtype and the sharding that the abstract tree has for it.
"""

import dataclasses
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from vit_jax.aliases import Params
from vit_jax.checkpoint import opening
from vit_jax.checkpoint.conversion import save
from vit_jax.checkpoint.formats import FILE
from vit_jax.checkpoint.names import recover_tree


class OfficialHandler(ocp.CheckpointHandler):
    """Reads and writes official files for Orbax: a file, or the directory that it saved itself."""

    def save(self, directory: epath.Path, args: "OfficialSave") -> None:
        save(args.item, directory / FILE)

    def restore(self, directory: epath.Path, args: "OfficialRestore | None" = None) -> Params:
        with opening.open(directory) as found:
            return found.params() if args is None or args.item is None else found.restore(args.item)

    def metadata(self, directory: epath.Path) -> Params:
        with opening.open(directory) as found:
            return recover_tree(list(found.shapes), list(found.shapes.values()))


class _FileOrDirectory(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """Orbax considers a checkpoint that is not a directory half-written; a file is complete."""

    @classmethod
    async def validate_final(cls, final_path: epath.Path) -> None:
        if not final_path.is_file():
            await super().validate_final(final_path)


class OfficialCheckpointer(ocp.Checkpointer):
    def __init__(self, **options: Any):
        super().__init__(OfficialHandler(), temporary_path_class=_FileOrDirectory, **options)


@ocp.args.register_with_handler(OfficialHandler, for_save=True)
@dataclasses.dataclass
class OfficialSave(ocp.args.CheckpointArgs):
    item: Params


@ocp.args.register_with_handler(OfficialHandler, for_restore=True)
@dataclasses.dataclass
class OfficialRestore(ocp.args.CheckpointArgs):
    """`item` is a tree of jax.ShapeDtypeStruct with our names, or None for plain NumPy arrays."""

    item: Params | None = None
