"""Which values a model's fields may have, whether they come from a recipe or from a card."""

import dataclasses

import pytest

from vit_jax import models
from vit_jax.models.fields import FIELDS
from vit_jax.models.kinds import KINDS

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("transformer.num_layers", 0, "a whole number from 1 to 1,000"),
        ("transformer.num_layers", 10**9, "a whole number from 1 to 1,000"),
        ("transformer.num_layers", 2.0, "a whole number"),
        ("transformer.num_layers", True, "a whole number"),
        ("transformer.num_layers", None, "a whole number"),
        ("transformer.mlp_dim", -1, "a whole number from 1"),
        ("transformer.num_heads", 0, "a whole number from 1"),
        ("transformer.num_heads", 3, "must divide hidden_size, 10"),
        ("transformer.head_dim", 0, "a whole number from 1"),
        ("transformer.dropout_rate", 2.0, "a number at least 0 and at most 1"),
        ("transformer.attention_dropout_rate", NAN, "a number at least 0 and at most 1"),
        ("transformer.stochastic_depth_rate", 1.0, "a number at least 0 and below 1"),
        ("transformer.blocks", 3, "has no field transformer.blocks"),
        ("transformer", 3, "a group of fields"),
        ("patches", [16, 16], "a group of fields"),
        ("patches.size", (0, 16), "(height, width)"),
        ("patches.size", 16, "(height, width)"),
        ("patches.size", (16,), "(height, width)"),
        ("hidden_size", "10", "a whole number"),
        ("hidden_size", 10**30, "a whole number"),
        ("resnet.num_layers", (1,) * 40, "units in each stage"),
        ("resnet.width_factor", 0, "a number at least 0.5"),
        ("representation_size", 0, "a whole number from 1"),
        ("classifier", "best", "token, gap, mean, map"),
        ("head_bias_init", INF, "a finite number"),
        ("head_bias_init", 10**400, "a finite number"),
        ("norm_eps", 0.0, "a number above 0"),
        ("layer_scale", NAN, "a finite number, or None"),
        ("position", "rotary", "learned, none, learned2d"),
        ("gelu", "fast", "tanh or erf"),
        ("gelu", ["erf"], "tanh or erf"),
        ("remat", "some", "full, dots or dots_no_batch, or None"),
        ("attention_kernel", "flash", "auto, xla"),
        ("num_registers", -1, "a whole number from 0"),
        ("scan", 1, "True or False"),
        ("dtype", "float8", "float32, bfloat16 or float16"),
        ("dtype", "int32", "float32, bfloat16 or float16"),
        ("dtype", "float31", "float32, bfloat16 or float16"),
        ("dtype", None, "float32, bfloat16 or float16"),
        ("dtype", "(0.1,0.2)", "float32, bfloat16 or float16"),
        ("dtype", ["(1,"], "float32, bfloat16 or float16"),
        ("dtype", {"names": 3}, "float32, bfloat16 or float16"),
        ("encoder", "os.system", "a module"),
        ("num_heds", 2, "did you mean"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_must_be(field, value, words):
    fields = models.model_config("testing").to_dict()
    group, _, name = field.rpartition(".")
    (fields.setdefault(group, {"num_layers": (1,)}) if group else fields)[name] = value
    with pytest.raises(ValueError) as caught:
        models.build_model(fields, 3)
    assert field in str(caught.value)
    assert words in str(caught.value)


def test_all_wrong_fields_are_named_at_once():
    fields = models.model_config("testing").to_dict() | {"gelu": "fast", "patches": {}}
    with pytest.raises(ValueError, match=r"patches\.size is None .*; gelu .*; num_classes is -1"):
        models.build_model(fields, -1)


def test_a_field_of_another_kind_is_refused():
    fields = models.model_config("Mixer-B_16").to_dict() | {"gelu": "erf"}
    with pytest.raises(ValueError, match="a MlpMixer has no field gelu"):
        models.build_model(fields, 3)


def test_every_field_has_a_row():
    names = {field.name for kind in KINDS for field in dataclasses.fields(kind.module)}
    assert names - {"parent", "name"} == {name for name in FIELDS if "." not in name}


def test_a_module_made_by_hand_refuses_a_classifier_that_there_is_not():
    fields = models.model_config("testing").to_dict() | {"classifier": "best"}
    with pytest.raises(ValueError, match="'best'; choose token, gap, mean, map"):
        models.VisionTransformer(num_classes=3, **fields)
