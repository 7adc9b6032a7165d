"""Orbax directories: of parameters alone, or a step of a training run.

    CHECKPOINT/{card.json and Orbax's own files}
    WORKDIR/checkpoints/STEP/{state,card}      state holds params, and averaged ones as ema

Orbax lists what a directory holds; its arrays are then read one by one, in whole or in part.

A step is *complete* if it was written to its end, and *whole* if it still is what was written then.
"""

import contextlib
import errno
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import flax.traverse_util
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from orbax.checkpoint.metadata import ArrayMetadata

from vit_jax.aliases import Params
from vit_jax.atomic import is_remote, replacing
from vit_jax.checkpoint import checksums
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.lazy import Index, Lazy, check_claims, check_count, read_ahead, unstacked
from vit_jax.checkpoint.plan import Mapped, Plan
from vit_jax.models.kinds import flatten
from vit_jax.models.stacking import STACKED
from vit_jax.untrusted import as_path, read_json

log = logging.getLogger(__name__)

CARD = "card.json"
RUN = "checkpoints"  # the directory of steps in a workdir
COMMITTED = "commit_success.txt"  # the last file that Orbax writes into a step
DAMAGED = ".damaged"  # STEP.damaged was set aside
MARKER = ".whole"  # STEP.whole is the last file that we write when we copy a step
_MARKS = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")


def is_orbax(path: epath.Path) -> bool:
    return any((path / mark).exists() for mark in _MARKS)


def find_step(path: epath.Path) -> epath.Path | None:
    """The step at a path: the path itself, or the newest whole step of a workdir; else None.

    Damaged steps of a workdir are passed over, with a warning; one that is asked for is an error.
    """
    if (path / "state").is_dir() and (path / "card").is_dir():
        if what := damage(path):
            raise ValueError(f"{path} is damaged: {what}. Use another step, or a copy of it.")
        return path
    folder = path / RUN if (path / RUN).is_dir() else path
    if not any((folder / str(step) / "state").exists() for step in complete_steps(folder)):
        return None
    whole, damaged = newest_whole(folder)
    for step, what in damaged.items():
        log.warning("Step %d is damaged (%s); step %d of %s is used.", step, what, whole, path)
    return folder / str(whole)


def complete_steps(folder: epath.Path) -> list[int]:
    """The steps in a directory that were written to their end, the newest first."""
    children = folder.iterdir() if folder.is_dir() else ()
    names = (child.name for child in children)
    steps = [int(name) for name in names if name.isdecimal() and name == str(int(name))]
    return sorted((step for step in steps if _is_complete(folder / str(step))), reverse=True)


def newest_whole(folder: epath.Path) -> tuple[int, dict[int, str]]:
    """The newest whole step, and what is wrong with each newer one; raises if none is whole."""
    damaged: dict[int, str] = {}
    # Listed anew after each: a run that is going on saves steps and removes old ones meanwhile.
    while steps := [step for step in complete_steps(folder) if step not in damaged]:
        if (what := damage(folder / str(steps[0]))) is None:
            return steps[0], {step: what for step, what in damaged.items() if step > steps[0]}
        damaged[steps[0]] = what
    listed = ", ".join(f"{step} ({what})" for step, what in damaged.items())
    hint = "Bring one back from a copy, or begin anew in another workdir."
    raise ValueError(f"No step in {folder} is whole: {listed}. {hint}")


def damage(step: epath.Path, under: str = "") -> str | None:
    """What is wrong with a step, in a few words; None if it is whole.

    `under` limits the check to one of its directories. A step of an older version has no checksums:
    it is read once, which finds everything but changed values.
    """
    if not _is_complete(step):
        return "it was not written to its end"
    try:
        if (step / checksums.FILE).exists():
            return checksums.difference(step, under)
        for name in ("card/metadata", "metrics/metrics"):
            if name.startswith(under) and (step / name).parent.exists():
                read_json(step / name)
        if not under:
            with _explained(step):
                leaves = flatten(_arrays(step / "state"))
            for leaf in leaves.values():
                leaf.read()
    except (ValueError, FileNotFoundError) as e:
        return str(e)
    except OSError as e:
        if e.errno != errno.EIO:
            raise  # of the reader, such as its permissions, and not of the step
        return str(e)


