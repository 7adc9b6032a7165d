"""Fitting a checkpoint to a model: head, position grid, class token, patch size, input channels.

Each adaptation is one function that changes the flat arrays of the checkpoint, and one log line.
Differences that no adaptation covers raise one error that names them all. This happens before any
weight is read; `Fitted.restore` then reads each array once.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from vit_jax.aliases import Params, Size
from vit_jax.checkpoint.lazy import Lazy, concatenated, from_array, local_part, place, read_ahead
from vit_jax.checkpoint.lazy import stacked as stack_rows
from vit_jax.checkpoint.names import check_fit, summarize
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.rescale import rescale_grid, resize, resize_patch_kernel
from vit_jax.models import unstack_blocks
from vit_jax.models.kinds import Shaped, Shapes, flatten, square
from vit_jax.models.stacking import STACKED

log = logging.getLogger(__name__)

Leaves = dict[str, Lazy]
Places = Mapping[str, Sharding | None]  # None is the default device
_HEADS = ("head/", "head_dist/")  # the second is a distilled model's
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
        shardings = {name: places[name] for name in names}
        for name in self.fresh_rows:  # this process needs all of them
            if isinstance(sharding := shardings[name], NamedSharding):
                shardings[name] = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.jit(some, out_shardings=shardings)()


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


class Grids(NamedTuple):
    """The (height, width) in patches of model and checkpoint, as far as they are known."""

    model: Size | None
    checkpoint: Size | None
    convention: str  # how one becomes the other, see `rescale`


def fit(
    leaves: Mapping[str, Lazy], target: Params, *, keep_head: bool, grids: Grids, where: str
) -> Fitted:
    """`leaves` in the names and shapes of `target`; see `Checkpoint.fit`."""
    wanted = flatten(jax.eval_shape(unstack_blocks, target))
    loaded = dict(leaves)
    _fit_head(loaded, wanted, keep_head)
    if "pre_logits/kernel" not in wanted:
        _drop(loaded, ("pre_logits/",), "the model has no representation layer")
    fresh_rows = _fit_position(loaded, wanted, grids)
    _fit_class_token(loaded, wanted)
    _fit_patches(loaded, wanted)

    may_be_fresh = (name for name in wanted if name == "cls" or name.startswith(_HEADS))
    fresh = tuple(name for name in may_be_fresh if name not in loaded)
    complete: dict[str, Shaped] = {**loaded, **{name: wanted[name] for name in fresh}}
    for name, count in fresh_rows.items():
        one, rows, width = loaded[name].shape
        complete[name] = jax.ShapeDtypeStruct((one, count + rows, width), loaded[name].dtype)
    check_fit(complete, wanted, where=where)
    return Fitted(loaded, target, where, fresh, fresh_rows)


def _drop(loaded: Leaves, modules: tuple[str, ...], why: str) -> None:
    if dropped := [name for name in loaded if name.startswith(modules)]:
        log.info("Dropped %s: %s.", ", ".join(summarize(dropped)), why)
    for name in dropped:
        del loaded[name]


def _fit_head(loaded: Leaves, wanted: Shapes, keep_head: bool) -> None:
    shapes = {n: tuple(leaf.shape) for n, leaf in wanted.items() if n.startswith(_HEADS)}
    if not shapes:
        _drop(loaded, _HEADS, "the model has no head")
    elif not keep_head:
        _drop(loaded, _HEADS, f"a fresh head of {shapes['head/kernel'][-1]} classes instead")
    elif (found := {n: tuple(loaded[n].shape) for n in shapes if n in loaded}) != shapes:
        raise ValueError(
            f"The head cannot be kept: the checkpoint has {_shapes(found)} and the model "
            f"{_shapes(shapes)}. Use the checkpoint's number of classes, or a fresh head."
        )
    else:
        log.info("Kept the head of %d classes.", shapes["head/kernel"][-1])


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "no head"


def _fit_position(loaded: Leaves, wanted: Shapes, grids: Grids) -> dict[str, int]:
    """Returns the number of fresh rows that the table of positions needs, by its name."""
    for name in wanted:
        if name.endswith(_AXIS_TABLES) and name in loaded:
            loaded[name] = _fit_axis_table(name, loaded[name], wanted[name].shape, grids.convention)
    if POSITION in loaded and POSITION not in wanted:
        rows = loaded.pop(POSITION).shape[1]
        log.info("Dropped %d learned positions: the model has another kind of position.", rows)
    if POSITION not in loaded:
        return {}
    num_has, num_wants = (("cls" in flat) + ("dist" in flat) for flat in (loaded, wanted))
    num_new = wanted[POSITION].shape[1] - num_wants
    loaded[POSITION] = _rescaled(loaded[POSITION], num_has, num_new, grids)
    if num_has and not num_wants:
        log.info("Dropped the class token's position: the model has no class token.")
        loaded[POSITION] = loaded[POSITION].map(lambda x: x[:, num_has:])
    elif num_wants and not num_has:
        log.info("The class token's position is fresh: the checkpoint has no class token.")
        return {POSITION: num_wants}
    return {}


def _rescaled(table: Lazy, num_leading: int, num_new: int, grids: Grids) -> Lazy:
    """Position rows with those of the grid resized; the class tokens' rows stay."""
    num_old, grid = table.shape[1] - num_leading, grids.model
    if grid is not None and math.prod(grid) != num_new:
        raise ValueError(
            f"The model has positions for {num_new} patches, and a {grid[0]}×{grid[1]} grid has "
            f"{math.prod(grid)}."
        )
    if grid is None and grids.checkpoint is None and num_old == num_new:
        return table
    old = grids.checkpoint or _known_grid(num_old, grid)
    new = grid or _known_grid(num_new, None)
    if tuple(old) == tuple(new) and num_old == math.prod(old):
        return table
    convention = grids.convention
    log.info("Rescaled the position grid from %d×%d to %d×%d (%s).", *old, *new, convention)
    return table.map(
        lambda x: rescale_grid(x, old, new, num_extra_tokens=num_leading, convention=convention)
    )


