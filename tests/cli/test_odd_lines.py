"""Odd command lines, in this process: exit code 1, one line that names the option, nothing made."""

import importlib
import re
from pathlib import Path

import pytest

from vit_jax import plan
from vit_jax.__main__ import COMMANDS

BUNDLED = str(Path(__file__).parents[2] / "checkpoints" / "fashion_mnist_vit.npz")


def refusal(capsys, name, *arguments):
    module = importlib.import_module(f"vit_jax.{name}" + ".__main__" * (name == "data"))
    assert module.main(list(arguments)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: ")
    return line


@pytest.mark.parametrize("name", COMMANDS)
def test_a_misspelt_option_is_guessed(name, capsys):
    assert "there is no option --hlep (did you mean --help?)" in refusal(capsys, name, "--hlep")


@pytest.mark.parametrize(
    "words",
    [
        *("predict --top_k=0", "predict --batch_size=-1", "predict --batch_size=1000000000"),
        *("predict --resize=-1", "predict --resize=1e3", "predict --resolution=100000"),
        *("predict --resolution=0,3", "explain --resolution=x", "export --resize=x"),
        *("evaluate --neighbors=nan", "evaluate --batch_size=0", "evaluate --resolution=-1"),
        *("data --rows=101", "data --views=0", "plan --slices=0", "plan --utilisation=nan"),
        *("convert --num_heads=-4", "convert --num_heads=0", "convert --image_size=0"),
        *("catalog fetch x --timeout=nan", "catalog fetch x --timeout=-1"),
        *("train --process_id=-1", "train --num_processes=0"),
    ],
)
def test_a_number_out_of_range_is_named(words, capsys):
    name, *arguments = words.split()
    option, _, value = arguments[-1].partition("=")
    assert f"argument {option}: '{value}' is " in refusal(capsys, name, *arguments)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--resize=3", "resize is 3, less than the shorter side of the crop, 28×28"),
        ("--resolution=7", "A resolution of 7×7 cannot be cut into patches of 4×4; 8×8 can"),
        ("--resolution=8192", "8192×8192 is 4,194,304 patches of 4×4; at most 65,536 are possible"),
    ],
)
def test_what_the_model_cannot_do_is_not_blamed_on_the_image(option, message, capsys):
    assert message in refusal(capsys, "predict", BUNDLED, "any.png", option)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.pp.crop=7"], "A resolution of 7×7 cannot be cut into patches of 4×4"),
        (["--config.base_lr=nan", "--config.total_steps=0"], "total_steps is 0 .*base_lr is nan"),
        (["--config.trainable=haed"], "config.trainable='haed' matches no parameter"),
        (["--config.model.transformer.num_heads=0"], "num_heads is 0 and must be"),
        (["--config.trainer=foo"], "there is no option 'trainer' in the config"),
    ],
)
def test_a_plan_refuses_what_a_run_would(arguments, message, capsys):
    assert re.search(message, refusal(capsys, "plan", *arguments))


def test_a_run_refuses_wrong_options_before_it_makes_anything(tmp_path, capsys):
    arguments = [f"--workdir={tmp_path}/run", "--config.best_metric=foo", "--config.accum_steps=-2"]
    line = refusal(capsys, "train", *arguments)
    assert "accum_steps is -2 and must be" in line
    assert "best_metric is 'foo' and must be" in line
    assert not list(tmp_path.iterdir())


def test_a_plan_remarks_on_a_warm_up_longer_than_the_run(capsys):
    assert plan.main(["--config.total_steps=10", "--config.parallel.strategy=jit"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("plan: config.warmup_steps=25 is more than config.total_steps=10")
