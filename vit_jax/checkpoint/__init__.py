"""Weights: read them from wherever they are, fit them to a model, write them back.

params = checkpoint.load("B_16.npz")
with checkpoint.open("B_16.npz") as found:     # the road that everything takes; see opening.py
    print(found.format, found.card.model, len(found.shapes))
"""

from vit_jax.checkpoint.card import Card, infer_card
from vit_jax.checkpoint.conversion import convert, save
from vit_jax.checkpoint.names import inspect_params, recover_tree
from vit_jax.checkpoint.opening import Checkpoint, load, load_pretrained, open
from vit_jax.checkpoint.orbax_handler import (
    OfficialCheckpointer,
    OfficialHandler,
    OfficialRestore,
    OfficialSave,
)
from vit_jax.checkpoint.rescale import interpolate_posembed, rescale_grid, resize_patch_kernel

__all__ = [
    "Card",
    "Checkpoint",
    "OfficialCheckpointer",
    "OfficialHandler",
    "OfficialRestore",
    "OfficialSave",
    "convert",
    "infer_card",
    "inspect_params",
    "interpolate_posembed",
    "load",
    "load_pretrained",
    "open",
    "recover_tree",
    "rescale_grid",
    "resize_patch_kernel",
    "save",
]
