"""Orbax directories: of parameters alone, or a step of a training run.

    CHECKPOINT/{card.json and Orbax's own files}
    WORKDIR/checkpoints/STEP/{state,card}      state holds params, and averaged ones as ema

Orbax lists what a directory holds; its arrays are then read one by one, in whole or in part.
"""

import contextlib
from collections.abc import Iterator, Mapping

import flax.traverse_util
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from orbax.checkpoint.metadata import ArrayMetadata

from vit_jax.aliases import Params
from vit_jax.atomic import is_remote, replacing
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.lazy import Index, Lazy, read_ahead, remembered, unstacked
from vit_jax.checkpoint.plan import Mapped, Plan
from vit_jax.models.kinds import flatten
from vit_jax.models.stacking import STACKED

CARD = "card.json"
RUN = "checkpoints"  # the directory of steps in a workdir
_MARKS = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")


def is_orbax(path: epath.Path) -> bool:
    return any((path / mark).exists() for mark in _MARKS)


def find_step(path: epath.Path) -> epath.Path | None:
    """The step at a path: the path itself, or the newest step of a workdir; else None."""
    if (path / "state").is_dir() and (path / "card").is_dir():
        return path
    parent = path / RUN if (path / RUN).is_dir() else path
    steps = [int(child.name) for child in parent.iterdir() if child.name.isdigit()]
    return find_step(parent / str(max(steps))) if steps else None


def open_directory(path: epath.Path) -> tuple[Plan, Card | None]:
    """The plan and the card, if any, of a directory of parameters."""
    with _explained(path):
        file = path / CARD
        card = Card.loads(file.read_text(), where=str(file)) if file.exists() else None
        tree = _arrays(path)
        return _plan(tree.get("params", tree)), card


def open_step(path: epath.Path, *, ema: bool = False) -> tuple[Plan, Card]:
    """The plan and the card of a run's step, without the optimizer's state."""
    with _explained(path):
        text = (_absolute(path) / "card" / "metadata").read_text()
        card = Card.loads(text, where=f"The card of {path}")
        return _plan(_arrays(path / "state")["ema" if ema else "params"]), card


def _plan(tree: Params) -> Plan:
    """Blocks that were saved as one stack get the published names."""
    mapped: list[Mapped] = []
    latest: dict[str, np.ndarray] = {}
    for name, leaf in flatten(tree).items():
        if f"/{STACKED}/" not in f"/{name}":
            mapped.append(Mapped((name,), name, "same", leaf))
            continue
        for i, row in enumerate(unstacked(remembered(name, leaf, latest))):
            ours = name.replace(f"{STACKED}/", f"{STACKED}_{i}/", 1)
            mapped.append(Mapped((name,), ours, "one block of the stack", row))
    return Plan(mapped)


def _arrays(path: epath.Path) -> Params:
    """The tree of a directory, as lazy arrays."""
    path = _absolute(path)
    metadata = ocp.PyTreeCheckpointHandler().metadata(path)
    context = tensorstore.Context({"cache_pool#ocdbt": {"total_bytes_limit": 2**27}})
    use_ocdbt = (path / "manifest.ocdbt").exists()

    def lazy(about: ArrayMetadata) -> Lazy:
        info = ocp.type_handlers.ParamInfo(
            name=about.name,
            path=path / about.name,
            parent_dir=path,
            is_ocdbt_checkpoint=use_ocdbt,
            use_zarr3=metadata.use_zarr3,
            ts_context=context,
        )
        spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=use_ocdbt)

        def load(index: Index) -> np.ndarray:
            with _explained(path):
                array = tensorstore.open(spec, open=True, context=context).result()
                return (array[index] if index else array).read().result()

        return Lazy(tuple(about.shape), np.dtype(about.dtype), load)

    # An optimizer's state also has empty nodes.
    flat = flax.traverse_util.flatten_dict(metadata.tree)
    arrays = {keys: lazy(leaf) for keys, leaf in flat.items() if isinstance(leaf, ArrayMetadata)}
    return flax.traverse_util.unflatten_dict(arrays)


def _absolute(path: epath.Path) -> epath.Path:
    return path if is_remote(path) else path.resolve()


@contextlib.contextmanager
def _explained(path: epath.Path) -> Iterator[None]:
    try:
        yield
    except Exception as e:  # Orbax and tensorstore raise many kinds of it
        raise ValueError(f"The Orbax checkpoint {path} cannot be read: {e}") from e


def write(leaves: Mapping[str, Lazy], path: epath.PathLike, card: Card | None, where: str) -> Plan:
    """Writes a new Orbax directory with the card beside the arrays: all of it, or nothing."""
    path = epath.Path(path).expanduser()
    if path.exists():
        raise ValueError(f"{path} exists already; Orbax writes new directories only.")
    if is_remote(path) and not str(path).startswith("gs://"):  # it would make a local `s3:`
        raise ValueError(f"Orbax writes locally and to gs://, not to {path}; write an .npz there.")
    params = flax.traverse_util.unflatten_dict(dict(read_ahead(leaves, where=where)), sep="/")
    with replacing(path) as partial:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(_absolute(partial), args=ocp.args.PyTreeSave(params))
        if card is not None:
            (partial / CARD).write_text(card.dumps())
    return Plan([Mapped((name,), name, "same", leaf) for name, leaf in leaves.items()])
