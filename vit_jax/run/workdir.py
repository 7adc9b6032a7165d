"""A run's directory: one process at a time, one configuration for good.

config.json     the resolved configuration       metrics.jsonl   a line per report
train.log       what was logged                  curves.png      the lines as a picture
events.out.*    the same for TensorBoard         checkpoints/    see run.checkpoints
model.npz       the weights at the end, with their card
"""

import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax
import ml_collections
from etils import epath

from vit_jax import untrusted
from vit_jax.atomic import clear_leftovers, disk_errors, is_remote, replacing, writer
from vit_jax.checkpoint.orbax_directory import COMMITTED, DAMAGED, MARKER, complete_steps, set_aside
from vit_jax.checkpoint.orbax_directory import RUN as CHECKPOINTS
from vit_jax.config import MAY_CHANGE, OPTIONS, default_config, flat_config
from vit_jax.run.report import logging_to

log = logging.getLogger(__name__)

_CONFIG = "config.json"
_TEMPORARY = "vit_jax-"
_HINT = ". What was saved before is good; when the disk is well, start the run again"


class Workdir(NamedTuple):
    """`path` is where the run lives; `local` is where its small files are written: the same
    directory, unless the run lives on gs:// or s3://. `sync` copies the one to the other. Of
    several processes the first one writes; each of the others has a temporary `local`.
    """

    path: epath.Path
    local: Path
    began: os.stat_result  # of `local`

    @property
    def checkpoints(self) -> epath.Path:
        """Where Orbax writes: the run's own place, or `local` where Orbax cannot write there."""
        return epath.Path(self.local) if _is_copied(self.path) else self.path

    def check(self) -> None:
        """Raises if another directory has the name of this one: its mount went away, for example,
        and what is written now would end up beneath.
        """
        if not (self.local.exists() and os.path.samestat(self.local.stat(), self.began)):
            raise ValueError(
                f"{self.path} is no longer the directory that the run began in: was it unmounted, "
                "moved or removed? Nothing more is written. Bring it back and start the run again."
            )

    def sync(self) -> None:
        if not is_remote(self.path) or jax.process_index() > 0:
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
    path = _absolute(path)
    first = jax.process_index() == 0
    with disk_errors(path, _HINT), contextlib.ExitStack() as stack:
        if is_remote(path) or not first:
            clear_leftovers(tempfile.gettempdir(), f"{_TEMPORARY}*")
            name = f"{_TEMPORARY}{writer()}."
            local = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=name)))
            for name in ("metrics.jsonl", "train.log"):
                if (path / name).exists():
                    (local / name).write_bytes((path / name).read_bytes())
            if _is_copied(path):
                if jax.process_count() > 1:
                    raise ValueError(
                        f"A run of several processes cannot live in {path}: Orbax cannot write "
                        "there. Use gs://, or a directory that all processes see."
                    )
                download_steps(path / CHECKPOINTS, local / CHECKPOINTS)
        else:
            local = Path(path)
            stack.enter_context(_made_and_locked(local))
        stack.enter_context(logging_to(local / "train.log"))
        _check_config(path, config)
        if first:
            with replacing(path / _CONFIG) as partial:
                partial.write_text(json.dumps(flat_config(config), indent=1) + "\n")
        workdir = Workdir(path, local, local.stat())
        try:
            yield workdir
        except Exception:
            workdir.check()  # if it is gone, that is what to say
            raise
        workdir.sync()


def has_checkpoint(path: epath.PathLike) -> bool:
    """Whether the run in a directory has a complete checkpoint to go on from."""
    return bool(complete_steps(_absolute(path) / CHECKPOINTS))


def stored_config(path: epath.PathLike) -> dict[str, Any] | None:
    """The configuration of the run in a directory, by dotted names; None if there is no run."""
    file = _absolute(path) / _CONFIG
    try:
        return untrusted.read_json(file) if file.exists() else None
    except ValueError as e:
        raise ValueError(
            f"{e} It says what the run in its directory is: bring it back, remove it if you start "
            "the run as you did before, or choose another --workdir."
        ) from e


