"""Weights of timm, transformers and vit-pytorch give those libraries' outputs, and go back again.

tests/golden/foreign is recorded by tests/peers/record.py.
"""

import functools
import json
import shutil

import flax.traverse_util
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.reference import GOLDEN, load_with_card, make_card
from vit_jax import checkpoint
from vit_jax.checkpoint import tensors

FOREIGN = GOLDEN / "foreign"
GIVEN = ("timm_vit", "hf_vit", "lucidrains_vit")
RECORDED = sorted(path.name.removesuffix(".io.npz") for path in FOREIGN.glob("*.io.npz"))
# Same float32 maths in another order of summation; the recorded outputs are of order 1.
TOLERANCE = 1e-5
# Layouts that a token was summed away in, or that transformers itself reads but no longer writes.
NOT_BIT_FOR_BIT = {
    "hf_deit": "its distillation token became a register",
    "timm_class_token_pooled_by_average": "its class token became a register",
    "timm_registers_with_positions": "position rows were summed into registers",
    "timm_hybrid": "timm has no name for so small a ResNet",
}


def path_of(name):
    folder = GOLDEN if name in GIVEN else FOREIGN
    return folder / name if (folder / name).is_dir() else folder / f"{name}.safetensors"


def recorded(name):
    with np.load((GOLDEN if name in GIVEN else FOREIGN) / f"{name}.io.npz") as io:
        return io["images"], io["outputs"]


def arrays_of(path):
    files = tensors.find_files(path) if path.is_dir() else [path]
    return {name: array for file in files for name, array in load_file(file).items()}


def layout_of(name):
    return name.split("_")[0]


def outputs_of(path, images, **options):
    params, card = load_with_card(path, **options)
    return apply(card, params, images)


def apply(card, params, images, **fields):
    return run(card.model.clone(**fields), params, images)


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, images):
    return model.apply({"params": params}, images, train=False)


def assert_same(found, wanted):
    """Two (params, card) pairs: the same bits, and the same model."""
    assert jax.tree.all(jax.tree.map(np.array_equal, found[0], wanted[0]))
    assert found[1].model == wanted[1].model


@pytest.mark.parametrize("name", (*GIVEN, *RECORDED))
def test_outputs_equal_those_recorded(name):
    images, outputs = recorded(name)
    np.testing.assert_allclose(outputs_of(path_of(name), images), outputs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [*GIVEN, *sorted(set(RECORDED) - set(NOT_BIT_FOR_BIT))])
def test_there_and_back_is_the_same_bits(name, tmp_path):
    source = arrays_of(path_of(name))
    checkpoint.convert(path_of(name), tmp_path / "ours.npz")
    checkpoint.convert(tmp_path / "ours.npz", tmp_path / "back", to=layout_of(name))
    back = arrays_of(tmp_path / "back")
    # What is dropped on purpose, or named in the way transformers 4 and 5 both know.
    source = {n: a for n, a in source.items() if not n.endswith("mask_token")}
    back = {n: a for n, a in back.items() if not n.endswith("mask_token")}
    if name in ("hf_vit_new_names", "hf_siglip"):
        assert sorted(a.tobytes() for a in source.values()) == sorted(
            a.tobytes() for a in back.values()
        )
        return
    assert set(back) == set(source)
    for array_name, array in source.items():
        assert back[array_name].dtype == array.dtype
        assert back[array_name].shape == array.shape
        assert back[array_name].tobytes() == array.tobytes(), array_name


@pytest.mark.parametrize("name", sorted(set(NOT_BIT_FOR_BIT) - {"timm_hybrid"}))
def test_what_is_summed_away_computes_the_same(name, tmp_path):
    images, outputs = recorded(name)
    checkpoint.convert(path_of(name), tmp_path / "back", to="timm")
    np.testing.assert_allclose(outputs_of(tmp_path / "back", images), outputs, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["timm_vit", "hf_vit"])
@pytest.mark.parametrize("to", ["npz", "orbax", "timm", "hf"])
def test_every_format_keeps_the_weights_and_the_model(name, to, tmp_path):
    target = tmp_path / ("out.npz" if to == "npz" else "out")
    checkpoint.convert(path_of(name), target, to=to)
    assert_same(load_with_card(target), load_with_card(path_of(name)))


@pytest.mark.parametrize("to", ["timm", "hf", "lucidrains"])
def test_a_folder_we_wrote_needs_no_card_of_ours(to, tmp_path):
    """Its config.json says the same, for readers that know nothing of cards."""
    path = path_of(f"{to}_vit")
    checkpoint.convert(path, tmp_path / to, to=to)
    file = tmp_path / to / "model.safetensors"
    save_file(load_file(file), file)  # without metadata
    assert_same(load_with_card(tmp_path / to), load_with_card(path))


