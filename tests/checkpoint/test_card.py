"""A checkpoint describes itself, and a card that is wrong says how."""

import json

import jax
import numpy as np
import pytest

from tests.reference import NAMES, golden
from vit_jax import checkpoint, models
from vit_jax.checkpoint import card as cards

CONFIG = models.model_config("testing")


def make(**fields):
    options = {"model": CONFIG, "num_classes": 2, "grid": (3, 4), "class_names": ["a", "b"]}
    return checkpoint.make_card(**options | fields)


def test_a_card_is_json_and_builds_the_same_model():
    card = json.loads(json.dumps(make()))
    assert card["image_size"] == [48, 64]
    assert checkpoint.model_from_card(card) == models.VisionTransformer(num_classes=2, **CONFIG)


def test_how_a_model_is_computed_is_not_in_its_card():
    card = make(model={**CONFIG, "scan": True, "remat": "full", "attention_kernel": "xla"})
    assert not {"scan", "remat", "attention_kernel"} & set(card["model"])
    assert checkpoint.model_from_card(card, scan=True).scan


def test_everything_wrong_with_a_card_is_told_at_once():
    card = make()
    card["class_names"] = ["a"]
    card["image_size"] = 48
    card["preprocessing"] = {
        "resize": 0,
        "crop": [1],
        "interpolation": "best",
        "mean": 1,
        "std": [],
    }
    del card["metrics"]
    with pytest.raises(ValueError) as caught:
        checkpoint.check_card(card)
    for part in (
        "'metrics' is missing",
        "1 class names for 2",
        "image_size",
        "resize is 0",
        "'best'",
    ):
        assert part in str(caught.value)


def test_a_card_of_the_future_asks_for_an_upgrade():
    with pytest.raises(ValueError, match=r"format 2.*upgrade"):
        checkpoint.check_card({**make(), "format": 2})


@pytest.mark.parametrize(
    "fields", [{"model": {**CONFIG, "classifier": "none"}}, {"model": {"a": 1}}]
)
def test_a_card_whose_model_cannot_be_built_is_refused(fields):
    with pytest.raises((ValueError, KeyError)):
        make(**fields)


# Shapes do not tell a model that does not pool.
@pytest.mark.parametrize("name", [name for name in NAMES if "unpooled" not in name])
def test_a_file_without_a_card_gets_one_from_its_shapes(name):
    recorded = golden(name)
    _, height, width, _ = recorded.images.shape
    with checkpoint.opened(recorded.path, image_size=(height, width)) as opened:
        card = opened.card
    known = checkpoint.make_card(
        model=recorded.config, num_classes=recorded.num_classes, grid=card["grid"]
    )
    for field in ("model", "num_classes", "channels"):
        assert card[field] == known[field]
    assert card["image_size"] == [height, width]


@pytest.mark.parametrize("name", ["ViT-Ti_16", "R26+ViT-S_32", "Mixer-B_16", "ViT-So400m_14"])
def test_parameter_shapes_are_those_of_the_whole_model(name):
    config = models.model_config(name).to_dict()
    size = 32 * 7 if "14" not in name else 14 * 16
    stride = cards.patch_stride(config)
    grid = [size // n for n in stride]
    card = checkpoint.make_card(model=config, num_classes=5, grid=grid)
    model = models.get_model(name, num_classes=5)
    image = jax.ShapeDtypeStruct((1, size, size, 3), np.float32)
    init = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False)["params"], image)
    import flax.traverse_util

    wanted = flax.traverse_util.flatten_dict(init, sep="/")
    found = cards.parameter_shapes(card)
    assert {n: leaf.shape for n, leaf in found.items()} == {
        n: leaf.shape for n, leaf in wanted.items()
    }


@pytest.mark.parametrize("to", ["npz", "orbax", "timm", "hf"])
def test_a_card_comes_back_from_every_format_as_it_went(to, tmp_path):
    recorded = golden("vit_token")
    _, height, width, channels = recorded.images.shape
    patch = recorded.config["patches"]["size"]
    card = checkpoint.make_card(
        model=recorded.config,
        num_classes=recorded.num_classes,
        grid=(height // patch[0], width // patch[1]),
        class_names=[f"class {i}" for i in range(recorded.num_classes)],
        channels=channels,
        preprocessing=cards.google_preprocessing((height, width)),
        source="a test",
        metrics={"accuracy": 0.5},
    )
    path = tmp_path / ("model.npz" if to == "npz" else "model")
    checkpoint.save(recorded.params(), path, card=card, to=to)
    params, found = checkpoint.load_with_card(path)
    assert found == card
    assert jax.tree.all(jax.tree.map(np.array_equal, params, recorded.params()))


def test_the_references_way_of_reading_an_npz_does_not_see_the_card(tmp_path):
    recorded = golden("vit_token")
    _, card = checkpoint.load_with_card(recorded.path)
    checkpoint.save(recorded.params(), tmp_path / "ours.npz", card=card)
    with np.load(recorded.path) as original, np.load(tmp_path / "ours.npz") as ours:
        assert set(ours) == set(original)
        assert all(np.array_equal(ours[name], original[name]) for name in original)


def test_a_card_too_long_for_a_comment_is_still_kept(tmp_path):
    recorded = golden("vit_token")
    _, card = checkpoint.load_with_card(recorded.path)
    card["metrics"] = {"long": "x" * 100_000}
    checkpoint.save(recorded.params(), tmp_path / "ours.npz", card=card)
    assert checkpoint.load_with_card(tmp_path / "ours.npz")[1] == card
