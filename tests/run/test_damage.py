"""Damaged checkpoints of a run: found before they are read, named, and passed over."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as file_systems
from PIL import Image

from tests.run import test_checkpoints
from tests.run.test_checkpoints import CARD, assert_equal
from tests.run.test_train import load_recipe
from vit_jax import checkpoint
from vit_jax.checkpoint import checksums
from vit_jax.checkpoint.orbax_directory import find_step
from vit_jax.predict import main as predict
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.run.workdir import has_checkpoint
from vit_jax.train import train_and_evaluate

DAMAGE = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "cut in half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "a flipped bit": lambda file: flip(file, len(file.read_bytes()) // 2),
}


def some_state(step):
    """With arrays too large for OCDBT to keep them among their names."""
    values, small = jax.random.normal(jax.random.key(step), 500), test_checkpoints.some_state(step)
    return jax.tree.map(lambda leaf: values if leaf.ndim else leaf, small)


def flip(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def files_of(step):
    """All that is needed to read a step; Orbax also writes two files that it never reads."""
    unread = {step / "_CHECKPOINT_METADATA", step / "commit_success.txt"}
    return sorted(path for path in step.rglob("*") if path.is_file() and path not in unread)


def array_file(step):
    """The file with the values of the arrays."""
    return max((step / "state" / "ocdbt.process_0" / "d").iterdir(), key=lambda f: f.stat().st_size)


def said(caplog):
    return [record.message for record in caplog.records if record.name.startswith("vit_jax")]


def open_run(workdir):
    return RunCheckpoints(workdir, keep=3, best_metric="accuracy")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run with the steps 2, 4 and 6; with checksums of all that is needed to read them."""
    workdir = tmp_path_factory.mktemp("saved")
    with open_run(workdir) as checkpoints:
        for step in (2, 4, 6):
            card = dataclasses.replace(CARD, metrics={"accuracy": step / 10})
            checkpoints.save(step, some_state(step), card=card)
    step = workdir / "checkpoints" / "6"
    sums = json.loads((step / checksums.FILE).read_text())
    assert {step / name for name in sums} | {step / checksums.FILE} == set(files_of(step))
    return workdir


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


def without_checksums(run):
    """As older versions left it."""
    for file in run.rglob(checksums.FILE):
        file.unlink()


def test_any_damage_to_any_file_is_found(run):
    step = run / "checkpoints" / "6"
    for file in files_of(step):
        for what, damage in DAMAGE.items():
            if (file.name, what) == (checksums.FILE, "missing"):
                continue  # as of an older version
            whole = file.read_bytes()
            damage(file)
            assert find_step(epath.Path(run)).name == "4", f"{file} {what}"
            file.write_bytes(whole)
    assert find_step(epath.Path(run)).name == "6"


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("name", ["array", "state/_METADATA", "metrics/metrics", "card/metadata"])
def test_a_run_goes_on_from_the_newest_whole_step(name, what, run, caplog):
    step = run / "checkpoints" / "6"
    file = array_file(step) if name == "array" else step / name
    DAMAGE[what](file)
    left = {path.name: path.read_bytes() for path in files_of(step)}
    with open_run(run) as checkpoints:
        assert_equal(checkpoints.restore(jax.eval_shape(some_state, 0)), some_state(4))
        assert checkpoints.latest_step == checkpoints.best_step == 4
        checkpoints.save(6, some_state(6), card=CARD)
    [message] = said(caplog)
    assert "Step 6 is damaged" in message and file.name in message
    assert "6.damaged" in message and "goes on from step 4" in message
    aside = run / "checkpoints" / "6.damaged"
    assert {path.name: path.read_bytes() for path in files_of(aside)} == left
    with open_run(run) as checkpoints:
        assert_equal(checkpoints.restore(jax.eval_shape(some_state, 0)), some_state(6))


def test_a_step_that_is_damaged_twice_is_set_aside_twice(run):
    for _ in range(2):
        flip(array_file(run / "checkpoints" / "6"), 9)
        with open_run(run) as checkpoints:
            assert checkpoints.latest_step == 4
            checkpoints.save(6, some_state(6), card=CARD)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names >= {"4", "6", "6.damaged", "6.damaged-2"}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_scores_of_an_older_step_do_not_stop_the_run(what, run):
    DAMAGE[what](run / "checkpoints" / "4" / "metrics" / "metrics")
    with open_run(run) as checkpoints:
        assert checkpoints.latest_step == 6
    assert (run / "checkpoints" / "4.damaged").exists()


def test_reading_passes_over_a_damaged_step_and_moves_nothing(run, caplog):
    flip(array_file(run / "checkpoints" / "6"), 9)
    before = sorted(run.rglob("*"))
    params = checkpoint.load(run)
    assert_equal(params, some_state(4).params)
    [message] = said(caplog)
    assert "Step 6 is damaged" in message and "step 4 of" in message
    assert sorted(run.rglob("*")) == before
    assert_equal(checkpoint.load(run / "checkpoints"), params)
    assert_equal(checkpoint.load(run / "checkpoints" / "4"), params)
    with pytest.raises(ValueError, match=r"checkpoints/6 is damaged: state/\S+ is not what was"):
        checkpoint.load(run / "checkpoints" / "6")


