"""One road for weights: open a checkpoint of any format, look at it, read it, fit it to a model.

with checkpoint.open(path) as found:
    found.card, found.format, found.shapes        # from headers alone; no weight is read
    found.params()                                # host arrays in published names
    found.fit(abstract_params, …).restore(shardings, init)    # each leaf where it lives
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from vit_jax.aliases import Params, Size
from vit_jax.checkpoint import catalog, foreign, formats, official, orbax_directory
from vit_jax.checkpoint.card import Card, infer_card
from vit_jax.checkpoint.fit import Fitted, Grids, fit
from vit_jax.checkpoint.lazy import read_ahead
from vit_jax.checkpoint.names import check_fit, recover_tree
from vit_jax.checkpoint.npz import open_archive
from vit_jax.checkpoint.plan import Plan
from vit_jax.models.kinds import flatten
from vit_jax.untrusted import as_path

log = logging.getLogger(__name__)

# How the library that a checkpoint comes from rescales its own position grid.
_GRID_CONVENTIONS = {"timm": "cubic_antialias", "hf": "torch_bicubic"}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose names and shapes are known and whose weights are not read yet.

    `format` is npz, orbax, run (a step of a training run), or the layout of a safetensors file:
    timm, hf, lucidrains, timm_mixer. `card` is its own description, else one inferred from its
    shapes; None if those are not of our models.
    """

    path: str
    format: str
    card: Card | None
    plan: Plan
    grid_given: bool = False  # by the caller's image size, for a card that has to guess it

    @functools.cached_property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Every parameter by its flat published name."""
        return {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for name, leaf in self.plan.leaves.items()
        }

    @property
    def grid_convention(self) -> str:
        """How its position grid is rescaled (see `rescale`)."""
        return _GRID_CONVENTIONS.get(self.format, "google")

    def params(self) -> dict[str, Any]:
        """All parameters as NumPy arrays, nested by their published names."""
        flat = dict(read_ahead(self.plan.leaves, where=self.path))
        return recover_tree(list(flat), list(flat.values()))

    def fit(
        self,
        abstract_params: Params,
        *,
        keep_head: bool = False,
        grid: Size | None = None,
        pretrained_grid: Size | None = None,
        convention: str | None = None,
    ) -> Fitted:
        """This checkpoint's weights for the model with these parameters (arrays or shapes).

        The head is fresh unless `keep_head`. `grid` is the (height, width) in patches that the
        model runs at, `pretrained_grid` the one it was trained at, for a card that does not say. A
        grid that nothing specifies is the model's if it has as many patches, else a square one.
        Nothing is read yet.
        """
        if pretrained_grid is None and self.card is not None:
            is_guess = self.card.grid_is_guess and not self.grid_given
            pretrained_grid = None if is_guess else self.card.grid
        grids = Grids(grid, pretrained_grid, convention or self.grid_convention)
        leaves, where = self.plan.leaves, self.path
        return fit(leaves, abstract_params, keep_head=keep_head, grids=grids, where=where)

    def restore(self, target: Params) -> Params:
        """The parameters with the dtypes, and the shardings if any, of the ShapeDtypeStructs in
        `target`. One error lists all differences in names and shapes.
        """
        check_fit(self.shapes, flatten(target), where=self.path)
        shardings = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), target)
        return Fitted(self.plan.leaves, target, where=self.path).restore(shardings)


@contextlib.contextmanager
def open(
    path: epath.PathLike, *, num_heads: int | None = None, image_size: Size | None = None
) -> Iterator[Checkpoint]:
    """The checkpoint of any format at a path, or with a name in the catalog.

    `num_heads` and `image_size` (height, width) are for files that do not say.
    """
    local = fetched(path)
    with contextlib.ExitStack() as stack:
        with _explained(str(path)):
            kind, where = formats.recognise(local)
            if kind == formats.SAFETENSORS:
                opened = foreign.open_plan(where, num_heads=num_heads)
                plan, card, kind = stack.enter_context(opened)
            elif kind == formats.RUN:
                plan, card = orbax_directory.open_step(where)
            elif kind == formats.ORBAX:
                plan, card = orbax_directory.open_directory(where)
            else:
                archive = stack.enter_context(open_archive(where))
                plan, card = official.read_plan(archive), official.read_card(archive)
            for mapped in plan.mapped:
                if mapped.array.dtype.kind not in "fiub" and mapped.array.dtype != jnp.bfloat16:
                    raise ValueError(f"{mapped.sources} are {mapped.array.dtype}, not numbers")
            if card is None:
                card = infer_card(plan.leaves, source=where.name, image_size=image_size)
            encoder = getattr(card and card.model, "transformer", None)
            if encoder and num_heads not in (None, own := encoder["num_heads"]):
                raise ValueError(f"{path} has {own} heads, not the {num_heads} that were given.")
        yield Checkpoint(str(path), kind, card, plan, grid_given=image_size is not None)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Whatever is wrong with a stranger's file, opening it ends in an OSError or a ValueError that
    names it.
    """
    try:
        yield
    except Exception as e:
        if isinstance(e, OSError) or (isinstance(e, ValueError) and path in str(e)):
            raise
        kind = "" if isinstance(e, ValueError) else f"{type(e).__name__}: "
        raise ValueError(f"{path} cannot be read: {kind}{str(e).removesuffix('.')}.") from e


def fetched(path: epath.PathLike) -> epath.Path:
    """An existing path as it is; a name of the catalog, downloaded unless it is cached."""
    local = as_path(path)
    if local.exists():
        return local
    if str(path) in catalog.entries():
        return epath.Path(catalog.fetch(str(path)))
    raise FileNotFoundError(f"There is no checkpoint at {path}.{catalog.near_names(str(path))}")


def load(path: epath.PathLike, *, num_heads: int | None = None) -> dict[str, Any]:
    """The parameter tree of a checkpoint, as NumPy arrays in our names.

    Reads an official .npz of any generation, an Orbax directory, a workdir, and timm, Hugging Face
    and vit-pytorch safetensors (a file or a folder), recognised by content. `num_heads` is for
    foreign files that do not say.
    """
    with open(path, num_heads=num_heads) as found:
        for note in found.plan.notes:
            log.warning("%s: %s", path, note.removeprefix("note: "))
        return found.params()


def load_pretrained(
    *,
    pretrained_path: epath.PathLike,
    init_params: Params,
    model_config: object = None,
    keep_head: bool = False,
    grid: Size | None = None,
    pretrained_grid: Size | None = None,
    convention: str | None = None,
) -> dict[str, Any]:
    """A checkpoint's weights, fitted to the model that `init_params` come from.

    As in the reference, `pre_logits` is dropped unless the model has a representation layer, and
    the head is fresh; see `Checkpoint.fit` for the rest. `model_config` is accepted because the
    reference takes it, and ignored because `init_params` are enough.
    """
    del model_config
    with open(pretrained_path) as found:
        fitted = found.fit(
            init_params,
            keep_head=keep_head,
            grid=grid,
            pretrained_grid=pretrained_grid,
            convention=convention,
        )
        return fitted.restore(init=lambda: init_params)
