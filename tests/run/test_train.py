"""The train command: it finishes, resumes exactly, refuses what it must, and explains itself."""

import dataclasses
import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.reference import load_with_card
from vit_jax import checkpoint, models
from vit_jax.run.workdir import open_workdir
from vit_jax.train import train_and_evaluate

RECIPE = Path(__file__).with_name("recipe.py")
ROOT = Path(__file__).parents[2]


def load_recipe(path=RECIPE, *arguments):
    spec = importlib.util.spec_from_file_location("recipe", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*arguments)


def command(workdir, *options, module="vit_jax.train", recipe=RECIPE):
    return [
        *(sys.executable, "-m", module, f"--config={recipe}", f"--workdir={workdir}"),
        *options,
    ]


def run(workdir, *options, **kwargs):
    return subprocess.run(
        command(workdir, *options, **kwargs), cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def kill_when(workdir, said):
    """Starts a run and kills it, -9, when it says something."""
    process = subprocess.Popen(command(workdir), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if said in line:
            process.send_signal(signal.SIGKILL)
            break
    process.stderr.close()
    assert process.wait() in (-signal.SIGKILL, 0)  # 0: it was done before the signal arrived


def rows(workdir):
    """The numbers of metrics.jsonl that a repeated run must repeat."""
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if "per_second" not in k} for row in lines]


def assert_same_run(a, b):
    """Bitwise the same weights, of training and averaged, and the same numbers on the way."""
    for name in ("model.npz", "model_ema.npz"):
        theirs, ours = (checkpoint.load(Path(d) / name) for d in (a, b))
        jax.tree.map(np.testing.assert_array_equal, theirs, ours)
    assert rows(a) == rows(b)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("run") / "finished"
    params = train_and_evaluate(load_recipe(), workdir)
    return workdir, params


# A run and what it leaves


def test_train_and_evaluate_returns_the_final_parameters(finished):
    workdir, params = finished
    exported = checkpoint.load(workdir / "model.npz")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), exported)


def test_the_loss_falls(finished):
    losses = [row["test/loss"] for row in rows(finished[0]) if "test/loss" in row]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_a_workdir_has_everything_a_person_looks_for(finished):
    names = {path.name.split(".tfevents")[0] for path in finished[0].iterdir()}
    expected = {"config.json", "train.log", "metrics.jsonl", "curves.png", "model.npz"}
    assert expected | {"events.out", "checkpoints", "model_ema.npz"} <= names


def test_the_log_says_what_ran_and_what_to_do_next(finished):
    log = (finished[0] / "train.log").read_text()
    for said in (
        *("testing, ", " parameters", "GFLOP per image", "digits: 1,618 to train, 179 to test"),
        *("Compiling the train step", "Compiled in", "img/s", "left", "accuracy_top5"),
        *("The best checkpoint is step", "Accuracy of classes", "python -m vit_jax.convert"),
    ):
        assert said in log


def test_real_tensorboard_reads_the_events(finished):
    events = EventAccumulator(str(finished[0]))
    events.Reload()
    assert [e.step for e in events.Scalars("test/accuracy")] == [10, 20, 30]
    recorded = [row["train/loss"] for row in rows(finished[0]) if "train/loss" in row]
    np.testing.assert_allclose([e.value for e in events.Scalars("train/loss")], recorded, rtol=1e-6)


def test_a_workdir_loads_as_parameters_and_card(finished):
    workdir, params = finished
    loaded, card = load_with_card(workdir)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), loaded)
    assert card.class_names == tuple("0123456789")
    assert card.grid == (2, 2)
    assert card.preprocessing.crop == (8, 8)
    model = card.model
    assert model.apply({"params": loaded}, np.zeros((2, 8, 8, 1), np.float32)).shape == (2, 10)


def test_the_exported_file_describes_itself(finished):
    _, card = load_with_card(finished[0] / "model.npz")
    assert card.num_classes == 10
    assert card.metrics["accuracy"] == rows(finished[0])[-2]["test/accuracy"]


def test_the_newest_and_the_best_checkpoints_are_kept(finished):
    workdir = finished[0]
    kept = {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()}
    scores = {row["step"]: row["test/accuracy"] for row in rows(workdir) if "test/accuracy" in row}
    best = max(scores, key=scores.get)
    assert kept == {25, 30, best}


def test_a_workdir_converts_to_other_formats(finished, tmp_path):
    checkpoint.convert(finished[0], tmp_path / "again.npz")
    params, card = load_with_card(tmp_path / "again.npz")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(finished[1]), params)
    assert card.class_names == tuple("0123456789")


