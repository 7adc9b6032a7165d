"""Fitting loaded weights to a model: head, position grid, class token, patch size, input channels.

Each adaptation is one function from the flat loaded parameters to the flat fitted ones, and one log
line. What no adaptation explains is an error that names every difference.
"""

import logging
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from etils import epath

from vit_jax.checkpoint import inspection, official
from vit_jax.checkpoint.rescale import rescale_grid, resize, resize_patch_kernel, square_grid
from vit_jax.models import stack_blocks, unstack_blocks

log = logging.getLogger(__name__)

Grid = tuple[int, int]

# How the library that a checkpoint comes from rescales its own grid.
GRID_CONVENTIONS = {"timm": "cubic_antialias", "hf": "torch_bicubic"}


def load_pretrained(
    *,
    pretrained_path: epath.PathLike,
    init_params: Mapping[str, Any],
    model_config: Mapping[str, Any],
    keep_head: bool = False,
    grid: Grid | None = None,
    pretrained_grid: Grid | None = None,
    convention: str | None = None,
) -> dict[str, Any]:
    """A checkpoint's weights, fitted to the model that `init_params` come from.

    As in the reference, `pre_logits` is dropped unless the model has a representation_size, and the
    head is the fresh one; `keep_head=True` keeps a head of the right shape. `grid` is the (height,
    width) in patches that the model runs at and `pretrained_grid` the one it was trained at; each
    is taken to be square where it is not given. `convention` is how the grid is resized (see
    `rescale`), by default as the library that the checkpoint comes from does it.
    """
    from vit_jax.checkpoint import load, opened

    if convention is None:
        with opened(pretrained_path) as checkpoint:
            convention = GRID_CONVENTIONS.get(checkpoint.format, "google")
    return fit_params(
        load(pretrained_path),
        init_params,
        representation_size=model_config.get("representation_size"),
        keep_head=keep_head,
        grid=grid,
        pretrained_grid=pretrained_grid,
        convention=convention,
        where=str(pretrained_path),
    )


def fit_params(
    params: Mapping[str, Any],
    init_params: Mapping[str, Any],
    *,
    representation_size: int | None = None,
    keep_head: bool = False,
    grid: Grid | None = None,
    pretrained_grid: Grid | None = None,
    convention: str = "google",
    where: str = "The checkpoint",
) -> dict[str, Any]:
    """`params` in the names, shapes, dtypes and layout (scanned or not) of `init_params`."""
    published = unstack_blocks(init_params)
    loaded, init = _flatten(params), _flatten(published)

    loaded = _fit_head(loaded, init, keep_head)
    if representation_size is None:
        loaded = _drop(loaded, "pre_logits", "the model has no representation layer")
    loaded = _fit_position(loaded, init, grid, pretrained_grid, convention)
    loaded = _fit_class_token(loaded, init)
    loaded = _fit_patches(loaded, init)

    inspection.check_fit(loaded, init, where=where)
    fitted = {name: jnp.asarray(loaded[name], init[name].dtype) for name in init}
    tree = flax.traverse_util.unflatten_dict(fitted, sep="/")
    is_stacked = "encoderblock" in init_params.get("Transformer", {})
    return stack_blocks(tree) if is_stacked else tree


def _flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(tree, sep="/")


def _drop(loaded: dict[str, Any], module: str, why: str) -> dict[str, Any]:
    dropped = [name for name in loaded if name.startswith(f"{module}/")]
    if dropped:
        log.info("Dropped %s: %s.", inspection.summarize(dropped), why)
    return {name: value for name, value in loaded.items() if name not in dropped}


def _fit_head(loaded: dict[str, Any], init: dict[str, Any], keep_head: bool) -> dict[str, Any]:
    head = {name: value for name, value in init.items() if name.startswith("head/")}
    if not head:
        return _drop(loaded, "head", "the model has no head")
    shapes = {name: tuple(value.shape) for name, value in head.items()}
    found = {name: tuple(loaded[name].shape) for name in head if name in loaded}
    if keep_head:
        if found != shapes:
            raise ValueError(
                f"The head cannot be kept: the checkpoint has {_say(found)} and the model "
                f"{_say(shapes)}. Use the checkpoint's number of classes, or a fresh head."
            )
        log.info("Kept the head of %d classes.", shapes["head/kernel"][-1])
        return loaded
    loaded = _drop(loaded, "head", f"a fresh head of {shapes['head/kernel'][-1]} classes instead")
    return {**loaded, **head}