def set_aside(step: epath.Path) -> epath.Path:
    """Renames a damaged step, so that it counts no more; returns its new path."""
    names = (f"{step.name}{DAMAGED}{suffix}" for suffix in ("", *(f"-{i}" for i in range(2, 100))))
    aside = next(step.parent / name for name in names if not (step.parent / name).exists())
    return step.rename(aside)


def _is_complete(step: epath.Path) -> bool:
    """Local steps get their name when they are; in a bucket there are no names before files."""
    if str(step).startswith("gs://"):
        return (step / COMMITTED).exists()
    return not is_remote(step) or (step.parent / f"{step.name}{MARKER}").exists()


def open_directory(path: epath.Path) -> tuple[Plan, Card | None]:
    """The plan and the card, if any, of a directory of parameters."""
    with _explained(path):
        file = path / CARD
        card = Card.from_json(read_json(file), where=str(file)) if file.exists() else None
        tree = _arrays(path)
        return _plan(tree.get("params", tree)), card


def open_step(path: epath.Path, *, ema: bool = False) -> tuple[Plan, Card]:
    """The plan and the card of a run's step, without the optimizer's state."""
    with _explained(path):
        given = read_json(_absolute(path) / "card" / "metadata")
        card = Card.from_json(given, where=f"The card of {path}")
        return _plan(_arrays(path / "state")["ema" if ema else "params"]), card


def _plan(tree: Params) -> Plan:
    """Blocks that were saved as one stack get the published names."""
    mapped: list[Mapped] = []
    latest: dict[int, np.ndarray] = {}
    for name, leaf in flatten(tree).items():
        if f"/{STACKED}/" not in f"/{name}":
            mapped.append(Mapped((name,), name, "same", leaf))
            continue
        for i, row in enumerate(unstacked(leaf, latest)):
            ours = name.replace(f"{STACKED}/", f"{STACKED}_{i}/", 1)
            mapped.append(Mapped((name,), ours, "one block of the stack", row))
    return Plan(mapped)


def _arrays(path: epath.Path) -> Params:
    """The tree of a directory, as lazy arrays."""
    path = _absolute(path)
    if (listing := path / "_METADATA").exists():
        # Orbax has no limits of size, depth and number.
        check_count(read_json(listing).get("tree_metadata") or ())
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
    if not is_remote(path):  # what is missing of an array reads as zeros
        files = (file for file in Path(path).rglob("*") if file.is_file())
        check_claims(arrays.values(), sum(file.stat().st_size for file in files))
    return flax.traverse_util.unflatten_dict(arrays)


def _absolute(path: epath.Path) -> epath.Path:
    return path if is_remote(path) else path.resolve()


@contextlib.contextmanager
def _explained(path: epath.Path) -> Iterator[None]:
    try:
        yield
    except Exception as e:  # Orbax and tensorstore raise many kinds of it
        what = (str(e) or type(e).__name__).split("\n")[0]
        what = what.split(" [")[0]  # tensorstore adds its whole specification
        raise ValueError(f"The Orbax checkpoint {path} cannot be read: {what}") from e


def write(leaves: Mapping[str, Lazy], path: epath.PathLike, card: Card | None, where: str) -> Plan:
    """Writes a new Orbax directory with the card beside the arrays: all of it, or nothing."""
    path = as_path(path)
    if path.exists():
        raise ValueError(f"{path} exists already; Orbax writes new directories only.")
    if "\\" in str(path) or str(path).encode(errors="ignore").decode() != str(path):
        raise ValueError(f"Orbax cannot write {str(path)!r}: a backslash, or not UTF-8.")
    if is_remote(path) and not str(path).startswith("gs://"):  # it would make a local `s3:`
        raise ValueError(f"Orbax writes locally and to gs://, not to {path}; write an .npz there.")
    params = flax.traverse_util.unflatten_dict(dict(read_ahead(leaves, where=where)), sep="/")
    with replacing(path) as partial:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(_absolute(partial), args=ocp.args.PyTreeSave(params))
        if card is not None:
            (partial / CARD).write_text(card.dumps())
    return Plan([Mapped((name,), name, "same", leaf) for name, leaf in leaves.items()])
