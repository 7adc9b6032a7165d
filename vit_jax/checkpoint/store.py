"""Orbax checkpoint directories."""

from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.models import unstack_blocks

_MARKS = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")


def is_orbax(path: epath.Path) -> bool:
    return any((path / mark).exists() for mark in _MARKS)


def read(path: epath.Path) -> dict[str, Any]:
    """The parameters in an Orbax directory as NumPy arrays, blocks named as published."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        try:
            tree = checkpointer.metadata(path).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            restored = checkpointer.restore(
                path, args=ocp.args.PyTreeRestore(restore_args=as_numpy)
            )
        except Exception as e:  # Orbax and tensorstore raise many kinds for a damaged directory
            raise ValueError(f"The Orbax checkpoint {path} cannot be read: {e}") from e
    return unstack_blocks(restored.get("params", restored))