def _say(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "no head"


def _fit_position(
    loaded: dict[str, Any],
    init: dict[str, Any],
    grid: Grid | None,
    pretrained_grid: Grid | None,
    convention: str,
) -> dict[str, Any]:
    name = official.POSITION
    loaded = dict(loaded)
    if name in loaded and name in init:
        loaded[name] = _fit_learned(
            loaded[name],
            init[name],
            _num_class_tokens(loaded),
            _num_class_tokens(init),
            grid,
            pretrained_grid,
            convention,
        )
    elif name in loaded and name not in init:
        rows = loaded.pop(name).shape[1]
        log.info("Dropped %d learned positions: the model has another kind of position.", rows)
    for other in init:
        if other.endswith(("pos_embedding_x", "pos_embedding_y", "relative_position_bias/offsets")):
            loaded = _fit_axis_tables(loaded, init, other, convention)
    return loaded


def _num_class_tokens(flat: Mapping[str, Any]) -> int:
    return ("cls" in flat) + ("dist" in flat)


def _fit_learned(posemb, init, num_has, num_wants, grid, pretrained_grid, convention):
    """Rows of the grid resized, then the class tokens' rows taken, dropped or left fresh."""
    num_old, num_new = posemb.shape[1] - num_has, init.shape[1] - num_wants
    if grid is not None and grid[0] * grid[1] != num_new:
        raise ValueError(
            f"The model has positions for {num_new} patches, which a {grid[0]}×{grid[1]} grid is "
            "not."
        )
    if grid is not None or pretrained_grid is not None or num_old != num_new:
        old, new = pretrained_grid or _grid_of(num_old, grid), grid or _grid_of(num_new, None)
        if old != new:
            log.info("Rescaled the position grid from %d×%d to %d×%d (%s).", *old, *new, convention)
        posemb = rescale_grid(posemb, old, new, num_extra_tokens=num_has, convention=convention)
    if num_has and not num_wants:
        log.info("Dropped the class token's position: the model has no class token.")
        return posemb[:, num_has:]
    if num_wants and not num_has:
        log.info("The class token's position is fresh: the checkpoint has no class token.")
        return np.concatenate([np.asarray(init[:, :num_wants], posemb.dtype), posemb], axis=1)
    return posemb


def _grid_of(num_patches: int, known: Grid | None) -> Grid:
    """A square where the number is one; else the caller's own grid if it fits; else an error."""
    try:
        return square_grid(num_patches)
    except ValueError:
        if known is not None and known[0] * known[1] == num_patches:
            return known
        raise ValueError(
            f"The checkpoint or model has {num_patches} positions, which is not a square grid. "
            "Say which grids they are: grid=(height, width) of the model, pretrained_grid= of the "
            "checkpoint."
        ) from None


def _fit_axis_tables(loaded, init, name, convention):
    """Tables over one axis (learned2d) or over offsets (relative), resized to the model's size."""
    if name not in loaded or loaded[name].shape == init[name].shape:
        return loaded
    table, shape = np.asarray(loaded[name]), init[name].shape
    if table.ndim != len(shape) or table.shape[-1] != shape[-1]:
        return loaded  # another width or number of heads: the final check names it
    log.info("Rescaled %s from %s to %s (%s).", name, table.shape, shape, convention)
    if table.ndim == 2:
        resized = resize(table[:, None], (shape[0], 1), convention)[:, 0]
    else:
        resized = resize(table, shape[:2], convention)
    return {**loaded, name: resized.astype(table.dtype)}


def _fit_class_token(loaded: dict[str, Any], init: dict[str, Any]) -> dict[str, Any]:
    if "cls" in loaded and "cls" not in init:
        log.info("Dropped the class token: the model pools without one.")
        return {name: value for name, value in loaded.items() if name != "cls"}
    if "cls" in init and "cls" not in loaded:
        log.info("The class token is fresh: the checkpoint has none.")
        return {**loaded, "cls": init["cls"]}
    return loaded


def _fit_patches(loaded: dict[str, Any], init: dict[str, Any]) -> dict[str, Any]:
    """Patch size by FlexiViT's pseudo-inverse; channels by averaging or repeating the weights."""
    name = "embedding/kernel"
    if name not in loaded or name not in init or "conv_root/kernel" in init:
        return loaded
    kernel, (ph, pw, channels, _) = np.asarray(loaded[name]), init[name].shape
    if kernel.shape[:2] != (ph, pw):
        log.info("Resized the patch kernel from %d×%d to %d×%d.", *kernel.shape[:2], ph, pw)
        kernel = resize_patch_kernel(kernel, (ph, pw))
    if kernel.shape[2] != channels:
        log.info("Fitted the patch kernel from %d to %d channels.", kernel.shape[2], channels)
        kernel = fit_channels(kernel, channels)
    return {**loaded, name: kernel}


def fit_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """A kernel (h, w, c, d) for another number of channels.

    A gray image gives what it would give as RGB: the weights are summed. More channels repeat the
    weights, scaled so that the embedding keeps its size.
    """
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    repeated = np.tile(kernel, (1, 1, -(-channels // old), 1))[:, :, :channels]
    return repeated * (old / channels)
