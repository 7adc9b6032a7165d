"""The README's first command, as it stands, in an empty directory; and the checkpoint it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.reference import load_with_card
from vit_jax import data, evaluate, explain, export, predict
from vit_jax.exporting import run_model

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "checkpoints" / "fashion_mnist_vit.npz"


def test_the_bundled_checkpoint_is_small_and_describes_itself():
    params, card = load_with_card(BUNDLED)
    assert BUNDLED.stat().st_size < 2e6
    assert card.model.model_name == "R+ViT-tiny_4"
    assert card.grid == (7, 7)
    assert card.class_names[0] == "T-shirt/top"
    assert params["head"]["kernel"].shape == (80, 10)
    recorded = (ROOT / "checkpoints" / "fashion_mnist_vit" / "metrics.jsonl").read_text()
    last = json.loads(recorded.splitlines()[-1])
    assert card.metrics["accuracy"] == last["test/accuracy"]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """An empty directory after the README's first command, and what that said."""
    directory = tmp_path_factory.mktemp("empty")
    command = [sys.executable, "-m", "vit_jax.train", "--workdir=runs/quickstart"]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return directory, result.stderr


def test_the_quickstart_reaches_97_percent_offline_in_an_empty_directory(quickstart):
    directory, said = quickstart
    assert "Rescaled the position grid from 7×7 to 6×6" in said
    rows = (directory / "runs" / "quickstart" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["test/accuracy"] >= 0.97
    assert (directory / "runs" / "quickstart" / "curves.png").exists()


@pytest.mark.usefixtures("no_compilation_cache")
def test_its_workdir_is_all_that_the_commands_need(quickstart, monkeypatch, capsys):
    directory, _ = quickstart
    monkeypatch.chdir(directory)
    digit = data.open_source("digits", "test")[0]
    Image.fromarray(digit.image[:, :, 0]).save("digit.png")

    assert predict.main(["runs/quickstart", "digit.png", "--format=jsonl"]) == 0
    top = json.loads(capsys.readouterr().out)["top"]
    assert top[0][0] == str(digit.label)

    assert evaluate.main(["runs/quickstart"]) == 0
    found = json.loads(Path("evaluation/evaluation.json").read_text())
    recorded = Path("runs/quickstart/metrics.jsonl").read_text().splitlines()[-1]
    assert found["accuracy"] == json.loads(recorded)["test/accuracy"]

    assert explain.main(["runs/quickstart", "digit.png"]) == 0
    assert "index.html" in {path.name for path in Path("explanation").iterdir()}

    assert export.main(["runs/quickstart", "exported"]) == 0
    model = run_model.Model("exported")
    assert model.card["class_names"][model([digit.image])[0].argmax()] == str(digit.label)
