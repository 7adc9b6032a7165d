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
from collections.abc import Iterator, Sequence
from typing import Any

import flax.traverse_util
import jax
from etils import epath

from vit_jax.checkpoint import catalog, foreign, formats, official, orbax_directory
from vit_jax.checkpoint.card import Card, infer_card
from vit_jax.checkpoint.fit import Fitted, fit
from vit_jax.checkpoint.lazy import read_ahead
from vit_jax.checkpoint.names import check_fit, recover_tree
from vit_jax.checkpoint.npz import open_archive
from vit_jax.checkpoint.plan import Plan

log = logging.getLogger(__name__)

# How the library that a checkpoint comes from rescales its own position grid.
_GRID_CONVENTIONS = {"timm": "cubic_antialias", "hf": "torch_bicubic"}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose names and shapes are known and whose weights are not read yet.

    `format` is npz, orbax, run (a step of a training run), or the layout of a safetensors file:
    timm, hf, lucidrains, timm_mixer. `card` is what it says about itself, else what its shapes
    tell; None where those are of no model of ours.
    """

    path: str
    format: str
    card: Card | None
    plan: Plan

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
        abstract_params: Any,
        *,
        keep_head: bool = False,
        grid: Sequence[int] | None = None,
        pretrained_grid: Sequence[int] | None = None,
        convention: str | None = None,
    ) -> Fitted:
        """This checkpoint's weights for the model with these parameters (arrays or shapes).

        The head is fresh unless `keep_head`. `grid` is the (height, width) in patches that the
        model runs at, `pretrained_grid` the one it was trained at, where the card does not say;
        each is taken to be square where nobody says. Nothing is read yet.
        """
        if pretrained_grid is None and self.card is not None and not self.card.inferred:
            pretrained_grid = self.card.grid
        return fit(
            self.plan.leaves,
            abstract_params,
            keep_head=keep_head,
            grid=grid,
            pretrained_grid=pretrained_grid,
            convention=convention or self.grid_convention,
            where=self.path,
        )

    def restore(self, target: Any) -> Any:
        """The parameters as the ShapeDtypeStructs of `target` say: dtype, and sharding where they
        have one. Any difference in names or shapes is an error that lists them all.
        """
        check_fit(self.shapes, flax.traverse_util.flatten_dict(target, sep="/"), where=self.path)
        shardings = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), target)
        return Fitted(self.plan.leaves, target, where=self.path).restore(shardings)


@contextlib.contextmanager
def open(
    path: epath.PathLike,
    *,
    num_heads: int | None = None,
    image_size: Sequence[int] | None = None,
) -> Iterator[Checkpoint]:
    """The checkpoint at a path, of whatever format, or of a name in the catalog.

    `num_heads` and `image_size` (height, width) are for files that do not say.
    """
    where = fetched(path)
    kind, where = formats.recognise(where)
    if kind == formats.SAFETENSORS:
        with foreign.open_plan(where, num_heads=num_heads) as (plan, card, layout):
            yield Checkpoint(str(path), layout, card, plan)
        return
    with contextlib.ExitStack() as stack:
        if kind == formats.RUN:
            plan, card = orbax_directory.open_step(where)
        elif kind == formats.ORBAX:
            plan, card = orbax_directory.open_directory(where)
        else:
            archive = stack.enter_context(open_archive(where))
            plan, card = official.open_plan(archive), official.read_card(archive)
        if card is None:
            size = tuple(image_size) if image_size is not None else None
            card = infer_card(plan.leaves, source=where.name, image_size=size)
        yield Checkpoint(str(path), kind, card, plan)


def fetched(path: epath.PathLike) -> epath.Path:
    """A path that exists, as it is; a name of the catalog, fetched unless it is cached."""
    local = epath.Path(path).expanduser()
    if local.exists():
        return local
    if str(path) in catalog.entries():
        return epath.Path(catalog.fetch(str(path)))
    raise FileNotFoundError(f"There is no checkpoint at {path}.{catalog.near_names(str(path))}")


def load(path: epath.PathLike, *, num_heads: int | None = None) -> dict[str, Any]:
    """The parameter tree of a checkpoint, as NumPy arrays in our names.

    Reads an official .npz of any generation, an Orbax directory, a workdir, and timm, Hugging Face
    and vit-pytorch safetensors (a file or a folder); its content tells which. `num_heads` is for
    foreign weights whose file does not say.
    """
    with open(path, num_heads=num_heads) as found:
        for note in found.plan.notes:
            log.warning("%s: %s", path, note.removeprefix("note: "))
        return found.params()


def load_pretrained(
    *,
    pretrained_path: epath.PathLike,
    init_params: Any,
    model_config: Any = None,
    keep_head: bool = False,
    grid: Sequence[int] | None = None,
    pretrained_grid: Sequence[int] | None = None,
    convention: str | None = None,
) -> dict[str, Any]:
    """A checkpoint's weights, fitted to the model that `init_params` come from.

    As in the reference, `pre_logits` is dropped unless the model has a representation layer, and
    the head is the fresh one; see `Checkpoint.fit` for the rest. `model_config` is accepted because
    the reference takes it; `init_params` say all that is needed.
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
