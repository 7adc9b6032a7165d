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
RUN = "checkpoints"  # the directory of steps in a workdir
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


def find_step(path: epath.PathLike) -> epath.Path | None:
    """The step directory that a path means: a step, or the newest of a workdir; None if neither."""
    path = epath.Path(path)
    if (path / "state").is_dir() and (path / "card").is_dir():
        return path
    parent = path / RUN if (path / RUN).is_dir() else path
    steps = [int(child.name) for child in parent.iterdir() if child.name.isdigit()]
    return find_step(parent / str(max(steps))) if steps else None


def read_step(path: epath.Path, *, ema: bool = False) -> tuple[dict[str, Any], Card]:
    """Parameters (NumPy, published names) and card of a step, without the optimizer's state."""
    part = "ema" if ema else "params"
    path = path.resolve() if not str(path).startswith(("gs:", "s3:")) else path
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            # of the handler: the checkpointer's own `metadata` warns of a file that steps lack
            tree = {part: ocp.PyTreeCheckpointHandler().metadata(path / "state").tree[part]}
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            args = ocp.args.PyTreeRestore(item=tree, restore_args=as_numpy, partial_restore=True)
            params = checkpointer.restore(path / "state", args=args)[part]
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
            card = checkpointer.restore(path / "card", args=ocp.args.JsonRestore())
    except Exception as e:  # Orbax and tensorstore raise many kinds for a damaged directory
        raise ValueError(f"The checkpoint {path} cannot be read: {e}") from e
    check_card(card, where=f"The card of {path}")
    return unstack_blocks(params), card