def upload_steps(local: Path, remote: epath.Path) -> None:
    """Makes `remote` have the complete steps that `local` has, and no others.

    A step counts only while its marker is there, which is written last and removed first: what a
    kill cut short is not taken for a step. A step that was set aside in `local` is so in `remote`.
    """
    for damaged in local.glob(f"*{DAMAGED}"):
        step = damaged.name.removesuffix(DAMAGED)
        _unmark(remote / step)
        set_aside(remote / step)
        shutil.rmtree(damaged)
    ours, theirs = complete_steps(epath.Path(local)), complete_steps(remote)
    for step in sorted(set(ours) - set(theirs)):
        _copy_files(epath.Path(local / str(step)), remote / str(step))
        (remote / f"{step}{MARKER}").write_text("")
    for step in set(theirs) - set(ours):
        _unmark(remote / str(step))
        (remote / str(step)).rmtree()


def download_steps(remote: epath.Path, local: Path) -> None:
    for step in complete_steps(remote):
        _copy_files(remote / str(step), epath.Path(local / str(step)))


def _unmark(step: epath.Path) -> None:
    (step.parent / f"{step.name}{MARKER}").unlink()
    (step / COMMITTED).unlink(missing_ok=True)


def _copy_files(source: epath.Path, target: epath.Path) -> None:
    """Orbax's own mark comes last too, for whoever reads `target` with Orbax."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: path.name == COMMITTED):
        if path.is_dir():
            _copy_files(path, target / path.name)
        else:
            (target / path.name).write_bytes(path.read_bytes())


def _absolute(path: epath.PathLike) -> epath.Path:
    path = untrusted.as_path(path)
    return path if is_remote(path) else epath.Path(Path(path).absolute())


def _is_copied(path: epath.Path) -> bool:
    """Whether checkpoints are written locally and copied: of remote paths Orbax knows gs:// only,
    and takes the others for names of local directories.
    """
    return is_remote(path) and not str(path).startswith("gs://")


@contextlib.contextmanager
def _made_and_locked(directory: Path) -> Iterator[None]:
    """Held by the operating system for as long as this process lives, and no longer."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ValueError(f"The workdir {directory} cannot be made: {e.strerror}.") from e
    if not os.access(directory, os.W_OK):
        raise ValueError(f"The workdir {directory} cannot be written to; choose another --workdir.")
    owner = directory / ".lock.owner"  # not in the lock itself, which filelock may truncate
    try:
        held = filelock.FileLock(directory / ".lock", timeout=0).acquire()
    except filelock.Timeout:
        known = owner.read_text() if owner.exists() else "unknown"
        raise ValueError(
            f"Another process ({known}) trains in {directory}. Wait for it, stop it, or choose "
            "another --workdir."
        ) from None
    with held:
        clear_leftovers(directory)
        with replacing(owner) as partial:
            partial.write_text(f"process {os.getpid()}")
        yield


def _check_config(path: epath.Path, config: ml_collections.ConfigDict) -> None:
    """Logs what differs from the stored configuration; refuses what would make another run.

    Only options that exist are compared. One that is not stored, because the version that ran had
    no such option yet, was at today's default. A run without a checkpoint, as after a start that
    failed, makes way for another.
    """
    if (stored := stored_config(path)) is None:
        return
    old, new = flat_config(default_config()) | stored, flat_config(config)
    names = [n for n in sorted({*old, *new}) if n in OPTIONS or n.startswith("model.")]
    changes = {n: (old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)}
    others = {name: change for name, change in changes.items() if name not in MAY_CHANGE}
    refused = [f"config.{name} was {was!r}, now {now!r}" for name, (was, now) in others.items()]
    if refused and has_checkpoint(path):
        raise ValueError(
            f"{path} holds another run: {'; '.join(refused)}. Start it again as it was, or choose "
            "another --workdir."
        )
    if refused:
        log.info("%s has no checkpoint of the run before; this one takes its place.", path)
    for name, (was, now) in changes.items():
        log.info("config.%s was %r and is now %r.", name, was, now)