def test_labels_gelu_and_epsilon_come_with_a_hugging_face_folder():
    _, card = load_with_card(path_of("hf_vit_new_names"))
    assert card.class_names == ("ant", "bee", "cat")
    assert card.model.gelu == "tanh"
    assert card.model.norm_eps == 1e-12
    _, card = load_with_card(path_of("hf_vit"))
    assert card.model.gelu == "erf"
    assert card.class_names is None  # LABEL_0, … are made up


def test_preprocessing_comes_with_a_hugging_face_folder(tmp_path):
    shutil.copytree(path_of("hf_vit"), tmp_path / "hf")
    about = {
        "size": {"shortest_edge": 40},
        "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32},
        "resample": 3,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(about))
    _, card = load_with_card(tmp_path / "hf")
    assert card.preprocessing.resize == 40
    assert card.preprocessing.crop == (32, 32)
    assert card.preprocessing.interpolation == "bicubic"
    assert list(card.preprocessing.mean) == about["image_mean"]
    checkpoint.convert(tmp_path / "hf", tmp_path / "again", to="hf")
    written = json.loads((tmp_path / "again" / "preprocessor_config.json").read_text())
    assert {key: written[key] for key in about} == about


def test_preprocessing_comes_with_a_timm_folder():
    _, card = load_with_card(path_of("timm_gap_registers"))
    assert card.image_size == (16, 24)
    assert card.grid == (2, 3)
    assert card.preprocessing.crop == (16, 24)
    assert card.preprocessing.resize == 17  # 16 / 0.9
    assert card.preprocessing.interpolation == "bicubic"


def test_a_hybrid_comes_with_timms_epsilons():
    _, card = load_with_card(path_of("timm_hybrid"))
    assert card.model.resnet["norm_eps"] == 1e-5
    assert card.model.resnet["variance_eps"] == 1e-8
    images, outputs = recorded("timm_hybrid")
    params = checkpoint.load(path_of("timm_hybrid"))

    def distance(**fields):
        return np.abs(apply(card, params, images, **fields) - outputs).max()

    googles = {"num_layers": (1,), "width_factor": 1}  # with Google's epsilons
    assert distance(resnet=googles) > 10 * distance()  # so that the epsilons are seen to matter


def test_the_wrong_gelu_would_be_noticed():
    images, outputs = recorded("timm_vit")
    params, card = load_with_card(path_of("timm_vit"))
    wrong = apply(card, params, images, gelu="tanh")
    assert np.abs(wrong - outputs).max() > 5 * TOLERANCE


def test_heads_can_be_told_where_no_file_does(tmp_path):
    shutil.copy(path_of("timm_vit"), tmp_path / "bare.safetensors")
    images, outputs = recorded("timm_vit")
    with pytest.raises(ValueError, match="--num_heads"):
        checkpoint.load(tmp_path / "bare.safetensors")
    found = outputs_of(tmp_path / "bare.safetensors", images, num_heads=4)
    np.testing.assert_allclose(found, outputs, atol=TOLERANCE, rtol=0)


def test_bfloat16_weights_stay_bfloat16(tmp_path):
    import ml_dtypes

    halves = {n: a.astype(ml_dtypes.bfloat16) for n, a in arrays_of(path_of("timm_vit")).items()}
    save_file(halves, tmp_path / "half.safetensors")
    params = checkpoint.load(tmp_path / "half.safetensors", num_heads=4)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(ml_dtypes.bfloat16)}
    checkpoint.convert(tmp_path / "half.safetensors", tmp_path / "back.safetensors", num_heads=4)
    back = load_file(tmp_path / "back.safetensors")
    assert all(back[name].tobytes() == array.tobytes() for name, array in halves.items())


def older_names(name):
    """vit-pytorch before 1.0: PreNorm around each half of a block, the last norm in the head."""
    for newer, older in (
        (".0.to_qkv.", ".0.fn.to_qkv."),
        (".0.to_out.", ".0.fn.to_out."),
        (".1.net.0.", ".1.norm."),
        (".1.net.1.", ".1.fn.net.0."),
        (".1.net.4.", ".1.fn.net.3."),
        ("transformer.norm.", "mlp_head.0."),
    ):
        if newer in name:
            return name.replace(newer, older)
    return name.replace("mlp_head.", "mlp_head.1.")


