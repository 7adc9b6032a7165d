"""A run and its disk: what a kill, a full disk, damage or a lost mount leave of it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as file_systems

from tests.run.test_train import load_recipe
from vit_jax import checkpoint, train
from vit_jax.run.report import Report
from vit_jax.run.workdir import open_workdir, stored_config
from vit_jax.train import train_and_evaluate

ROOT = Path(__file__).parents[2]


def recipe(**options):
    config = load_recipe()
    for name, value in options.items():
        config[name] = value
    return config


# Small files


def report_twice(workdir, rows=2):
    config = recipe()
    with open_workdir(workdir, config) as directory:
        with Report(directory.local, config, start_step=0) as report:
            for step in range(1, rows + 1):
                report.scalars(step, {"loss": 1.0}, prefix="train")
            report.draw()
        with Report(directory.local, config, start_step=rows) as report:
            report.draw()


def test_no_file_of_a_run_is_emptied_before_it_is_written_again(tmp_path):
    """A kill in between would lose it."""
    report_twice(tmp_path)
    emptied, listening = [], True

    def note(event, args):
        if listening and event == "open" and isinstance(args[2], int) and args[2] & os.O_TRUNC:
            path = Path(os.fsdecode(args[0])) if isinstance(args[0], (str, bytes)) else None
            if path and path.parent == tmp_path and path.exists() and path.stat().st_size:
                emptied.append(path.name)

    sys.addaudithook(note)  # it cannot be removed
    report_twice(tmp_path)
    assert not emptied
    (tmp_path / "metrics.jsonl").write_text("\n")
    listening = False
    assert emptied == ["metrics.jsonl"]  # it would have been noted


def test_damaged_rows_of_metrics_do_not_stop_a_resume(tmp_path, caplog):
    rows = [{"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": float("nan")}]
    damaged = [
        *(b'{"step": 3, "train/lo', b'{"train/loss": 1.0}', b'{"step": "4", "train/loss": 1.0}'),
        *(b'{"step": 5, "train/loss": "low"}', b'{"step": 6, "train/loss": [1]}', b"[1, 2]"),
        *(b"\xff\xfe", b"[" * 100_000, b'{"step": true, "train/loss": 1.0}'),
    ]
    good = [json.dumps(row).encode() for row in rows]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([good[0], *damaged, good[1]]) + b"\n")
    with Report(tmp_path, recipe(), start_step=10) as report:
        report.draw()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"\n".join(good) + b"\n"
    assert f"{len(damaged)} damaged lines" in caplog.text


@pytest.mark.parametrize("text", ["", '{"batch": 3', "[1, 2]"])
def test_a_damaged_config_is_named(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/config\.json .*another --workdir\.$"):
        stored_config(tmp_path)


# Starts that failed


def test_a_failed_start_does_not_occupy_the_workdir(tmp_path, capfd):
    """Three mistakes, then the right command."""
    workdir, pictures = tmp_path / "run", tmp_path / "pictures"
    for name in ("cat", "dog"):
        (pictures / "train" / name).mkdir(parents=True)
        (pictures / "train" / name / "1.png").touch()
    for wrong, said in (
        ({"pretrained": "gone.npz", "seed": 1}, r"There is no checkpoint at gone\.npz"),
        ({"dataset": str(pictures), "seed": 2}, "no .*'test'"),
        ({"dataset": "./misspelt", "seed": 3}, "misspelt"),
    ):
        with pytest.raises((ValueError, OSError), match=said):
            train_and_evaluate(recipe(total_steps=1, **wrong), workdir)
    assert stored_config(workdir)["seed"] == 3
    train_and_evaluate(recipe(total_steps=1), workdir)
    assert "no checkpoint of the run before; this one takes its place" in capfd.readouterr().err
    assert "config.seed was 3 and is now 0." in (workdir / "train.log").read_text()
    with pytest.raises(ValueError, match=r"holds another run: config.seed was 0, now 4"):
        train_and_evaluate(recipe(total_steps=1, seed=4), workdir)


# A disk that is full, or gone


@contextlib.contextmanager
def mounted(directory, options):
    """A small file system of its own."""
    directory.mkdir()
    given = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    if sys.platform != "linux" or subprocess.run(given, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here (it needs root, on Linux)")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], capture_output=True)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return train_and_evaluate(recipe(), tmp_path_factory.mktemp("straight"))


@pytest.mark.parametrize("limit", ["size=400k", "nr_inodes=60"])
def test_a_full_disk_leaves_the_last_checkpoint_to_go_on_from(limit, straight, tmp_path):
    with mounted(tmp_path / "disk", limit) as disk:
        with pytest.raises(OSError, match=rf"No space left on device\. What was.*{disk}/run"):
            train_and_evaluate(recipe(), disk / "run")
        assert checkpoint.load(disk / "run")
        room = "remount,size=10m,nr_inodes=10k"
        subprocess.run(["mount", "-o", room, str(disk)], check=True)
        resumed = train_and_evaluate(recipe(), disk / "run")
        assert "Resumed at step 5" in (disk / "run" / "train.log").read_text()
        assert not list((disk / "run" / "checkpoints").glob("*tmp*"))
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


@pytest.mark.parametrize("what", ["unmounted", "renamed"])
def test_nothing_is_written_beneath_a_workdir_that_goes_away(what, tmp_path, monkeypatch):
    disk, steps = tmp_path / "disk", []

    def lose(step, every):
        if step == 7 and step not in steps:
            while not (
                disk / "checkpoints" / "5"
            ).exists():  # a save that is under way may get lost
                time.sleep(0.01)
            if what == "unmounted":
                subprocess.run(["umount", "-l", str(disk)], check=True)
            else:
                disk.rename(tmp_path / "elsewhere")
                disk.mkdir()
        steps.append(step)
        return every > 0 and step % every == 0

    monkeypatch.setattr(train, "due", lose)
    place = mounted(disk, "size=10m") if what == "unmounted" else contextlib.nullcontext()
    with place, pytest.raises(ValueError, match="no longer the directory that the run began in"):
        train_and_evaluate(recipe(), disk)
    assert max(steps) == 7
    assert not list(disk.iterdir())


def test_temporary_directories_of_killed_runs_are_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    program = f"""
import os, signal, tempfile
import tests.run.test_disk as here
tempfile.tempdir = {str(tmp_path)!r}
here.file_systems["s3"] = here.MemoryFileSystem
with here.open_workdir("s3://bucket/killed", here.recipe()):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("vit_jax-*")
    with open_workdir("s3://bucket/killed", recipe()) as directory:
        assert not left.exists()
        assert directory.local.is_dir()
