"""`python -m vit_jax.evaluate`: how good a model is."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import checkpoint, data, evaluate, models
from vit_jax.evaluation.confusion import confusion_matrix
from vit_jax.evaluation.scores import calibration_error
from vit_jax.preprocessing import Preprocessing

pytestmark = pytest.mark.usefixtures("no_compilation_cache")


@pytest.fixture(scope="module")
def digits_model(tmp_path_factory):
    """A small ViT with random weights that says it was trained on the built-in digits."""
    config = models.model_config("testing").to_dict()
    config |= {"patches": {"size": (4, 4)}, "hidden_size": 16}
    model = models.VisionTransformer(num_classes=10, **config)
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 8, 8, 1), np.float32))["params"]
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 10))
    card = checkpoint.Card(
        model,
        class_names=tuple("0123456789"),
        grid=(2, 2),
        channels=1,
        preprocessing=Preprocessing((8, 8), None, "bilinear", (0.5,), (0.5,), channels=1),
        data={"dataset": "digits", "pp.train": "train", "pp.test": "test", "loss": "softmax"},
    )
    path = tmp_path_factory.mktemp("digits") / "model.npz"
    checkpoint.save(params, path, card=card)
    return path, model, params


def run(capsys, *arguments):
    code = evaluate.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_figures_are_those_of_arithmetic_over_every_example_once(
    digits_model, capsys, tmp_path
):
    path, model, params = digits_model
    code, out, _ = run(capsys, path, "--batch_size=50")
    assert code == 0
    result = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    source = data.open_source("digits", "test")
    images = np.stack([source[i].image for i in range(len(source))]).astype(np.float32)
    labels = np.array([source[i].label for i in range(len(source))])
    logits = np.asarray(model.apply({"params": params}, images / 127.5 - 1), np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predicted = probabilities.argmax(axis=1)

    assert result["count"] == len(source) == 179
    assert result["accuracy"] == pytest.approx((predicted == labels).mean())
    top5 = np.argsort(-logits, axis=1)[:, :5]
    assert result["accuracy_top5"] == pytest.approx((top5 == labels[:, None]).any(axis=1).mean())
    of_label = probabilities[np.arange(len(labels)), labels]
    assert result["loss"] == pytest.approx(-np.log(of_label).mean(), rel=1e-5)  # float32
    assert result["confusion_matrix"] == confusion_matrix(labels, predicted, 10).tolist()
    assert sum(result["class_count"]) == 179
    for digit, accuracy in enumerate(result["class_accuracy"]):
        assert accuracy == pytest.approx((predicted[labels == digit] == digit).mean())
    assert f"{result['accuracy']:.2%}" in out
    with Image.open("evaluation/confusion_matrix.png") as picture:
        assert picture.format == "PNG"


def test_another_data_set_and_split_with_the_models_classes(digits_model, capsys, tmp_path):
    rng = np.random.default_rng(0)
    for split, names in (("train", "0123456789"), ("test", "37")):
        for name in names:
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            pixels = rng.integers(0, 256, (12, 9), np.uint8)
            Image.fromarray(pixels).save(folder / "one.png")
    path = digits_model[0]
    code, _, _ = run(capsys, path, "--dataset=photos", "--split=test", "--resolution=16")
    result = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert code == 0
    assert (result["count"], result["resolution"]) == (2, [16, 16])
    assert [i for i, count in enumerate(result["class_count"]) if count] == [3, 7]


def test_features_are_probed_and_checkpoints_compared(digits_model, capsys, tmp_path):
    path = digits_model[0]
    code, out, _ = run(
        capsys, "--compare", path, path, "--few_shot", "--knn", "--train_split=train[:300]"
    )
    assert code == 0
    first, second = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert first == second
    assert first["train_count"] == 300
    assert set(first["few_shot"]) == {"1", "5", "10", "25"}
    # even random features of digits are far better than chance
    assert first["knn"]["accuracy"] > 0.4
    assert first["few_shot"]["25"] > first["few_shot"]["1"] > 0.1
    *_, header, row, again, _ = out.splitlines()
    assert header.split("  ")[0] == "checkpoint"
    assert row == again
    assert row.startswith(str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--split=validation"], "digits has no split 'validation'"),
        (["--dataset=nothing_like_it"], "neither a folder here nor a tensorflow-datasets name"),
        (["--dataset=classes"], "are not among the model's 10"),
        (["--out=file/out"], "is a file; give the name of a directory"),
    ],
)
def test_bad_input_is_one_line(digits_model, capsys, tmp_path, arguments, said):
    (tmp_path / "file").write_text("")
    for name in ("cat", "dog"):
        (tmp_path / "classes" / "test" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "classes" / "test" / name / "one.png")
    arguments = [*arguments, "--split=test"] if "classes" in arguments[0] else arguments
    code, _, err = run(capsys, digits_model[0], *arguments)
    assert code == 1
    assert said in err
    assert len(err.splitlines()) == 1


def test_confidence_that_is_accuracy_has_no_calibration_error():
    confidence = np.repeat([0.5, 0.75, 1.0], [4, 8, 5])
    correct = np.array([1, 0] * 2 + [1, 1, 1, 0] * 2 + [1] * 5)
    assert calibration_error(confidence, correct) == pytest.approx(0)
    assert calibration_error(confidence, np.zeros(17)) == pytest.approx(confidence.mean())


def test_calibration_error_weighs_each_bin_by_its_examples():
    confidence = np.array([0.9, 0.9, 0.9, 0.3])  # two bins; 0.9 - 2/3 off, and 0.3 - 1
    correct = np.array([1, 1, 0, 1])
    expected = (3 * (0.9 - 2 / 3) + 0.7) / 4
    assert calibration_error(confidence, correct) == pytest.approx(expected)


def test_what_cannot_be_evaluated_leaves_no_folder(tmp_path, capsys):
    assert evaluate.main([str(tmp_path / "missing"), "--out", str(tmp_path / "out")]) == 1
    assert "There is no checkpoint at" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
