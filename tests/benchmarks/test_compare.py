"""Comparing two results: ratios only, and what got worse is flagged."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def results(faster=1.5, megabytes=100, seconds=1.0):
    return {
        "train": {"contestants": {"linen": {"vit_jax is faster by": faster, "img/s": seconds}}},
        "memory": {"MB over the weights": [{"mode": "train", "MB": megabytes}]},
    }


def compare(tmp_path, old, new):
    for name, content in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", tmp_path / "old.json", tmp_path / "new.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_what_got_worse_is_named_and_fails(tmp_path):
    result = compare(tmp_path, results(), results(faster=1.3, megabytes=80))
    assert result.returncode == 1
    assert "WORSE" in result.stdout
    assert "train, contestants, linen, vit_jax is faster by: 1.5 -> 1.3" in result.stdout
    assert "better" in result.stdout


def test_the_noise_of_a_busy_machine_is_not_a_change(tmp_path):
    """Images a second of two runs are not comparable, and are not compared."""
    assert compare(tmp_path, results(), results(seconds=0.2)).returncode == 0
