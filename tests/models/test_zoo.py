"""Every published model has exactly the published parameters."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax import models

# At 1000 classes and 224×224×3. Those not in the reference are checked by arithmetic below.
PARAMETERS = {
    "ViT-Ti_16": 5_717_416,
    "ViT-S_16": 22_050_664,
    "ViT-S_32": 22_878_952,
    "ViT-B_8": 86_576_872,
    "ViT-B_16": 86_567_656,
    "ViT-B_32": 88_224_232,
    "ViT-L_16": 304_326_632,
    "ViT-L_32": 306_535_400,
    "ViT-H_14": 632_045_800,
    "ViT-S_16-gap-norep": 22_049_896,
    "ViT-S_32-gap-norep": 22_878_184,
    "ViT-B_16-gap-norep": 86_566_120,
    "ViT-B_32-gap-norep": 88_222_696,
    "R+ViT-Ti_16": 6_337_704,
    "R26+ViT-S_32": 36_431_912,
    "R26+ViT-B_32": 101_383_976,
    "R50+ViT-B_16": 98_659_112,
    "R50+ViT-L_32": 328_994_856,
    "Mixer-B_16": 59_880_472,
    "Mixer-B_32": 60_293_428,
    "Mixer-L_16": 208_196_168,
    "R+ViT-tiny_4": 599_288,
    "testing": 21_390,
    "testing-unpooled": 21_370,
    "ViT-So400m_14": 428_833_704,
    "ViT-g_14": 1_012_611_432,
    "ViT-G_14": 1_844_440_680,
}


def num_parameters(model) -> int:
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_every_model_has_a_row_with_its_parameter_count():
    assert set(PARAMETERS) == set(models.MODEL_CONFIGS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_is_the_published_one(name):
    assert num_parameters(models.get_model(name, num_classes=1000)) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "width", "depth", "mlp", "has_map_head"),
    [
        ("ViT-So400m_14", 1152, 27, 4304, True),
        ("ViT-g_14", 1408, 40, 6144, False),
        ("ViT-G_14", 1664, 48, 8192, False),
    ],
)
def test_counts_beyond_the_reference_follow_from_arithmetic(name, width, depth, mlp, has_map_head):
    attention = 4 * (width * width + width)
    dense = 2 * width * mlp + mlp + width
    block = attention + dense + 4 * width
    patches = 16 * 16
    embedding = 14 * 14 * 3 * width + width
    total = embedding + patches * width + depth * block + 2 * width + (width + 1) * 1000
    if has_map_head:
        total += width + attention + dense + 2 * width  # probe, attention, MLP, LayerNorm
    else:
        total += 2 * width  # class token and its position
    assert PARAMETERS[name] == total


def test_the_bundled_models_count_follows_from_arithmetic():
    width, mlp, root = 80, 240, 32
    block = 4 * (width * width + width) + 2 * width * mlp + mlp + width + 4 * width
    stem = 7 * 7 * 3 * root + 2 * root + root * width + width
    total = stem + 56 * 56 * width + 4 * block + 2 * width + (width + 1) * 1000
    assert PARAMETERS["R+ViT-tiny_4"] == total


def test_augreg_names_are_the_same_models():
    assert models.AUGREG_CONFIGS["R26_S_32"].model_name == "R26+ViT-S_32"
    assert models.AUGREG_CONFIGS["B_16"] == models.MODEL_CONFIGS["ViT-B_16"]
    assert models.get_model("Ti_16", num_classes=10) == models.get_model(
        "ViT-Ti_16", num_classes=10
    )


def test_overrides_merge_into_nested_fields_and_leave_the_table_alone():
    model = models.get_model("ViT-L_16", num_classes=10, transformer={"dropout_rate": 0.0})
    assert model.transformer.dropout_rate == 0.0
    assert model.transformer.num_layers == 24
    assert models.MODEL_CONFIGS["ViT-L_16"].transformer.dropout_rate == 0.1


def test_unknown_model_offers_the_nearest_names():
    with pytest.raises(ValueError, match=r"'ViT-B16'.*ViT-B_16"):
        models.get_model("ViT-B16", num_classes=10)


def test_models_are_hashable_and_equal_when_their_fields_are():
    a, b = (models.get_model("testing", num_classes=3) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != models.get_model("testing", num_classes=4)


def test_no_classes_means_no_head():
    model = models.get_model("testing", num_classes=0)
    variables = model.init(jax.random.key(0), jnp.ones((1, 32, 32, 3)))
    assert "head" not in variables["params"]
    assert model.apply(variables, jnp.ones((1, 32, 32, 3))).shape == (1, 10)
