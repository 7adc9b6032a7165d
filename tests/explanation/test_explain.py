"""`python -m vit_jax.explain`: a checkpoint and images in, pictures and a page out."""

from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

import vit_jax
from tests.reference import make_card, random_params
from vit_jax import checkpoint, explain
from vit_jax.labels import find_class
from vit_jax.models import MlpMixer, VisionTransformer
from vit_jax.preprocessing import Preprocessing

NAMES = ["ant, emmet", "bee & <b>", "c$a$t"]
PREPROCESSING = Preprocessing((8, 12), 10, "bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
pytestmark = pytest.mark.usefixtures("no_compilation_cache")


def save(path, module, num_classes=3, **fields):
    model = module(num_classes=num_classes, **fields)
    params = random_params(model, np.zeros((1, 8, 12, 3), np.float32))
    card = make_card(
        model=fields,
        num_classes=num_classes,
        grid=(2, 3),
        class_names=NAMES[:num_classes],
        preprocessing=PREPROCESSING,
    )
    checkpoint.save(params, path, card=card)
    return str(path)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    transformer = {"num_layers": 1, "mlp_dim": 8, "num_heads": 2}
    fields = {"patches": {"size": (4, 4)}, "transformer": transformer, "hidden_size": 8}
    return save(tmp_path_factory.mktemp("vit") / "vit.npz", VisionTransformer, **fields)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two images with the same name, and a text file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a/photo.png", "b/photo.png"):
        Path(name).parent.mkdir()
        Image.fromarray(rng.integers(0, 256, (30, 50, 3), np.uint8)).save(name)
    Path("notes.txt").write_text("no image")
    return ["a/photo.png", "b/photo.png", "notes.txt"]


def run(capsys, *arguments):
    code = explain.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err.splitlines()


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)


def test_all_pictures_and_a_page_that_needs_no_other_file(vit, photos, capsys):
    code, out, err = run(capsys, vit, *photos, "--class", "emmet")
    assert code == 3
    (line,) = err
    assert line.startswith("explain: notes.txt: not an image in a format we read: JPEG, PNG,")
    of_an_image = ("rollout", "relevance", "attention", "features")
    of_the_model = ("attention_distance", "position_similarity", "patch_filters")
    names = [f"{stem}_{name}.png" for stem in ("photo", "photo-2") for name in of_an_image]
    names += [f"{name}.png" for name in of_the_model]
    assert out == [f"explanation/{name}" for name in (*names, "index.html")]
    assert sorted(path.name for path in Path("explanation").iterdir()) == sorted(
        [*names, "index.html"]
    )
    for name in names:
        with Image.open(f"explanation/{name}") as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 200

    page = Page(Path("explanation/index.html").read_text())
    named = [attributes["src"] for _, attributes in page.tags if "src" in attributes]
    assert len(named) == len(names)
    assert all(value.startswith("data:image/png;base64,") for value in named)
    links = [attributes["href"] for _, attributes in page.tags if "href" in attributes]
    assert all(link.startswith("#") for link in links)
    assert "link" not in dict(page.tags)
    assert "bee & <b>" in page.text  # escaped, so no tag of its own
    assert ("b", {}) not in page.tags


def test_what_a_mixer_lacks_is_explained_and_the_rest_is_made(tmp_path, photos, capsys):
    fields = {"patches": {"size": (4, 4)}, "num_blocks": 1, "hidden_dim": 8}
    fields |= {"tokens_mlp_dim": 4, "channels_mlp_dim": 8}
    mixer = save(tmp_path / "mixer.npz", MlpMixer, **fields)
    code, out, err = run(capsys, mixer, photos[0], "--out", "deep/er")
    assert (code, err) == (0, [])
    assert out[:4] == [
        "No rollout: a Mixer has no attention.",
        "No attention: a Mixer has no attention.",
        "No attention_distance: a Mixer has no attention.",
        "No position_similarity: a Mixer has no position embeddings.",
    ]
    assert [Path(line).name for line in out[4:]] == [
        "photo_relevance.png",
        "photo_features.png",
        "patch_filters.png",
        "index.html",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{vit}", "notes.txt"], "None of the images could be read"),
        (["{vit}", "missing.png"], "None of the images could be read"),
        (["{vit}", "a/photo.png", "--class", "aunt"], "no class 'aunt'. Did you mean ant"),
        (
            ["{vit}", "a/photo.png", "--class", "3"],
            "no class '3'. Give a name, or a number",
        ),
        (["{vit}", "a/photo.png", "--out", "notes.txt"], "notes.txt is a file"),
        (["{vit}", "a/photo.png", "--out", "notes.txt/below"], "notes.txt is a file"),
        (["{vit}", "no*.png"], "No file matches 'no*.png'"),
        (["nothing.npz", "a/photo.png"], "nothing.npz"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(vit, photos, capsys, arguments, message):
    code, out, err = run(capsys, *(argument.format(vit=vit) for argument in arguments))
    assert (code, out) == (1, [])
    assert message in err[-1]
    assert all(line.startswith("explain: ") for line in err)
    assert not Path("explanation").exists()


def test_a_class_is_found_by_its_name_a_synonym_or_its_number(vit):
    classifier = vit_jax.load(vit)
    for name in ("ant, emmet", "Emmet", "ant", "0"):
        assert find_class(name, classifier.class_names) == 0
    assert find_class("2", classifier.class_names) == 2


def test_a_class_whose_name_is_a_number_is_found_by_that_name(vit):
    classifier = vit_jax.load(vit, labels=["2", "1", "0"])
    assert find_class("0", classifier.class_names) == 2


@pytest.mark.shared
def test_a_real_model_looks_at_the_animal(shared):
    real = shared / "real"
    classifier = vit_jax.load(real / "Ti_16-tinyimagenet200.npz", labels=real / "labels.txt")
    one = explain.explain(classifier, real / "photos" / "goldfish.jpg", None)
    assert one.probabilities[one.class_index][0] == "goldfish"
    # The fish is what is orange: 46 of the 196 patches.
    orange = (one.photo[:, :, 0].astype(float) - one.photo[:, :, 2] > 80).astype(np.float32)
    fish = cv2.resize(orange, (14, 14), interpolation=cv2.INTER_AREA) > 0.5
    for picture in (one.found.rollout, one.found.attention_relevance):
        # A patch of fish scores higher than a patch of water in at least three of four pairs.
        assert roc_auc_score(fish.reshape(-1), picture.reshape(-1)) >= 0.75
