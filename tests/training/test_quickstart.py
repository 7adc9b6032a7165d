"""The README's first command, as it stands, in an empty directory; and the checkpoint it needs."""

import json
import subprocess
import sys
from pathlib import Path

from vit_jax import checkpoint

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "checkpoints" / "fashion_mnist_vit.npz"


def test_the_bundled_checkpoint_is_small_and_describes_itself():
    params, card = checkpoint.load_with_card(BUNDLED)
    assert BUNDLED.stat().st_size < 2e6
    assert card["model"]["model_name"] == "R+ViT-tiny_4"
    assert card["grid"] == [7, 7]
    assert card["class_names"][0] == "T-shirt/top"
    assert params["head"]["kernel"].shape == (80, 10)
    recorded = (ROOT / "checkpoints" / "fashion_mnist_vit" / "metrics.jsonl").read_text()
    last = json.loads(recorded.splitlines()[-1])
    assert card["metrics"]["accuracy"] == last["test/accuracy"]


def test_the_quickstart_reaches_97_percent_offline_in_an_empty_directory(tmp_path):
    command = [sys.executable, "-m", "vit_jax.train", "--workdir=runs/quickstart"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "Rescaled the position grid from 7×7 to 6×6" in result.stderr
    rows = (tmp_path / "runs" / "quickstart" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["test/accuracy"] >= 0.97
    assert (tmp_path / "runs" / "quickstart" / "curves.png").exists()
