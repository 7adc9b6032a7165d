"""Fitting a checkpoint to a model: head, position grid, class token, patch size, input channels.

Each adaptation is one function from the flat arrays of the checkpoint to those of the model, and
one log line. Differences that no adaptation covers raise one error that names them all. This
happens before any weight is read; `Fitted.restore` then reads each array once.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from vit_jax.aliases import Params, Size
from vit_jax.checkpoint.lazy import Lazy, concatenated, from_array, local_part, place, read_ahead
from vit_jax.checkpoint.lazy import stacked as stack_rows
from vit_jax.checkpoint.names import check_fit, summarize
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.rescale import rescale_grid, resize, resize_patch_kernel, square_grid
from vit_jax.models import unstack_blocks
from vit_jax.models.kinds import Shaped, Shapes, flatten
from vit_jax.models.stacking import STACKED

log = logging.getLogger(__name__)

Leaves = dict[str, Lazy]
Places = Mapping[str, Sharding | None]  # None is the default device
_AXIS_TABLES = ("pos_embedding_x", "pos_embedding_y", "relative_position_bias/offsets")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Weights that fit a model, not read yet.

    `target` are the model's parameters, arrays or shapes, with blocks stacked or not. `fresh` are
    those that the checkpoint does not have; arrays in `fresh_rows` lack that many rows, the first
    along axis 1.
    """

    leaves: Mapping[str, Lazy]
    target: Params
    where: str
    fresh: tuple[str, ...] = ()
    fresh_rows: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def restore(
        self, shardings: Params | None = None, init: Callable[[], Params] | None = None
    ) -> dict[str, Any]:
        """The parameters, read and put where they live one after the other, each once.

        `shardings` is a tree like the parameters, or None for the default device. A process reads
        what its own devices hold. `init` makes the model's parameters, of which only those that the
        checkpoint does not have are computed, where they live.
        """
        target = flatten(self.target)
        places: Places = dict.fromkeys(target) if shardings is None else flatten(shardings)
        made = self._initialised(init, places)
        leaves = dict(self.leaves)
        for name, count in self.fresh_rows.items():
            rows = from_array(np.asarray(made.pop(name)[:, :count], leaves[name].dtype))
            leaves[name] = concatenated([rows, leaves[name]], axis=1)
        if any(f"/{STACKED}/" in f"/{name}" for name in target):
            leaves = _stacked(leaves)

        parts = {name: local_part(leaf.shape, places[name]) for name, leaf in leaves.items()}
        flat = dict(made)
        for name, part in read_ahead(leaves, where=self.where, parts=parts):
            shape, dtype = leaves[name].shape, target[name].dtype
            flat[name] = place(part, parts[name], shape, dtype, places[name])
        return flax.traverse_util.unflatten_dict({name: flat[name] for name in target}, sep="/")

    def _initialised(
        self, init: Callable[[], Params] | None, places: Places
    ) -> dict[str, jax.Array]:
        names = (*self.fresh, *self.fresh_rows)
        if not names:
            return {}
        assert init is not None, f"the checkpoint lacks {names}, and there is no init to make them"

        def some() -> dict[str, jax.Array]:
            flat = flatten(init())
            return {name: flat[name] for name in names}

        if all(places[name] is None for name in names):
            return some()
        whole = {name: _replicated(places[name]) for name in self.fresh_rows}
        return jax.jit(some, out_shardings={**{n: places[n] for n in self.fresh}, **whole})()


def _replicated(sharding: Sharding | None) -> Sharding | None:
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


_BLOCK = re.compile(rf"(.*/)?{STACKED}_(\d+)/(.*)")


def _stacked(leaves: Leaves) -> Leaves:
    """Blocks with the published names as rows of one array for each parameter."""
    result: Leaves = {}
    rows: dict[str, dict[int, Lazy]] = {}
    for name, leaf in leaves.items():
        if match := _BLOCK.fullmatch(name):
            stack = f"{match[1] or ''}{STACKED}/{match[3]}"
            rows.setdefault(stack, {})[int(match[2])] = leaf
        else:
            result[name] = leaf
    return result | {
        name: stack_rows([blocks[i] for i in sorted(blocks)]) for name, blocks in rows.items()
    }


