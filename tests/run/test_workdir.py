"""Runs that live where Orbax cannot write: checkpoints are copied there, whole or not at all."""

import jax
import numpy as np
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as file_systems

from tests.run.test_train import load_recipe
from vit_jax import checkpoint
from vit_jax.run.workdir import download_steps, upload_steps
from vit_jax.train import train_and_evaluate


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


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


def test_a_run_on_s3_goes_on_where_it_was(monkeypatch):
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
