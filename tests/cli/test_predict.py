"""`python -m vit_jax.predict`: images in, names out."""

import csv
import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.reference import golden, load_with_card, make_card, random_params
from vit_jax import checkpoint, predict
from vit_jax.models import VisionTransformer

NAMES = ["ant", "bee", "cat", "dog", "eel"]
pytestmark = pytest.mark.usefixtures("no_compilation_cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    params, card = load_with_card(golden("vit_token").path)
    path = tmp_path_factory.mktemp("model") / "model.npz"
    checkpoint.save(params, path, card=dataclasses.replace(card, class_names=tuple(NAMES)))
    return str(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Five images, one of them in a folder below, in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = ["a.png", "b.jpg", "c.png", "d.png", "below/e.png"]
    (tmp_path / "photos" / "below").mkdir(parents=True)
    for name in names:
        pixels = rng.integers(0, 256, (24, 32, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    return sorted(f"photos/{name}" for name in names)


def run(capsys, *arguments):
    code = predict.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_format_tells_what_the_model_says(model, photos, capsys):
    loaded = vit_jax.load(model)
    probabilities = loaded.predict(photos)
    expected = [
        [(NAMES[i], round(float(row[i]), 6)) for i in np.argsort(-row)[:2]] for row in probabilities
    ]
    code, out, _ = run(capsys, model, "photos", "--format=jsonl", "--top_k=2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["file"] for row in rows] == photos
    for row, top in zip(rows, expected, strict=True):
        assert [name for name, _ in row["top"]] == [name for name, _ in top]
        np.testing.assert_allclose([p for _, p in row["top"]], [p for _, p in top], atol=2e-6)

    out = run(capsys, model, "photos", "--format=csv", "--top_k=2")[1]
    lines = list(csv.DictReader(io.StringIO(out)))
    told = [(line["file"], line["class"]) for line in lines]
    assert told == [(p, name) for p, top in zip(photos, expected, strict=True) for name, _ in top]

    out = run(capsys, model, "photos", "--top_k=1")[1].splitlines()
    assert [line.split()[0] for line in out] == ["file", *photos]
    assert [line.split()[-1] for line in out[1:]] == [top[0][0] for top in expected]


def test_folders_patterns_and_lists_name_the_same_files(model, photos, capsys, monkeypatch):
    by_folder = run(capsys, model, "photos", "--format=jsonl")[1]
    by_pattern = run(capsys, model, "photos/**/*.*g", "--format=jsonl")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(photos) + "\n"))
    by_list = run(capsys, model, "-", "--format=jsonl", "--batch_size=8")[1]
    assert by_folder == by_pattern == by_list


def test_a_bad_file_is_named_and_the_rest_is_done(model, photos, capsys, tmp_path):
    (tmp_path / "photos" / "b.jpg").write_bytes(b"not an image")
    (tmp_path / "photos" / "c.png").write_bytes(b"")
    code, out, err = run(
        capsys, model, "photos", "gone.png", "--format=jsonl", "--batch_size=2", "--top_k=9"
    )
    assert code == predict.EXIT_SOME_FAILED
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["file"] for row in rows] == ["photos/a.png", "photos/below/e.png", "photos/d.png"]
    assert len(rows[0]["top"]) == len(NAMES)
    assert err.splitlines() == [
        "predict: photos/b.jpg: not an image in a format we read: JPEG, PNG, WEBP, BMP, GIF, TIFF",
        "predict: photos/c.png: the file is empty",
        "predict: gone.png: No such file or directory",
    ]


@pytest.mark.parametrize("options", [[], ["--per_patch"]])
def test_features_are_written_for_each_file_in_order(model, photos, capsys, options):
    code, _, _ = run(capsys, model, "photos", "--features=out.npz", "--batch_size=2", *options)
    assert code == 0
    expected = vit_jax.load(model).features(photos, per_patch=bool(options))
    with np.load("out.npz") as written:
        assert list(written["files"]) == photos
        np.testing.assert_allclose(written["features"], expected, rtol=0, atol=1e-5)


def test_a_contact_sheet_shows_what_the_model_sees(model, photos, capsys):
    code, _, _ = run(capsys, model, "photos", "--contact_sheet=sheet.png")
    assert code == 0
    with Image.open("sheet.png") as sheet:
        assert sheet.format == "PNG"
        pixels = np.asarray(sheet)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100  # pictures, not a white page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["photos", "--labels=missing.txt"], "The label file missing.txt cannot be read"),
        (["photos", "--labels=labels.txt"], "labels.txt has 1 names, but the model has 5 classes"),
        (["photos", "--model=b16"], "does not fit the model"),
        (["empty"], "There is no image in the folder empty."),
        (["*.tiff"], "No file matches '*.tiff'."),
        (["photos", "--features=nowhere/out.npz"], "there is no directory nowhere"),
        (["photos", "--features=photos"], "photos is a directory"),
        (["photos", "--per_patch"], "--per_patch goes with --features"),
        (["empty/none.png", "--features=out.npz"], "None of the files could be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(model, photos, capsys, tmp_path, arguments, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "labels.txt").write_text("one\n")
    before = sorted(tmp_path.iterdir())
    code, out, err = run(capsys, model, *arguments)
    assert code == 1
    assert out == ""
    assert said in err.splitlines()[-1]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission_is_refused_before_the_work(model, photos, capsys, tmp_path):
    (tmp_path / "empty").mkdir(mode=0o500)
    code, _, err = run(capsys, model, "photos", "--features=empty/out.npz")
    assert code == 1
    assert "no permission" in err


def test_a_model_without_a_head_gives_features_only(photos, capsys):
    body = golden("vit_token").path.parent / "foreign" / "hf_dinov2"
    code, _, err = run(capsys, body, "photos")
    assert code == 1
    assert "no head that classifies images; use --features" in err


@pytest.mark.shared
def test_the_photographs_are_what_they_are(shared, capsys):
    real = shared / "real"
    expected = json.loads((real / "expected_top5.json").read_text())
    weights, labels = real / "Ti_16-tinyimagenet200.npz", real / "labels.txt"
    out = run(capsys, weights, real / "photos", f"--labels={labels}", "--format=jsonl")[1]
    for row in map(json.loads, out.splitlines()):
        top5 = dict(expected[Path(row["file"]).name])
        name, probability = row["top"][0]
        # Recorded to four decimals. Our JPEG decoder is TensorFlow's, and the longer side rounds as
        # torchvision's does: pixels differ by a little, and classes below 1e-3 may change places.
        assert top5[name] == pytest.approx(probability, abs=1e-3)
        for name, probability in row["top"]:
            assert top5.get(name, 0.0) == pytest.approx(probability, abs=1e-3)


def test_a_model_without_a_transformer_has_no_features_per_patch(photos, capsys, tmp_path):
    fields = {"patches": {"size": (4, 4)}, "transformer": None, "hidden_size": 8}
    fields["classifier"] = "gap"
    model = VisionTransformer(num_classes=3, **fields)
    params = random_params(model, np.zeros((1, 8, 8, 3), np.float32))
    card = make_card(model=fields, num_classes=3, grid=(2, 2))
    checkpoint.save(params, tmp_path / "plain.npz", card=card)
    options = ["photos", "--features=out.npz"]
    assert run(capsys, "plain.npz", *options)[0] == 0
    code, _, err = run(capsys, "plain.npz", *options, "--per_patch")
    assert code == 1
    assert err == "predict: The model has no transformer, so there are no features per patch.\n"