def fit(
    leaves: Mapping[str, Lazy],
    target: Params,
    *,
    keep_head: bool,
    grid: Size | None,
    pretrained_grid: Size | None,
    convention: str,
    where: str,
) -> Fitted:
    """`leaves` in the names and shapes of `target`; see `Checkpoint.fit`."""
    wanted = flatten(jax.eval_shape(unstack_blocks, target))
    loaded = dict(leaves)
    fresh: list[str] = []
    loaded = _fit_head(loaded, wanted, keep_head, fresh)
    if "pre_logits/kernel" not in wanted:
        loaded = _drop(loaded, "pre_logits", "the model has no representation layer")
    loaded, fresh_rows = _fit_position(loaded, wanted, grid, pretrained_grid, convention)
    loaded = _fit_class_token(loaded, wanted, fresh)
    loaded = _fit_patches(loaded, wanted)

    complete: dict[str, Shaped] = {**loaded, **{name: wanted[name] for name in fresh}}
    for name, count in fresh_rows.items():
        one, rows, width = loaded[name].shape
        complete[name] = jax.ShapeDtypeStruct((one, count + rows, width), loaded[name].dtype)
    check_fit(complete, wanted, where=where)
    return Fitted(loaded, target, where, tuple(fresh), fresh_rows)


def _drop(loaded: Leaves, module: str, why: str) -> Leaves:
    dropped = [name for name in loaded if name.startswith(f"{module}/")]
    if dropped:
        log.info("Dropped %s: %s.", ", ".join(summarize(dropped)), why)
    return {name: value for name, value in loaded.items() if name not in dropped}


def _fit_head(loaded: Leaves, wanted: Shapes, keep_head: bool, fresh: list[str]) -> Leaves:
    shapes = {n: tuple(leaf.shape) for n, leaf in wanted.items() if n.startswith("head/")}
    if not shapes:
        return _drop(loaded, "head", "the model has no head")
    if keep_head:
        found = {name: tuple(loaded[name].shape) for name in shapes if name in loaded}
        if found != shapes:
            raise ValueError(
                f"The head cannot be kept: the checkpoint has {_shapes(found)} and the model "
                f"{_shapes(shapes)}. Use the checkpoint's number of classes, or a fresh head."
            )
        log.info("Kept the head of %d classes.", shapes["head/kernel"][-1])
        return loaded
    fresh += shapes
    return _drop(loaded, "head", f"a fresh head of {shapes['head/kernel'][-1]} classes instead")


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "no head"


def _fit_position(
    loaded: Leaves, wanted: Shapes, grid: Size | None, pretrained_grid: Size | None, convention: str
) -> tuple[Leaves, dict[str, int]]:
    """Also returns the number of fresh rows that the table of positions needs, by its name."""
    loaded = dict(loaded)
    fresh_rows: dict[str, int] = {}
    if POSITION in loaded and POSITION in wanted:
        num_has, num_wants = (("cls" in flat) + ("dist" in flat) for flat in (loaded, wanted))
        num_new = wanted[POSITION].shape[1] - num_wants
        loaded[POSITION] = _rescaled(
            loaded[POSITION], num_has, num_new, grid, pretrained_grid, convention
        )
        if num_has and not num_wants:
            log.info("Dropped the class token's position: the model has no class token.")
            loaded[POSITION] = loaded[POSITION].map(lambda x: x[:, num_has:])
        elif num_wants and not num_has:
            log.info("The class token's position is fresh: the checkpoint has no class token.")
            fresh_rows[POSITION] = num_wants
    elif POSITION in loaded:
        rows = loaded.pop(POSITION).shape[1]
        log.info("Dropped %d learned positions: the model has another kind of position.", rows)
    for name in wanted:
        if name.endswith(_AXIS_TABLES):
            loaded = _fit_axis_table(loaded, wanted, name, convention)
    return loaded, fresh_rows