def test_a_trained_vit_converts_to_timm_and_hugging_face(tmp_path):
    config = load_recipe()
    config.pp.channels = 3
    config.total_steps = 1
    config.compilation_cache = ""
    params = train_and_evaluate(config, tmp_path / "run")
    for layout in ("timm", "hf"):
        checkpoint.convert(tmp_path / "run", tmp_path / layout, to=layout)
        again = checkpoint.load(tmp_path / layout)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), again)


def test_weights_bring_their_gelu_and_eps_into_a_run(finished, tmp_path):
    params, card = load_with_card(finished[0])
    card = dataclasses.replace(card, model=card.model.clone(gelu="erf", norm_eps=1e-12))
    checkpoint.save(params, tmp_path / "erf.npz", card=card)
    config = load_recipe()
    config.pretrained = str(tmp_path / "erf.npz")
    config.total_steps = 1
    train_and_evaluate(config, tmp_path / "run")
    _, card = load_with_card(tmp_path / "run")
    assert (card.model.gelu, card.model.norm_eps) == ("erf", 1e-12)

    (tmp_path / "erf.npz").unlink()  # a run that has begun needs its weights no more
    params = train_and_evaluate(config, tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, checkpoint.load(tmp_path / "run"), params)


# Stopping and going on


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(finished, tmp_path):
    """kill -9 at three moments, one of them right after a save began."""
    workdir = tmp_path / "killed"
    for moment in ("step 10/30", "step 15/30", "step 25/30"):
        kill_when(workdir, moment)
    result = run(workdir)
    assert result.returncode == 0, result.stderr
    assert "Resumed at step" in result.stderr
    assert_same_run(finished[0], workdir)


def test_sigterm_saves_and_exits_with_the_documented_code(finished, tmp_path):
    workdir = tmp_path / "preempted"
    process = subprocess.Popen(command(workdir), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("step 5/30"):
            process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    assert any(line.startswith("Got SIGTERM: saving") for line in said)
    assert said[-1].startswith("train: Saved step")
    assert run(workdir).returncode == 0
    assert_same_run(finished[0], workdir)


def test_a_finished_run_started_again_changes_nothing(finished):
    before = checkpoint.load(finished[0] / "model.npz")
    result = run(finished[0])
    assert result.returncode == 0, result.stderr
    jax.tree.map(np.testing.assert_array_equal, before, checkpoint.load(finished[0] / "model.npz"))


# Refusals


def test_what_may_change_is_told_and_what_may_not_is_refused(finished):
    result = run(finished[0], "--config.batch=16", "--config.seed=3", "--config.progress_every=2")
    assert result.returncode == 1
    assert "config.batch was 32, now 16" in result.stderr
    assert "config.seed was 0, now 3" in result.stderr
    assert "progress_every was" not in result.stderr.splitlines()[-1]


def test_a_workdir_in_use_is_refused(tmp_path):
    config = load_recipe()
    with (
        open_workdir(tmp_path, config),
        pytest.raises(ValueError, match=r"Another process \(process \d+\) trains in"),
        open_workdir(tmp_path, config),
    ):
        pass


def test_a_local_workdir_is_never_copied_onto_itself(tmp_path):
    """A file that is truncated to be written again is lost if the run is killed in between."""
    with open_workdir(tmp_path, load_recipe()) as workdir:
        (tmp_path / "metrics.jsonl").write_text("{}")
        before = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
        workdir.sync()
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_workdir_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    result = run(tmp_path / "file" / "run")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1].startswith("train: The workdir")
    assert "Traceback" not in result.stderr


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(finished, tmp_path):
    """A limit on the size of a file stands in for the disk: writing past it fails the same way."""
    workdir = tmp_path / "run"
    kill_when(workdir, "step 15/30")
    before = checkpoint.load(workdir)
    limited = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
        "runpy.run_module('vit_jax.train', run_name='__main__', alter_sys=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", limited, *command(workdir)[3:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 1
    *others, last = result.stderr.splitlines()
    assert last.startswith(f"train: {workdir}")
    assert "File too large. What was saved before is good" in last
    assert others[-1].startswith("step ")
    jax.tree.map(np.testing.assert_array_equal, before, checkpoint.load(workdir))
    assert run(workdir).returncode == 0
    assert_same_run(finished[0], workdir)


def test_a_diverged_run_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    config = load_recipe()
    config.base_lr = 1e30
    config.grad_norm_clip = 0.0
    config.warmup_steps = 12
    config.checkpoint_every = 1
    with pytest.raises(ValueError, match=r"diverged at step \d+: .*loss.* last good checkpoint is"):
        train_and_evaluate(config, tmp_path)
    params = checkpoint.load(tmp_path)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best_metric": "accuracy_per_label"}, "is not one of loss, accuracy, accuracy_top5"),
        ({"trainable": "haed"}, "matches no parameter"),
        (
            {"model.resnet": {"num_layers": ()}, "model.patches": {"size": (1, 1)}, "pp.crop": 25},
            "25×25 cannot be cut into patches of 4×4; 24×24 can",
        ),
    ],
)
def test_wrong_options_are_refused_before_the_first_step(options, message, tmp_path):
    config = load_recipe()
    config.compilation_cache = ""
    for name, value in options.items():
        group, _, field = name.rpartition(".")
        (config[group] if group else config)[field] = value
    with pytest.raises(ValueError, match=message):
        train_and_evaluate(config, tmp_path)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_an_unknown_key_is_an_error_with_near_matches(tmp_path):
    result = run(tmp_path, "--config.bas_lr=1")
    assert result.returncode == 1
    assert "Did you mean 'base_lr'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_checkpoint_is_one_line(tmp_path):
    result = run(tmp_path, "--config.pretrained=nowhere.npz")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == "train: There is no checkpoint at nowhere.npz."


