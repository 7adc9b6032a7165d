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


def test_steps_come_and_go_with_their_markers(tmp_path):
    local, remote, other = tmp_path / "local", epath.Path(tmp_path / "remote"), tmp_path / "other"
    for step in ("5", "10", "15.orbax-checkpoint-tmp"):
        (local / step / "state").mkdir(parents=True)
        (local / step / "state" / "array").write_text(step)
    upload_steps(local, remote)
    (local / "20").mkdir()
    (local / "5").rename(tmp_path / "gone")
    upload_steps(local, remote)
    assert files(tmp_path / "remote") == ["10.whole", "10/state/array", "20.whole"]
    (remote / "30").mkdir()  # an upload that was cut short
    (remote / "30" / "array").write_text("half")
    download_steps(remote, other)
    assert files(other) == ["10/state/array"]
    assert (other / "10" / "state" / "array").read_text() == "10"


def test_a_run_on_s3_goes_on_where_it_was_and_leaves_nothing_here(monkeypatch, tmp_path):
    """Orbax takes s3://bucket for a local directory named `s3:`, if it gets to see it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    config = load_recipe()
    config.total_steps, config.eval_every, config.checkpoint_every = 4, 0, 2
    train_and_evaluate(config, "s3://bucket/run")
    remote = epath.Path("s3://bucket/run")
    assert (remote / "checkpoints" / "4.whole").exists()
    straight = checkpoint.load(remote / "model.npz")

    for name in ("4.whole", "4"):
        path = remote / "checkpoints" / name
        path.rmtree() if name == "4" else path.unlink()
    again = train_and_evaluate(config, "s3://bucket/run")
    jax.tree.map(np.testing.assert_array_equal, straight, again)
    assert "Resumed at step 2" in (remote / "train.log").read_text()
    assert list(tmp_path.iterdir()) == []