def _rescaled(
    table: Lazy,
    num_leading: int,
    num_new: int,
    grid: Size | None,
    pretrained_grid: Size | None,
    convention: str,
) -> Lazy:
    """Position rows with those of the grid resized; the class tokens' rows stay."""
    num_old = table.shape[1] - num_leading
    if grid is not None and grid[0] * grid[1] != num_new:
        raise ValueError(
            f"The model has positions for {num_new} patches, and a {grid[0]}×{grid[1]} grid has "
            f"{grid[0] * grid[1]}."
        )
    if grid is None and pretrained_grid is None and num_old == num_new:
        return table
    old = pretrained_grid or _known_grid(num_old, grid)
    new = grid or _known_grid(num_new, None)
    if tuple(old) == tuple(new) and table.shape[1] == num_leading + old[0] * old[1]:
        return table
    log.info("Rescaled the position grid from %d×%d to %d×%d (%s).", *old, *new, convention)
    return table.map(
        lambda x: rescale_grid(x, old, new, num_extra_tokens=num_leading, convention=convention)
    )


def _known_grid(num_patches: int, known: Size | None) -> Size:
    """A square grid if there is one, else the caller's own grid if it fits, else an error."""
    try:
        return square_grid(num_patches)
    except ValueError:
        if known is not None and known[0] * known[1] == num_patches:
            return known
        raise ValueError(
            f"The checkpoint or model has {num_patches} positions, which is not a square grid. "
            "Give the grids: grid=(height, width) of the model, pretrained_grid= of the checkpoint."
        ) from None


def _fit_axis_table(loaded: Leaves, wanted: Shapes, name: str, convention: str) -> Leaves:
    """Tables over one axis (learned2d) or over offsets (relative), resized to the model's size."""
    if name not in loaded or loaded[name].shape == wanted[name].shape:
        return loaded
    table, shape = loaded[name], wanted[name].shape
    if len(table.shape) != len(shape) or table.shape[-1] != shape[-1]:
        return loaded  # another width or number of heads: the final check reports it
    log.info("Rescaled %s from %s to %s (%s).", name, table.shape, shape, convention)

    def resized(x: np.ndarray) -> np.ndarray:
        if x.ndim == 2:
            return resize(x[:, None], (shape[0], 1), convention)[:, 0].astype(x.dtype)
        return resize(x, (shape[0], shape[1]), convention).astype(x.dtype)

    return {**loaded, name: table.map(resized)}


def _fit_class_token(loaded: Leaves, wanted: Shapes, fresh: list[str]) -> Leaves:
    if "cls" in loaded and "cls" not in wanted:
        log.info("Dropped the class token: the model pools without one.")
        return {name: value for name, value in loaded.items() if name != "cls"}
    if "cls" in wanted and "cls" not in loaded:
        log.info("The class token is fresh: the checkpoint has none.")
        fresh.append("cls")
    return loaded


def _fit_patches(loaded: Leaves, wanted: Shapes) -> Leaves:
    """Patch size by FlexiViT's pseudo-inverse; channels by summing or repeating the weights."""
    name = "embedding/kernel"
    if name not in loaded or name not in wanted or "conv_root/kernel" in wanted:
        return loaded
    kernel, (ph, pw, channels, _) = loaded[name], wanted[name].shape
    if kernel.shape[:2] != (ph, pw):
        log.info("Resized the patch kernel from %d×%d to %d×%d.", *kernel.shape[:2], ph, pw)
        kernel = kernel.map(lambda x: resize_patch_kernel(x, (ph, pw)))
    if kernel.shape[2] != channels:
        log.info("Fitted the patch kernel from %d to %d channels.", kernel.shape[2], channels)
        kernel = kernel.map(lambda x: fit_channels(x, channels))
    return {**loaded, name: kernel}


def fit_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """A kernel (h, w, c, d) for another number of channels.

    The sum of the weights gives a gray image the embedding it has as RGB. More channels repeat the
    weights, scaled so that the embedding keeps its size.
    """
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    repeated = np.tile(kernel, (1, 1, -(-channels // old), 1))[:, :, :channels]
    return repeated * (old / channels)