def test_help_lists_every_option_with_its_meaning():
    result = subprocess.run(
        [sys.executable, "-m", "vit_jax.train", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    for said in ("--workdir", "base_lr", "at the end of the warm-up; at least 0 [0.03]"):
        assert said in result.stdout


# Recipes

RECIPES = {
    "quickstart.py": ["", "R+ViT-tiny_4", 10],
    "pretrain_fashion_mnist.py": ["", "R+ViT-tiny_4", 10],
    "vit.py": ["b16,cifar10", "ViT-B_16", 10],
    "augreg.py": ["R_Ti_16", "R+ViT-Ti_16", 37],
    "mixer.py": ["b16,cifar10", "Mixer-B_16", 10],
    "scratch.py": ["s16,imagenet2012", "ViT-S_16", 1000],
}


def test_every_recipe_is_listed_here():
    assert {path.name for path in (ROOT / "configs").glob("*.py")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves_builds_its_model_and_says_what_it_does(name):
    argument, model_name, num_classes = RECIPES[name]
    config = load_recipe(ROOT / "configs" / name, *([argument] if argument else []))
    assert config.model.model_name == model_name
    model = models.build_model(config.model.to_dict(), num_classes)
    size = config.pp.crop
    images = jax.ShapeDtypeStruct((1, size, size, config.pp.channels), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    assert shapes["head"]["kernel"].shape[-1] == num_classes
    text = (ROOT / "configs" / name).read_text()
    assert "python -m vit_jax.train" in text
    assert "Expected:" in text
    assert name in (ROOT / "configs" / "README.md").read_text()


@pytest.mark.parametrize("dataset", ["oxford_iiit_pet", "/my/folder"])
def test_any_data_set_goes_with_any_model(dataset):
    config = load_recipe(ROOT / "configs" / "vit.py", f"b16,{dataset}")
    assert config.dataset == dataset
    assert config.total_steps == 2_500


def test_the_references_presets():
    config = load_recipe(ROOT / "configs" / "vit.py", "b16,cifar10")
    assert (config.base_lr, config.total_steps, config.batch, config.accum_steps) == (
        *(0.01, 10_000, 512, 8),
    )
    assert (config.pp.train, config.pp.test, config.pp.crop) == ("train[:98%]", "test", 384)
    imagenet = load_recipe(ROOT / "configs" / "vit.py", "l16,imagenet2012")
    assert (imagenet.base_lr, imagenet.total_steps) == (0.03, 20_000)
    assert models.find_model("l16") == imagenet.model.model_name


def test_a_scanned_model_trains_and_exports_published_names(tmp_path):
    config = load_recipe()
    config.model.scan = True
    config.model.remat = "full"
    config.total_steps = 2
    config.eval_every = config.checkpoint_every = 0
    train_and_evaluate(config, tmp_path)
    exported = checkpoint.load(tmp_path / "model.npz")
    assert "encoderblock_0" in exported["Transformer"]


def test_steps_are_profiled_on_request(tmp_path):
    config = load_recipe()
    config.total_steps = 4
    config.profile_steps = (2, 3)
    train_and_evaluate(config, tmp_path)
    assert list(tmp_path.glob("plugins/profile/*/*"))


def test_the_reference_command_is_an_alias(tmp_path):
    result = run(tmp_path, "--config.bach=3", module="vit_jax.main")
    assert result.returncode == 1
    assert "train: there is no option 'bach' in the config. Did you mean 'batch'" in result.stderr