def test_older_vit_pytorch_files_are_read_too(tmp_path):
    arrays = {older_names(n): a for n, a in arrays_of(path_of("lucidrains_vit")).items()}
    save_file(arrays, tmp_path / "old.safetensors")
    shutil.copy(GOLDEN / "lucidrains_vit.json", tmp_path / "old.json")
    images, outputs = recorded("lucidrains_vit")
    found = outputs_of(tmp_path / "old.safetensors", images)
    np.testing.assert_allclose(found, outputs, atol=TOLERANCE, rtol=0)


def test_a_siglip_text_tower_is_dropped_and_told(tmp_path):
    arrays = {f"vision_model.{n}": a for n, a in arrays_of(path_of("hf_siglip")).items()}
    arrays |= {"text_model.embeddings.weight": np.zeros(3, np.float32), "logit_scale": np.ones(1)}
    (tmp_path / "full").mkdir()
    save_file(arrays, tmp_path / "full" / "model.safetensors")
    vision = json.loads((path_of("hf_siglip") / "config.json").read_text())
    (tmp_path / "full" / "config.json").write_text(json.dumps({"vision_config": vision}))
    report = checkpoint.convert(tmp_path / "full", tmp_path / "out.npz")
    assert "  dropped logit_scale: of the text tower" in report.lines
    images, outputs = recorded("hf_siglip")
    np.testing.assert_allclose(outputs_of(tmp_path / "out.npz", images), outputs, atol=TOLERANCE)


def test_a_siglip_classifier_averages_and_its_pooling_head_is_dropped(tmp_path):
    arrays = {f"vision_model.{n}": a for n, a in arrays_of(path_of("hf_siglip")).items()}
    arrays |= {"classifier.weight": np.ones((3, 32), np.float32), "classifier.bias": np.zeros(3)}
    (tmp_path / "hf").mkdir()
    save_file(arrays, tmp_path / "hf" / "model.safetensors")
    shutil.copy(path_of("hf_siglip") / "config.json", tmp_path / "hf")
    with checkpoint.open(tmp_path / "hf") as opened:
        assert opened.card.model.classifier == "gap"
        assert "vision_model.head.probe" in dict(opened.plan.dropped)


@pytest.mark.parametrize("args", [{"global_pool": "max"}, {"pool_include_prefix": True}])
def test_a_pooling_that_is_not_ours_is_refused(args, tmp_path):
    shutil.copy(path_of("timm_vit"), tmp_path / "model.safetensors")
    config = {"model_args": {"num_heads": 4, **args}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="pools by"):
        checkpoint.load(tmp_path)


def test_a_google_mixer_in_timms_layout_gives_the_references_outputs(tmp_path):
    from tests.reference import golden

    mixer = golden("mixer")
    arrays = {}
    for name, array in flax.traverse_util.flatten_dict(mixer.params(), sep="/").items():
        name = name.replace("stem/", "stem.proj/").replace("pre_head_layer_norm", "norm")
        name = name.replace("MixerBlock_", "blocks/").replace("LayerNorm_0", "norm1")
        name = name.replace("LayerNorm_1", "norm2").replace("_mixing/Dense_0", "s/fc1")
        name = name.replace("_mixing/Dense_1", "s/fc2")
        name = name.replace("tokens/", "mlp_tokens/").replace("channels/", "mlp_channels/")
        name = name.replace("/kernel", "/weight").replace("/scale", "/weight").replace("/", ".")
        axes = (3, 2, 0, 1) if array.ndim == 4 else range(array.ndim)[::-1]
        arrays[name] = np.ascontiguousarray(array.transpose(axes))
    save_file(arrays, tmp_path / "mixer.safetensors")
    found = outputs_of(tmp_path / "mixer.safetensors", mixer.images)
    np.testing.assert_allclose(found, mixer.outputs, atol=TOLERANCE, rtol=0)