def _known_grid(num_patches: int, known: Size | None) -> Size:
    """The other grid if it has as many patches, else a square one, else an error.

    36 positions may be of a 4×9 grid or of a 6×6 one; of a model for 4×9, they are taken as such.
    """
    if known and math.prod(known) == num_patches:
        if square(num_patches) not in (None, known):
            log.warning("Took the %d positions for those of a %d×%d grid.", num_patches, *known)
        return known
    if (grid := square(num_patches)) is None:
        raise ValueError(
            f"The checkpoint or model has {num_patches} positions, which is not a square grid. "
            "Give the grids: grid=(height, width) of the model, pretrained_grid= of the checkpoint."
        )
    return grid


def _fit_axis_table(name: str, table: Lazy, shape: tuple[int, ...], convention: str) -> Lazy:
    """Tables over one axis (learned2d) or over offsets (relative), resized to the model's size."""
    if table.shape == shape or len(table.shape) != len(shape) or table.shape[-1] != shape[-1]:
        return table  # another width or number of heads: the final check reports it
    log.info("Rescaled %s from %s to %s (%s).", name, table.shape, shape, convention)
    size = (shape[0], math.prod(shape[1:-1]))

    def resized(x: np.ndarray) -> np.ndarray:
        grid = resize(x.reshape(x.shape[0], -1, x.shape[-1]), size, convention)
        return grid.reshape(shape).astype(x.dtype)

    return table.map(resized)


def _fit_class_token(loaded: Leaves, wanted: Shapes) -> None:
    if "cls" in loaded and "cls" not in wanted:
        log.info("Dropped the class token: the model pools without one.")
        del loaded["cls"]
    elif "cls" in wanted and "cls" not in loaded:
        log.info("The class token is fresh: the checkpoint has none.")


def _fit_patches(loaded: Leaves, wanted: Shapes) -> None:
    """Patch size by FlexiViT's pseudo-inverse; channels by summing or repeating the weights."""
    name = "embedding/kernel"
    if name not in loaded or name not in wanted or "conv_root/kernel" in wanted:
        return
    kernel, (ph, pw, channels, _) = loaded[name], wanted[name].shape
    if kernel.shape[:2] != (ph, pw):
        log.info("Resized the patch kernel from %d×%d to %d×%d.", *kernel.shape[:2], ph, pw)
        kernel = kernel.map(lambda x: resize_patch_kernel(x, (ph, pw)))
    if kernel.shape[2] != channels:
        log.info("Fitted the patch kernel from %d to %d channels.", kernel.shape[2], channels)
        kernel = kernel.map(lambda x: fit_channels(x, channels))
    loaded[name] = kernel


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