def test_a_run_without_a_whole_step_is_not_begun_anew(run):
    for step in (2, 4, 6):
        array_file(run / "checkpoints" / str(step)).unlink()
    for read in (lambda: checkpoint.load(run), lambda: open_run(run)) * 2:
        with pytest.raises(ValueError, match=r"(?s)No step .* is whole: 6 \(.*4 \(.*2 \(.*copy"):
            read()
        assert has_checkpoint(run)
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"2", "4", "6"}


def test_steps_of_older_versions_have_no_checksums_and_are_read(run):
    without_checksums(run)
    assert_equal(checkpoint.load(run), some_state(6).params)
    with open_run(run) as checkpoints:
        assert_equal(checkpoints.restore(jax.eval_shape(some_state, 0)), some_state(6))


@pytest.mark.parametrize("what", ["missing", "empty", "cut in half"])
@pytest.mark.parametrize("name", ["array", "state/manifest.ocdbt", "state/_METADATA"])
def test_of_steps_without_checksums_the_newest_readable_one_is_taken(name, what, run):
    without_checksums(run)
    step = run / "checkpoints" / "6"
    DAMAGE[what](array_file(step) if name == "array" else step / name)
    assert_equal(checkpoint.load(run), some_state(4).params)
    with open_run(run) as checkpoints:
        assert_equal(checkpoints.restore(jax.eval_shape(some_state, 0)), some_state(4))


def test_what_cannot_be_read_is_said_in_one_line(run):
    """tensorstore's own messages go on for pages."""
    without_checksums(run)
    step = run / "checkpoints" / "6"
    array_file(step).unlink()
    with pytest.raises(ValueError, match="is damaged") as raised:
        checkpoint.load(step)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600


def test_an_error_of_orbax_without_words_is_explained_too(run, monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "metadata", fail)
    with pytest.raises(ValueError, match="6 cannot be read: AssertionError"):
        checkpoint.load(run)


def test_a_step_has_its_checksums_before_it_has_its_name(tmp_path, monkeypatch):
    """So whatever moment a kill chooses, a step is whole, with checksums, or it is no step."""
    named, write = [], checksums.write
    monkeypatch.setattr(
        checksums, "write", lambda path: (named.append((path.parent / "2").exists()), write(path))
    )
    with open_run(tmp_path) as checkpoints:
        checkpoints.save(2, some_state(2), card=CARD)
    assert named == [False]
    assert (tmp_path / "checkpoints" / "2" / checksums.FILE).exists()


def test_half_saved_steps_of_a_killed_run_are_cleared(run):
    half = run / "checkpoints" / "8.orbax-checkpoint-tmp"
    shutil.copytree(run / "checkpoints" / "6", half)
    with open_run(run) as checkpoints:
        checkpoints.save(10, some_state(10), card=CARD)
    assert not half.exists()


def test_checksums_from_a_stranger_are_only_compared(run, tmp_path):
    step = run / "checkpoints" / "6"
    for sums in ('{"../../../../dev/zero": "0 0"}', "[]", "[" * 10_000, '{"card/metadata": null}'):
        (step / checksums.FILE).write_text(sums)
        assert find_step(epath.Path(run)).name == "4"


@pytest.mark.parametrize(
    ("place", "mark"),
    [("s3://bucket/marked", "{step}.whole"), ("gs://bucket/marked", "{step}/commit_success.txt")],
)
def test_in_a_bucket_a_step_counts_once_it_is_marked(place, mark, run, monkeypatch):
    """Files appear there one by one; a name alone says nothing."""
    for name in ("s3", "gs", "gcs"):
        monkeypatch.setitem(file_systems, name, MemoryFileSystem)
    folder = epath.Path(place) / "checkpoints"
    for file in run.glob("checkpoints/[46]/**/*"):
        if file in files_of(run / "checkpoints" / file.relative_to(run).parts[1]):
            to = folder / file.relative_to(run / "checkpoints")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())
    assert not has_checkpoint(place)
    with pytest.raises(ValueError, match="without a checkpoint"):
        checkpoint.load(place)
    (folder / mark.format(step=4)).write_text("")
    assert has_checkpoint(place)
    assert find_step(epath.Path(place)).name == "4"
    with pytest.raises(ValueError, match="6 is damaged: it was not written to its end"):
        find_step(folder / "6")


def test_a_damaged_run_ends_as_if_nothing_had_been(tmp_path, caplog):
    config, workdir = load_recipe(), tmp_path / "run"
    config.total_steps, config.eval_every, config.checkpoint_every = 4, 0, 2
    straight = train_and_evaluate(config, workdir)
    metrics = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    flip(array_file(workdir / "checkpoints" / "4"), 100)

    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    assert predict([str(workdir), str(tmp_path / "image.png")]) == 0
    [message] = said(caplog)
    assert "Step 4 is damaged" in message and "step 2 of" in message
    again = train_and_evaluate(config, workdir)
    jax.tree.map(np.testing.assert_array_equal, straight, again)
    log = (workdir / "train.log").read_text()
    assert "Step 4 is damaged" in log and "Resumed at step 2." in log
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    drop = "train/images_per_second"
    assert [{k: v for k, v in row.items() if k != drop} for row in rows] == [
        {k: v for k, v in row.items() if k != drop} for row in metrics
    ]
