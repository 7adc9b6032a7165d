"""A run's directory: one process at a time, one configuration for good.

config.json     the resolved configuration       metrics.jsonl   a line per report
train.log       what was said                    curves.png      the lines as a picture
events.out.*    the same for TensorBoard         checkpoints/    see checkpoint.run
model.npz       the weights at the end, with their card
"""

import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_collections
from etils import epath

from vit_jax.config import MAY_CHANGE

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
_MARKER = ".whole"


class Workdir:
    """`path` is where the run lives; `local` where its small files are written, the same directory
    unless the run lives on gs:// or s3://. `sync` brings the two together. Of several processes
    the first writes, and the others have a `local` directory that is thrown away.
    """

    def __init__(self, path: epath.Path, local: Path):
        self.path, self.local = path, local

    @property
    def checkpoints(self) -> epath.Path:
        """Where Orbax writes: the run's own place, or beside it where Orbax cannot write."""
        return epath.Path(self.local) if _is_copied(self.path) else self.path

    def sync(self) -> None:
        if not _is_remote(self.path) or jax.process_index() > 0:
            return
        for file in self.local.iterdir():
            if file.is_file() and not file.name.startswith("."):
                (self.path / file.name).write_bytes(file.read_bytes())
        if _is_copied(self.path):
            upload_steps(self.local / CHECKPOINTS, self.path / CHECKPOINTS)


@contextlib.contextmanager
def open_workdir(path: epath.PathLike, config: ml_collections.ConfigDict) -> Iterator[Workdir]:
    """Makes or reopens a run's directory, for this process alone.

    Refuses a directory that another process trains in, or that holds a run which this
    configuration cannot continue.
    """
    path = epath.Path(os.fspath(path)).expanduser()
    first = jax.process_index() == 0
    if not _is_remote(path):
        path = epath.Path(Path(path).absolute())
    with contextlib.ExitStack() as stack:
        if _is_remote(path) or not first:
            local = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vit_jax-")))
            for name in ("metrics.jsonl", "train.log"):
                if (path / name).exists():
                    (local / name).write_bytes((path / name).read_bytes())
            if _is_copied(path):
                if jax.process_count() > 1:
                    raise ValueError(
                        f"{path} holds the run of one process alone: Orbax cannot write to it. "
                        "Use gs:// or a directory that all processes see."
                    )
                download_steps(path / CHECKPOINTS, local / CHECKPOINTS)
        else:
            local = Path(path)
            _make(local)
            stack.enter_context(_lock(local / ".lock"))
        _check_config(path / "config.json", config)
        if first:
            _write_config(path / "config.json", config)
        workdir = Workdir(path, local)
        yield workdir
        workdir.sync()


def _is_remote(path: epath.Path) -> bool:
    return "://" in str(path)


def _is_copied(path: epath.Path) -> bool:
    """Whether checkpoints are written locally and copied: Orbax itself knows gs:// alone."""
    return _is_remote(path) and not str(path).startswith("gs://")


def upload_steps(local: Path, remote: epath.Path) -> None:
    """Makes `remote` have the whole steps that `local` has, and no others.

    A step counts when its marker is there, which comes last and goes first: what a kill cut short
    is not taken for a step. Orbax gives a step its name when it is whole.
    """
    steps = {path.name for path in local.glob("*") if path.name.isdigit()}
    marked = _marked_steps(remote)
    for step in sorted(steps - marked, key=int):
        _copy_files(epath.Path(local / step), remote / step)
        (remote / f"{step}{_MARKER}").write_text("")
    for step in marked - steps:
        (remote / f"{step}{_MARKER}").unlink()
        (remote / step).rmtree()


def download_steps(remote: epath.Path, local: Path) -> None:
    for step in _marked_steps(remote):
        _copy_files(remote / step, epath.Path(local / step))


def _marked_steps(remote: epath.Path) -> set[str]:
    if not remote.exists():
        return set()
    names = (path.name for path in remote.iterdir())
    return {name.removesuffix(_MARKER) for name in names if name.endswith(_MARKER)}


def _copy_files(source: epath.Path, target: epath.Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir():
            _copy_files(path, target / path.name)
        else:
            (target / path.name).write_bytes(path.read_bytes())


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ValueError(f"The workdir {path} cannot be made: {e.strerror}.") from e
    if not os.access(path, os.W_OK):
        raise ValueError(f"The workdir {path} cannot be written to; choose another --workdir.")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by the operating system for as long as this process lives, and no longer."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise ValueError(
                f"Another process ({file.read().strip() or 'unknown'}) trains in {path.parent}. "
                "Wait for it, stop it, or choose another --workdir."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def _check_config(path: epath.Path, config: ml_collections.ConfigDict) -> None:
    new = flat_config(config)
    if path.exists():
        old = json.loads(path.read_text())
        changes = {
            name: (old.get(name), new.get(name))
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        }
        for name, (before, after) in changes.items():
            log.info("config.%s was %r and is now %r.", name, before, after)
        if refused := [name for name in changes if name not in MAY_CHANGE]:
            told = "; ".join(
                f"config.{name} was {changes[name][0]!r}, now {changes[name][1]!r}"
                for name in refused
            )
            raise ValueError(
                f"{path.parent} holds another run: {told}. Start it again as it was, or choose "
                "another --workdir."
            )


def _write_config(path: epath.Path, config: ml_collections.ConfigDict) -> None:
    partial = path.parent / f".config.{os.getpid()}"
    partial.write_text(json.dumps(flat_config(config), indent=1) + "\n")
    partial.replace(path)


def flat_config(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Dotted names to plain JSON values."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            flat |= {f"{name}.{inner}": v for inner, v in flat_config(value).items()}
        else:
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat
