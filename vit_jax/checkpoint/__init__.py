"""Weights: read them from wherever they are, fit them to a model, write them back.

params = checkpoint.load("B_16.npz")
params = checkpoint.load_pretrained(
    pretrained_path="B_16.npz", init_params=variables["params"], model_config=config.model)
"""

from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.checkpoint import official, store
from vit_jax.checkpoint.inspection import guess_model, inspect_params, recover_tree
from vit_jax.checkpoint.official import (
    OfficialCheckpointer,
    OfficialHandler,
    OfficialRestore,
    OfficialSave,
)
from vit_jax.checkpoint.rescale import interpolate_posembed, rescale_grid, resize_patch_kernel
from vit_jax.checkpoint.transfer import fit_params, load_pretrained

__all__ = [
    "OfficialCheckpointer",
    "OfficialHandler",
    "OfficialRestore",
    "OfficialSave",
    "fit_params",
    "guess_model",
    "inspect_params",
    "interpolate_posembed",
    "load",
    "load_pretrained",
    "recover_tree",
    "rescale_grid",
    "resize_patch_kernel",
    "save",
]


def load(path: epath.PathLike) -> dict[str, Any]:
    """The parameter tree of an official .npz (any generation) or an Orbax directory, as NumPy
    arrays.
    """
    path = epath.Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    if not path.is_dir():
        return official.read(path)
    if (file := path / OfficialHandler.FILE).exists():
        return official.read(file)
    if store.is_orbax(path):
        return store.read(path)
    raise ValueError(
        f"{path} is a directory without a checkpoint in it. Give an official .npz file, or the "
        "directory of one Orbax checkpoint."
    )


def save(params: Mapping[str, Any], path: epath.PathLike) -> None:
    """Writes an official .npz (ViT-paper names), which the reference, timm and Hugging Face read
    too.
    """
    official.write(params, path)
