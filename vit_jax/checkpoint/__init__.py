"""Weights: read them from wherever they are, fit them to a model, write them back.

params = checkpoint.load("B_16.npz")
params = checkpoint.load_pretrained(
    pretrained_path="B_16.npz", init_params=variables["params"], model_config=config.model)
"""

import logging
from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.checkpoint import formats, official, store
from vit_jax.checkpoint.card import (
    Card,
    check_card,
    infer_card,
    make_card,
    model_from_card,
    patch_stride,
)
from vit_jax.checkpoint.conversion import convert, opened, save_as
from vit_jax.checkpoint.inspection import guess_model, inspect_params, recover_tree
from vit_jax.checkpoint.lazy import read_all
from vit_jax.checkpoint.official import (
    OfficialCheckpointer,
    OfficialHandler,
    OfficialRestore,
    OfficialSave,
)
from vit_jax.checkpoint.rescale import interpolate_posembed, rescale_grid, resize_patch_kernel
from vit_jax.checkpoint.transfer import fit_params, load_pretrained

log = logging.getLogger(__name__)

__all__ = [
    "Card",
    "OfficialCheckpointer",
    "OfficialHandler",
    "OfficialRestore",
    "OfficialSave",
    "check_card",
    "convert",
    "fit_params",
    "guess_model",
    "infer_card",
    "inspect_params",
    "interpolate_posembed",
    "load",
    "load_pretrained",
    "load_with_card",
    "make_card",
    "model_from_card",
    "opened",
    "patch_stride",
    "recover_tree",
    "rescale_grid",
    "resize_patch_kernel",
    "save",
]


def load(path: epath.PathLike, *, num_heads: int | None = None) -> dict[str, Any]:
    """The parameter tree of a checkpoint, as NumPy arrays in our names.

    Reads an official .npz of any generation, an Orbax directory, and timm, Hugging Face and
    vit-pytorch safetensors (a file or a folder); which one it is, the content tells. `num_heads` is
    for foreign weights whose file does not tell it.
    """
    kind, path = formats.recognise(path)
    if kind == formats.NPZ:
        return official.read(path)
    if kind == formats.ORBAX:
        return store.read(path)
    if kind == formats.RUN:
        return store.read_step(path)[0]
    return load_with_card(path, num_heads=num_heads)[0]


def load_with_card(
    path: epath.PathLike, *, num_heads: int | None = None
) -> tuple[dict[str, Any], Card | None]:
    """As `load`, and what the checkpoint says about itself (see `card`).

    A checkpoint without a card gets one from its shapes; None where those are of no model of ours.
    """
    with opened(path, num_heads=num_heads) as checkpoint:
        for note in checkpoint.plan.notes:
            log.warning("%s: %s", path, note.removeprefix("note: "))
        flat = read_all(checkpoint.plan.leaves(), where=str(path))
    return recover_tree(list(flat), list(flat.values())), checkpoint.card


def save(
    params: Mapping[str, Any], path: epath.PathLike, *, card: Card | None = None, to: str = "npz"
) -> None:
    """Writes an official .npz (ViT-paper names), which the reference, timm and Hugging Face read
    too; or, with a card and `to`, an orbax, timm, hf or lucidrains checkpoint.
    """
    if to == "npz":
        official.write(params, path, card)
    elif to == "orbax":
        store.write(params, path, card)
    elif card is None:
        raise ValueError(f"A checkpoint can be written to={to!r} only with a card; see make_card.")
    else:
        save_as(params, card, path, to=to)
