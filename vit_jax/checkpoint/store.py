"""Orbax checkpoint directories."""

import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint.card import Card, check_card
from vit_jax.models import unstack_blocks

CARD = "card.json"
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


def write(params: Mapping[str, Any], path: epath.PathLike, card: Card | None = None) -> None:
    """A new Orbax directory with the card beside the arrays: all of it, or nothing."""
    path = epath.Path(path).expanduser()
    if path.exists():
        raise ValueError(f"{path} exists already; Orbax writes new directories only.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(partial.resolve(), args=ocp.args.PyTreeSave(dict(params)))
        if card is not None:
            check_card(card)
            (partial / CARD).write_text(json.dumps(card))
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_card(path: epath.PathLike) -> Card | None:
    """The card of an Orbax directory that has one."""
    file = epath.Path(path) / CARD
    if not file.exists():
        return None
    card = json.loads(file.read_text())
    check_card(card, where=str(file))
    return card
