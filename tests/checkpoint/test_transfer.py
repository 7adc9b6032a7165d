"""Loaded weights are fitted to the model, and what cannot be fitted is named."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.reference import GOLDEN, golden, load_with_card, random_params
from vit_jax import checkpoint, models


def make(name="testing", size=(64, 64), num_classes=7, channels=3, **fields):
    model = models.get_model(name, num_classes=num_classes, **fields)
    return model, random_params(model, jnp.ones((1, *size, channels)))


@pytest.fixture
def pretrained(tmp_path):
    """A ViT trained at 64×64 (4×4 patches) for seven classes."""
    _, params = make()
    path = tmp_path / "pretrained.npz"
    checkpoint.save(params, path)
    return path, params


def load(path, init, **options):
    config = {"representation_size": options.pop("representation_size", None)}
    return checkpoint.load_pretrained(
        pretrained_path=path, init_params=init, model_config=config, **options
    )


def negative(tree):
    """Fresh weights that cannot be mistaken for loaded ones."""
    return jax.tree.map(lambda x: -7 - np.abs(x), tree)


def positions(params):
    return params["Transformer"]["posembed_input"]["pos_embedding"]


def test_everything_but_the_head_is_loaded(pretrained):
    path, params = pretrained
    init = negative(params)
    loaded = load(path, init)
    np.testing.assert_array_equal(loaded["head"]["kernel"], init["head"]["kernel"])
    del loaded["head"], params["head"]
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_a_matching_head_can_be_kept(pretrained, caplog):
    caplog.set_level(logging.INFO)
    path, params = pretrained
    loaded = load(path, negative(params), keep_head=True)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert "Kept the head of 7 classes" in caplog.text


def test_a_head_of_other_classes_cannot_be_kept(pretrained):
    path, _ = pretrained
    _, init = make(num_classes=9)
    with pytest.raises(ValueError, match=r"kernel \(10, 7\) and the model .*kernel \(10, 9\)"):
        load(path, init, keep_head=True)


def test_a_model_without_a_head_drops_it(pretrained):
    path, _ = pretrained
    _, init = make(num_classes=0)
    assert "head" not in load(path, init)


def test_pre_logits_are_kept_only_for_a_representation_layer(caplog):
    caplog.set_level(logging.INFO)
    recorded = golden("vit_prelogits")
    params = recorded.params()
    without = {name: value for name, value in params.items() if name != "pre_logits"}
    without["head"] = {"kernel": np.ones((32, 7), "f"), "bias": np.ones(7, "f")}
    assert "pre_logits" not in load(recorded.path, without)
    assert "Dropped pre_logits/" in caplog.text
    kept = load(recorded.path, params, representation_size=24)
    np.testing.assert_array_equal(kept["pre_logits"]["kernel"], params["pre_logits"]["kernel"])


def test_positions_are_rescaled_as_the_reference_does(pretrained, caplog):
    caplog.set_level(logging.INFO)
    path, params = pretrained
    _, init = make(size=(96, 96))
    loaded = load(path, init)
    expected = checkpoint.interpolate_posembed(positions(params), 37, True)
    np.testing.assert_allclose(positions(loaded), expected, atol=1e-6)
    assert "Rescaled the position grid from 4×4 to 6×6 (google)" in caplog.text


def test_the_models_own_grid_is_used_and_never_guessed(pretrained, caplog):
    """A 2×8 model has the 16 patches of a 4×4 one; only its grid tells them apart. A file that does
    not say which it has is taken for what is asked for, with a warning.
    """
    path, params = pretrained
    _, init = make(size=(32, 128))
    np.testing.assert_array_equal(positions(load(path, init, grid=(2, 8))), positions(params))
    assert "16 positions for those of a 2×8 grid" in caplog.text
    loaded = load(path, init, grid=(2, 8), pretrained_grid=(4, 4))
    expected = checkpoint.rescale_grid(positions(params), (4, 4), (2, 8), num_extra_tokens=1)
    np.testing.assert_allclose(positions(loaded), expected, atol=1e-6)
    assert np.abs(positions(loaded) - positions(params)).max() > 1e-3


def test_nine_hundred_patches_of_a_wide_model_are_twenty_by_forty_five(tmp_path):
    _, params = make(size=(480, 480))
    checkpoint.save(params, tmp_path / "square.npz")
    _, init = make(size=(320, 720))
    assert positions(init).shape == positions(params).shape == (1, 901, 10)
    loaded = load(tmp_path / "square.npz", init, grid=(20, 45), pretrained_grid=(30, 30))
    expected = checkpoint.rescale_grid(positions(params), (30, 30), (20, 45), num_extra_tokens=1)
    np.testing.assert_allclose(positions(loaded), expected, atol=1e-6)


def test_a_checkpoint_of_a_non_square_grid_says_what_it_needs(tmp_path):
    _, params = make(size=(64, 48))
    checkpoint.save(params, tmp_path / "wide.npz")
    _, init = make(size=(96, 96))
    with pytest.raises(ValueError, match="12 positions, which is not a square grid"):
        load(tmp_path / "wide.npz", init)
    loaded = load(tmp_path / "wide.npz", init, pretrained_grid=(4, 3))
    expected = checkpoint.rescale_grid(positions(params), (4, 3), (6, 6), num_extra_tokens=1)
    np.testing.assert_allclose(positions(loaded), expected, atol=1e-6)


def test_a_grid_that_is_not_the_models_is_refused(pretrained):
    path, _ = pretrained
    _, init = make(size=(96, 96))
    with pytest.raises(ValueError, match="36 patches, and a 5×5 grid has 25"):
        load(path, init, grid=(5, 5))


def test_a_class_token_the_model_lacks_is_dropped_with_its_position(pretrained, caplog):
    caplog.set_level(logging.INFO)
    path, params = pretrained
    _, init = make(classifier="gap")
    loaded = load(path, init)
    assert "cls" not in loaded
    np.testing.assert_array_equal(positions(loaded), positions(params)[:, 1:])
    assert "Dropped the class token" in caplog.text


def test_a_class_token_the_checkpoint_lacks_is_fresh_with_its_position(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    _, params = make(classifier="gap")
    checkpoint.save(params, tmp_path / "gap.npz")
    _, init = make()
    loaded = load(tmp_path / "gap.npz", init)
    np.testing.assert_array_equal(loaded["cls"], init["cls"])
    np.testing.assert_array_equal(positions(loaded)[:, :1], positions(init)[:, :1])
    np.testing.assert_array_equal(positions(loaded)[:, 1:], positions(params))
    assert "The class token is fresh" in caplog.text


def test_gray_images_see_what_rgb_would_have_shown(pretrained):
    path, params = pretrained
    _, init = make(channels=1)
    kernel = load(path, init)["embedding"]["kernel"]
    np.testing.assert_allclose(
        kernel, params["embedding"]["kernel"].sum(axis=2, keepdims=True), rtol=1e-6
    )


def test_more_channels_repeat_the_weights_at_the_same_total(pretrained):
    path, params = pretrained
    _, init = make(channels=6)
    kernel = np.asarray(load(path, init)["embedding"]["kernel"])
    np.testing.assert_allclose(kernel[:, :, :3], kernel[:, :, 3:], rtol=1e-6)
    np.testing.assert_allclose(
        kernel.sum(axis=2), params["embedding"]["kernel"].sum(axis=2), atol=1e-5
    )


def test_another_patch_size_starts_from_the_resized_kernel(pretrained, caplog):
    caplog.set_level(logging.INFO)
    path, params = pretrained
    _, init = make(patches={"size": (32, 32)}, size=(128, 128))
    kernel = load(path, init)["embedding"]["kernel"]
    expected = checkpoint.resize_patch_kernel(params["embedding"]["kernel"], (32, 32))
    np.testing.assert_allclose(kernel, expected, rtol=1e-6)
    assert "Resized the patch kernel from 16×16 to 32×32" in caplog.text


def test_a_scanned_model_gets_its_own_layout(pretrained):
    path, params = pretrained
    loaded = load(path, models.stack_blocks(params), keep_head=True)
    jax.tree.map(np.testing.assert_array_equal, loaded, models.stack_blocks(params))


@pytest.mark.parametrize("kind", ["learned2d", "relative"])
def test_two_dimensional_positions_are_rescaled_too(tmp_path, kind):
    fields = {"position": kind, "hidden_size": 16}
    _, params = make(**fields)
    checkpoint.save(params, tmp_path / "file.npz")
    model, init = make(size=(96, 64), **fields)
    loaded = load(tmp_path / "file.npz", init)
    assert jax.tree.map(jnp.shape, loaded) == jax.tree.map(jnp.shape, init)
    logits = model.apply({"params": loaded}, jnp.ones((1, 96, 64, 3)))
    assert np.isfinite(logits).all()


def test_learned_positions_are_dropped_where_the_model_has_another_kind(pretrained, caplog):
    caplog.set_level(logging.INFO)
    path, _ = pretrained
    _, init = make(position="none")
    assert "posembed_input" not in load(path, init)["Transformer"]
    assert "Dropped 17 learned positions" in caplog.text


def test_parameters_take_the_dtype_of_the_model(pretrained):
    path, params = pretrained
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
    assert {x.dtype for x in jax.tree.leaves(load(path, half))} == {jnp.dtype(jnp.bfloat16)}


def test_the_wrong_model_is_refused_with_every_difference_and_a_guess(tmp_path):
    model = models.get_model("ViT-Ti_16", num_classes=10)
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    checkpoint.save(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes), tmp_path / "t.npz")
    _, init = make(size=(32, 32))
    with pytest.raises(ValueError) as error:
        load(tmp_path / "t.npz", init)
    message = str(error.value)
    assert "the model has no Transformer/encoderblock_{1..11}/LayerNorm_0/bias" in message
    assert "cls: (1, 1, 192) in the checkpoint, (1, 1, 10) in the model" in message
    assert message.count("in the checkpoint") == 10
    assert "looks like a ViT-Ti_16" in message


@pytest.mark.parametrize("name", [n for n in models.MODEL_CONFIGS if n != "testing-unpooled"])
def test_every_published_model_is_recognised_from_its_shapes(name):
    model = models.get_model(name, num_classes=10)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    flat = {"/".join(k.key for k in path): leaf for path, leaf in jax.tree.leaves_with_path(shapes)}
    assert models.guess_model(flat) == name


def test_inspect_params_reports_from_both_sides():
    params, expected = {"a": {"b": 1}, "extra": 2}, {"a": {"b": 1, "c": 3}}
    with pytest.raises(ValueError, match="missing: a/c; extra: extra"):
        checkpoint.inspect_params(params=params, expected=expected)
    same = checkpoint.inspect_params(
        params=params, expected=expected, fail_if_extra=False, fail_if_missing=False
    )
    assert same == params


def test_recover_tree_nests_flat_names():
    tree = checkpoint.recover_tree(["a/b", "a/c/d", "e"], [1, 2, 3])
    assert tree == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


@pytest.mark.parametrize(
    ("name", "convention"),
    [("timm_vit.safetensors", "cubic_antialias"), ("hf_vit", "torch_bicubic")],
)
def test_foreign_positions_are_rescaled_as_their_own_library_does(name, convention):
    params, card = load_with_card(GOLDEN / name)
    model = card.model
    init = random_params(model, jnp.ones((1, 48, 48, 3)))
    loaded = load(GOLDEN / name, init)
    expected = checkpoint.rescale_grid(
        positions(params), (4, 4), (6, 6), num_extra_tokens=1, convention=convention
    )
    np.testing.assert_allclose(positions(loaded), expected, atol=1e-6)


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_positions_of_a_file_that_does_not_say_its_grid_are_those_asked_for(
    classifier, tmp_path, caplog
):
    """36 positions of a 4×9 grid would fit a 6×6 one, and were rescaled from it."""
    model, params = make(size=(64, 144), classifier=classifier)
    checkpoint.save(params, tmp_path / "bare.npz")
    loaded = vit_jax.load(tmp_path / "bare.npz", resolution=(64, 144))
    np.testing.assert_array_equal(positions(loaded.params), positions(params))
    assert loaded.grid == (4, 9)
    assert "those of a 4×9 grid" in caplog.text
    square = vit_jax.load(tmp_path / "bare.npz", resolution=96)
    np.testing.assert_array_equal(positions(square.params), positions(params))
    # One that says its grid is rescaled from that.
    card = checkpoint.Card(model, (6, 6))
    checkpoint.save(params, tmp_path / "square.npz", card=card)
    rescaled = vit_jax.load(tmp_path / "square.npz", resolution=(64, 144))
    assert np.abs(positions(rescaled.params) - positions(params)).max() > 1e-3


def test_an_image_size_that_is_given_is_the_grid_of_a_bare_file(tmp_path):
    _, params = make(size=(64, 144))
    checkpoint.save(params, tmp_path / "bare.npz")
    _, init = make(size=(128, 288))
    with checkpoint.open(tmp_path / "bare.npz", image_size=(64, 144)) as found:
        fitted = found.fit(init, grid=(8, 18), keep_head=True).restore()
    expected = checkpoint.rescale_grid(positions(params), (4, 9), (8, 18), num_extra_tokens=1)
    np.testing.assert_allclose(positions(fitted), expected, atol=1e-6)


def test_both_heads_of_a_distilled_model_are_fresh_for_other_classes(tmp_path):
    _, params = make(distilled=True)
    checkpoint.save(params, tmp_path / "deit.npz")
    _, init = make(distilled=True, num_classes=9)
    loaded = load(tmp_path / "deit.npz", negative(init))
    for head in ("head", "head_dist"):
        np.testing.assert_array_equal(loaded[head]["kernel"], negative(init)[head]["kernel"])
    np.testing.assert_array_equal(loaded["dist"], params["dist"])


def test_an_inferred_card_names_the_published_model(pretrained):
    with checkpoint.open(pretrained[0]) as found:
        assert found.card.model.model_name == "testing"


@pytest.mark.parametrize("to", ["npz", "orbax", "timm"])
def test_parameters_that_do_not_fit_their_card_are_not_written(to, pretrained, tmp_path):
    model, _ = make(num_classes=9)
    card = checkpoint.Card(model, (4, 4))
    with pytest.raises(ValueError, match=r"head/kernel: \(10, 7\) .* \(10, 9\) in the model"):
        checkpoint.save(pretrained[1], tmp_path / "out.npz", card=card, to=to)
    assert not (tmp_path / "out.npz").exists()
