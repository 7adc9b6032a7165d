"""The speed measurement writes the reference's table."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_row_is_written_for_each_batch_size(tmp_path):
    command = [sys.executable, "-m", "benchmarks.inference_time", "testing", "--batch=3"]
    options = ["--resolution=32", "--seconds=0.01", f"--out={tmp_path / 'times.csv'}"]
    subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True)
    head, *rows = (line.split(",") for line in (tmp_path / "times.csv").read_text().splitlines())
    assert head == ["model_name", "height", "width", "batch", "images_per_second"]
    assert [row[:4] for row in rows] == [["testing", "32", "32", batch] for batch in "12"]
    assert all(float(row[4]) > 0 for row in rows)
