"""The commands: what they print, and that a mistake costs one line, not a traceback."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from vit_jax.cli.contact_sheet import CELL, LINE, MARGIN
from vit_jax.config import OPTIONS, default_config
from vit_jax.data import open_source, split_sizes

ROOT = Path(__file__).parent.parent.parent


def run(*arguments):
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_data_set_is_shown(numbered, tmp_path):
    arguments = ("--config.pp.crop=(32,48)", f"--out={tmp_path}/sheet.png", "--rows=2", "--views=3")
    done = run("vit_jax.data", numbered, *arguments)
    assert done.returncode == 0, done.stderr
    for expected in ("train 13", "test 7", "class0", "class1", "30 x 20", "sheet.png"):
        assert expected in done.stdout
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 4 * 160 and sheet.height > 2 * 100


def test_a_wrong_name_costs_one_line(tmp_path):
    done = run("vit_jax.data", tmp_path / "nowhere")
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr == f"data: there is no folder or CSV/TSV file at {tmp_path}/nowhere\n"


def test_converting_on_the_command_line(golden, tmp_path):
    source = golden / "data" / "tfrecord" / "tiny_pictures" / "1.0.0"
    done = run("vit_jax.data.convert_tfrecord", source, tmp_path)
    assert done.returncode == 0 and f"--config.tfds_data_dir={tmp_path}" in done.stdout
    again = run("vit_jax.data.convert_tfrecord", source, tmp_path)
    assert again.returncode != 0 and again.stderr.startswith("data.convert_tfrecord: ")
    assert again.stderr.count("\n") == 1


def test_the_contact_sheet_has_the_evaluation_view_first(numbered, config_for):
    from vit_jax.data import eval_transform, preprocessing
    from vit_jax.data.__main__ import contact_sheet

    config = config_for(numbered, **{"pp.crop": CELL})  # drawn as it is, not resized
    source = open_source(config)
    sheet = np.asarray(contact_sheet(config, source, rows=1, views=1))
    expected = eval_transform(preprocessing(config), uint8=True)(source[0].image)
    top = MARGIN + LINE  # below the heading
    assert (sheet[top : top + CELL, MARGIN : MARGIN + CELL] == expected).all()


def test_broken_images_are_counted_and_left_off(numbered, config_for):
    from vit_jax.data.__main__ import contact_sheet, show

    config = config_for(numbered)
    next((numbered / "train").rglob("3.png")).write_bytes(b"no")
    console = Console(record=True, width=120)
    show(open_source(config), split_sizes(config), console)
    assert "1 unreadable" in console.export_text()
    assert contact_sheet(config, open_source(config), rows=13, views=1)


def test_every_option_has_a_meaning_and_a_place():
    config = default_config()
    for name, option in OPTIONS.items():
        node = config
        for part in name.split("."):
            node = node[part]
        assert node == option.default and option.meaning


def test_a_crop_may_be_a_number_or_a_pair():
    config = default_config()
    config.pp.crop = (224, 448)
    config.pp.crop = 384
    assert config.pp.crop == 384
