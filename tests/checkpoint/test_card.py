"""A checkpoint describes itself, and a card that is wrong says how."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from tests.reference import NAMES, golden, load_with_card, make_card
from vit_jax import checkpoint, models
from vit_jax.preprocessing import google_preprocessing

CONFIG = models.model_config("testing")


def make(**fields):
    options = {"model": CONFIG, "num_classes": 2, "grid": (3, 4), "class_names": ("a", "b")}
    return make_card(**options | fields)


def test_a_card_is_json_and_builds_the_same_model():
    text = make().dumps()
    assert json.loads(text)["image_size"] == [48, 64]
    card = checkpoint.Card.loads(text, where="a test")
    assert card == make()
    assert card.model == models.VisionTransformer(num_classes=2, **CONFIG)


def test_how_a_model_is_computed_is_not_in_its_card():
    card = make(model={**CONFIG, "scan": True, "remat": "full", "attention_kernel": "xla"})
    assert not {"scan", "remat", "attention_kernel"} & set(card.to_json()["model"])


def test_what_a_card_leaves_out_is_at_its_default():
    """So that a new option of a model needs no line in any list of options."""
    fields = make(model={**CONFIG, "gelu": "erf", "classifier": "gap"}).to_json()["model"]
    assert set(fields) == {
        *("model_name", "patches", "hidden_size", "transformer", "classifier", "gelu"),
    }


def test_everything_wrong_with_a_card_is_listed_at_once():
    card = make().to_json()
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
        checkpoint.Card.from_json(card)
    for part in (
        "'metrics' is missing",
        "1 class names for 2",
        "image_size",
        "resize is 0",
        "'best'",
    ):
        assert part in str(caught.value)


def test_images_have_the_channels_that_the_model_takes():
    card = make(preprocessing=google_preprocessing((48, 48))).to_json()
    card["preprocessing"]["channels"] = 4
    with pytest.raises(ValueError, match="4 channels are for a model of 3"):
        checkpoint.Card.from_json(card)


def test_a_card_of_the_future_asks_for_an_upgrade():
    with pytest.raises(ValueError, match=r"format 2.*upgrade"):
        checkpoint.Card.from_json({**make().to_json(), "format": 2})


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
    with checkpoint.open(recorded.path, image_size=(height, width)) as opened:
        card = opened.card
    assert card.inferred
    assert card.model == recorded.model()
    assert (*card.image_size, card.channels) == recorded.images.shape[1:]


@pytest.mark.parametrize("name", ["ViT-Ti_16", "R50+ViT-L_32", "Mixer-B_16", "ViT-So400m_14"])
def test_parameter_shapes_are_those_of_the_whole_model(name):
    config = models.model_config(name).to_dict()
    size = 32 * 7 if "14" not in name else 14 * 16
    model = models.get_model(name, num_classes=5)
    height, width = models.patch_stride(model)
    card = make_card(model=config, num_classes=5, grid=(size // height, size // width))
    image = jax.ShapeDtypeStruct((1, size, size, 3), np.float32)
    init = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False)["params"], image)
    import flax.traverse_util

    wanted = flax.traverse_util.flatten_dict(init, sep="/")
    found = card.parameter_shapes()
    assert {n: leaf.shape for n, leaf in found.items()} == {
        n: leaf.shape for n, leaf in wanted.items()
    }


@pytest.mark.parametrize("to", ["npz", "orbax", "timm", "hf"])
def test_a_card_comes_back_from_every_format_as_it_went(to, tmp_path):
    recorded = golden("vit_token")
    _, height, width, channels = recorded.images.shape
    patch = recorded.config["patches"]["size"]
    card = make_card(
        model=recorded.config,
        num_classes=recorded.num_classes,
        grid=(height // patch[0], width // patch[1]),
        class_names=tuple(f"class {i}" for i in range(recorded.num_classes)),
        channels=channels,
        preprocessing=google_preprocessing((height, width)),
        source="a test",
        metrics={"accuracy": 0.5},
    )
    path = tmp_path / ("model.npz" if to == "npz" else "model")
    checkpoint.save(recorded.params(), path, card=card, to=to)
    params, found = load_with_card(path)
    assert found == card
    assert jax.tree.all(jax.tree.map(np.array_equal, params, recorded.params()))


def test_the_references_way_of_reading_an_npz_does_not_see_the_card(tmp_path):
    recorded = golden("vit_token")
    _, card = load_with_card(recorded.path)
    checkpoint.save(recorded.params(), tmp_path / "ours.npz", card=card)
    with np.load(recorded.path) as original, np.load(tmp_path / "ours.npz") as ours:
        assert set(ours) == set(original)
        assert all(np.array_equal(ours[name], original[name]) for name in original)


def test_a_card_too_long_for_a_comment_is_still_kept(tmp_path):
    recorded = golden("vit_token")
    _, card = load_with_card(recorded.path)
    card = dataclasses.replace(card, metrics={"long": "x" * 100_000})
    checkpoint.save(recorded.params(), tmp_path / "ours.npz", card=card)
    assert load_with_card(tmp_path / "ours.npz")[1] == card
