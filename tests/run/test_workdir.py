"""A run's directory: what may change in it, and runs that live where Orbax cannot write."""

import json

import jax
import numpy as np
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as file_systems

from tests.run.test_train import load_recipe
from vit_jax import checkpoint
from vit_jax.checkpoint.orbax_directory import find_step
from vit_jax.config import flat_config
from vit_jax.run.workdir import (
    download_steps,
    has_checkpoint,
    open_workdir,
    stored_config,
    upload_steps,
)
from vit_jax.train import train_and_evaluate


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_run_of_another_version_with_other_options_goes_on(tmp_path):
    """One option is gone since then, and one has come, which is at its default."""
    with open_workdir(tmp_path, load_recipe()):
        stored = json.loads((tmp_path / "config.json").read_text())
    del stored["ema_decay"], stored["mixup"]
    stored["retired_option"] = 50_000
    (tmp_path / "config.json").write_text(json.dumps(stored))
    config = load_recipe()
    config.mixup, config.ema_decay = 0.0, 0.0
    with open_workdir(tmp_path, config):
        assert stored_config(tmp_path) == flat_config(config)
    (tmp_path / "config.json").write_text(json.dumps(stored))
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"config.ema_decay was 0.0, now 0.9"):
        open_workdir(tmp_path, load_recipe()).__enter__()


def test_a_start_that_failed_does_not_occupy_the_workdir(tmp_path):
    config = load_recipe()
    config.dataset = "misspelt"
    with open_workdir(tmp_path, config):
        pass
    with open_workdir(tmp_path, load_recipe()):
        assert stored_config(tmp_path) == flat_config(load_recipe())


@pytest.mark.parametrize("place", ["s3://bucket/new", "local"])
def test_a_checkpoint_counts_when_it_is_whole(place, monkeypatch, tmp_path):
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    path = epath.Path(place if "://" in place else tmp_path)
    assert not has_checkpoint(path)
    half = "5" if "://" in place else "5.orbax-checkpoint-tmp"
    (path / "checkpoints" / half / "state").mkdir(parents=True)
    (path / "checkpoints" / half / "state" / "array").write_text("half")
    assert not has_checkpoint(path)
    whole = path / "checkpoints" / ("5.whole" if "://" in place else "5")
    whole.write_text("") if "://" in place else whole.mkdir()
    assert has_checkpoint(path)


def test_there_is_no_stored_config_before_the_first_run(tmp_path):
    assert stored_config(tmp_path / "run") is None


def test_a_recipe_may_set_what_is_no_option(tmp_path):
    """As recipes of the reference do: `config.shuffle_buffer = 50_000`."""
    for size in (50_000, 1_000):
        config = load_recipe()
        config.shuffle_buffer = size
        with open_workdir(tmp_path, config):
            pass


def test_steps_come_and_go_with_their_markers(monkeypatch, tmp_path):
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    local, remote, other = tmp_path / "local", epath.Path("s3://bucket/steps"), tmp_path / "other"
    for step in ("5", "10", "15.orbax-checkpoint-tmp"):
        (local / step / "state").mkdir(parents=True)
        (local / step / "state" / "array").write_text(step)
    upload_steps(local, remote)
    (local / "20").mkdir()
    (local / "5").rename(tmp_path / "gone")
    upload_steps(local, remote)
    assert sorted(path.name for path in remote.iterdir()) == ["10", "10.whole", "20", "20.whole"]
    (remote / "30").mkdir()  # an upload that was cut short
    (remote / "30" / "array").write_text("half")
    download_steps(remote, other)
    assert files(other) == ["10/state/array"]
    assert (other / "10" / "state" / "array").read_text() == "10"


def test_marks_of_a_copied_step_come_last_and_go_first(monkeypatch, tmp_path):
    """Orbax's own mark is among the files of a step, and comes first by its name."""
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    written, removed = [], []
    open_file, remove = MemoryFileSystem.open, MemoryFileSystem.rm

    def opened(self, path, mode="rb", **options):
        written.append(path)
        return open_file(self, path, mode, **options)

    def rm(self, path, **options):
        removed.append(path)
        return remove(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "open", opened)
    monkeypatch.setattr(MemoryFileSystem, "rm", rm)
    local, remote = tmp_path / "local", epath.Path("s3://bucket/order")
    for name in ("card/metadata", "commit_success.txt", "state/array"):
        (local / "5" / name).parent.mkdir(parents=True, exist_ok=True)
        (local / "5" / name).write_text("")
    upload_steps(local, remote)
    (local / "5").rename(tmp_path / "gone")
    upload_steps(local, remote)
    names = [path.rpartition("/order/")[2] for path in dict.fromkeys(written)]
    assert names[2:] == ["5/commit_success.txt", "5.whole"]
    names = [path.rpartition("/order/")[2] for path in dict.fromkeys(removed)]
    assert names == ["5.whole", "5/commit_success.txt", "5"]


def test_a_step_that_was_set_aside_and_saved_again_is_both_in_the_bucket(monkeypatch, tmp_path):
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    local, remote = tmp_path / "local", epath.Path("s3://bucket/again")
    for content in ("first", "second", "third"):
        if (local / "4").exists():
            (local / "4").rename(local / "4.damaged")
        (local / "4").mkdir(parents=True)
        (local / "4" / "array").write_text(content)
        upload_steps(local, remote)
    names = {"4": "third", "4.damaged": "first", "4.damaged-2": "second"}
    assert {name: (remote / name / "array").read_text() for name in names} == names
    assert {path.name for path in remote.iterdir()} == {*names, "4.whole"}


def test_a_run_on_s3_goes_on_from_a_whole_step_and_leaves_nothing_here(monkeypatch, tmp_path):
    """Orbax takes s3://bucket for a local directory named `s3:`, if it gets to see it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    config = load_recipe()
    config.total_steps, config.eval_every, config.checkpoint_every = 4, 0, 2
    train_and_evaluate(config, "s3://bucket/run")
    remote = epath.Path("s3://bucket/run")
    assert (remote / "checkpoints" / "4.whole").exists()
    straight = checkpoint.load(remote / "model.npz")

    file = remote / "checkpoints" / "4" / "state" / "_METADATA"
    file.write_bytes(b"")
    again = train_and_evaluate(config, "s3://bucket/run")
    jax.tree.map(np.testing.assert_array_equal, straight, again)
    assert "Resumed at step 2" in (remote / "train.log").read_text()
    assert file.read_bytes() and find_step(remote).name == "4"  # saved again
    assert (remote / "checkpoints" / "4.damaged" / "state" / "_METADATA").read_bytes() == b""
    assert list(tmp_path.iterdir()) == []