def test_every_problem_of_a_file_is_told_at_once(tmp_path):
    arrays = arrays_of(path_of("timm_vit"))
    del arrays["blocks.0.norm1.weight"], arrays["blocks.1.norm1.weight"]
    arrays["blocks.0.attn.q_norm.weight"] = np.ones(12, np.float32)
    arrays["head.bias"] = np.zeros(7, np.float32)
    save_file(arrays, tmp_path / "bad.safetensors")
    with pytest.raises(ValueError) as caught:
        checkpoint.load(tmp_path / "bad.safetensors", num_heads=4)
    for part in ("no blocks.{0..1}.norm1.weight", "blocks.0.attn.q_norm.weight", "head/bias (7,)"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("timm_vit", {"blocks.0.mlp.fc1.weight": None}, "no blocks.0.mlp.fc1.weight"),
        ("timm_vit", {"blocks.1.attn.qkv.bias": np.zeros(145)}, "145 rows, not a multiple of 3"),
        ("timm_vit", {"patch_embed.proj.weight": np.zeros((48, 192))}, "4 axes are needed"),
        ("timm_vit", {"pos_embed": np.zeros((1, 20, 48))}, "20 position rows"),
        ("hf_vit", {"vit.embeddings.position_embeddings": None}, "no embeddings.position"),
        ("hf_vit", {"vit.encoder.layer.0.mlp.weights_in.weight": np.zeros(3)}, "SwiGLU"),
        ("lucidrains_vit", {"mlp_head.bias": None}, "no mlp_head.bias"),
    ],
)
def test_a_file_that_is_not_whole_says_what_is_wrong(name, change, problem, tmp_path):
    arrays = {**arrays_of(path_of(name)), **change}
    arrays = {n: np.asarray(a, np.float32) for n, a in arrays.items() if a is not None}
    save_file(arrays, tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match=problem):
        checkpoint.load(tmp_path / "bad.safetensors", num_heads=4)


def test_what_is_only_assumed_is_logged(tmp_path, caplog):
    arrays = arrays_of(path_of("lucidrains_vit"))
    save_file(arrays, tmp_path / "bare.safetensors")
    checkpoint.load(tmp_path / "bare.safetensors")
    assert "1 heads, as published models of width 64 have" in caplog.text


@pytest.mark.parametrize(
    ("fields", "to", "problem"),
    [
        ({"representation_size": 8}, "timm", "pre_logits"),
        ({"representation_size": 8}, "hf", "pre_logits"),
        ({"position": "learned2d"}, "timm", "learned2d"),
        ({"num_registers": 2}, "hf", "registers"),
        ({"fc_norm": True, "classifier": "gap"}, "hf", "after pooling"),
        ({}, "lucidrains", "biases"),
    ],
)
def test_a_model_that_a_library_lacks_is_refused_with_the_reason(fields, to, problem, tmp_path):
    params, card = small_model(**fields)
    with pytest.raises(ValueError, match=problem):
        checkpoint.save(params, tmp_path / "out", card=card, to=to)
    assert not list(tmp_path.iterdir())


def small_model(**fields):
    config = {
        "patches": {"size": (8, 8)},
        "hidden_size": 16,
        "transformer": {"num_layers": 1, "mlp_dim": 32, "num_heads": 2, "dropout_rate": 0.0},
        **fields,
    }
    card = make_card(model=config, num_classes=3, grid=(2, 2), source="test")
    shapes = card.parameter_shapes()
    return checkpoint.recover_tree(
        list(shapes), [np.zeros(leaf.shape, np.float32) for leaf in shapes.values()]
    ), card


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"architecture": "vit_base_patch16_rpn_224"}, "normalises after attention and MLP"),
        ({"architecture": "test_vit3"}, "averages its class token"),
        ({"model_args": {"act_layer": "relu"}}, "activation is 'relu'"),
        ({"model_args": {"act_layer": "tanh"}}, "activation is 'tanh'"),
    ],
)
def test_what_has_our_names_and_computes_something_else_is_refused(config, problem, tmp_path):
    """tests/golden/timm_vit itself is none of these; only its config.json says that it is."""
    shutil.copy(path_of("timm_vit"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=problem):
        checkpoint.load(tmp_path, num_heads=4)


@pytest.mark.parametrize("name", ["deit3_small_patch16_224", "flexivit_base"])
def test_a_timm_model_goes_back_under_the_name_it_came_with(name, tmp_path):
    """Both have positions for the patches alone, as their names tell timm."""
    arrays = arrays_of(path_of("timm_vit"))
    arrays["pos_embed"] = np.ascontiguousarray(arrays["pos_embed"][:, 1:])
    (tmp_path / name).mkdir()
    save_file(arrays, tmp_path / name / "model.safetensors")
    config = {"architecture": name, "model_args": {"num_heads": 4, "no_embed_class": True}}
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    checkpoint.convert(tmp_path / name, tmp_path / "ours.npz")
    checkpoint.convert(tmp_path / "ours.npz", tmp_path / "back", to="timm")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["architecture"] == name
    assert written["model_args"]["no_embed_class"] is True
    back = arrays_of(tmp_path / "back")
    assert {n: a.tobytes() for n, a in back.items()} == {n: a.tobytes() for n, a in arrays.items()}
