"""`explain_image` for every kind of model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import random_params
from vit_jax.explanation import explain_image
from vit_jax.explanation.numbers import patch_distances
from vit_jax.explanation.page import PICTURES, Exhibit, Gallery
from vit_jax.models import MlpMixer, VisionTransformer

GRID = (2, 3)
IMAGE = np.random.default_rng(0).normal(size=(8, 12, 3)).astype(np.float32)
TRANSFORMER = {"num_layers": 2, "mlp_dim": 8, "num_heads": 2}
FIELDS = {"patches": {"size": (4, 4)}, "transformer": TRANSFORMER, "hidden_size": 8}
KINDS = {
    "token": {"num_registers": 2},
    "distilled": {"distilled": True, "position": "learned2d"},
    "gap": {"classifier": "gap", "position": "relative", "num_registers": 1},
    "map": {"classifier": "map", "position": "sincos2d", "num_registers": 1, "scan": True},
    "unpooled": {"classifier": "unpooled", "position": "none", "attention_kernel": "chunked"},
    "token_unpooled": {"classifier": "token_unpooled"},
    "hybrid": {"resnet": {"num_layers": (), "width_factor": 0.5}, "patches": {"size": (1, 1)}},
}


def vit(num_classes=3, **fields):
    model = VisionTransformer(num_classes=num_classes, **{**FIELDS, **fields})
    return model, random_params(model, IMAGE[None])


def check_drawn_or_explained(model, params, found, *, missing):
    """Every picture is either drawn, or a sentence says why it is not."""
    classes = [(str(index), 0.5) for index in range(model.num_classes)]
    class_index = 0 if classes else None
    exhibit = Exhibit("photo", np.zeros((16, 24, 3), np.uint8), classes, class_index, found)
    gallery = Gallery(model, params, GRID, [exhibit])
    drawn = [name for name, _ in (*gallery.draw_image(0), *gallery.draw_model())]
    assert set(gallery.missing) == missing
    assert sorted([*drawn, *missing]) == sorted(PICTURES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_explains_itself(kind):
    model, params = vit(**KINDS[kind])
    found = explain_image(model, params, IMAGE, 1)
    assert found.attention_maps.shape == (2, 2, *GRID)
    assert (found.pool_maps is not None) == (kind == "map")
    assert [one.shape for one in found.features] == [(*GRID, 8)] * 2
    for grid in (found.rollout, found.attention_relevance, found.integrated_gradients):
        assert grid.shape == GRID
        assert np.isfinite(grid).all()
        assert np.abs(grid).max() > 0
    assert found.rollout.min() >= 0
    assert found.rollout.sum() <= 1 + 1e-5
    assert found.attention_relevance.min() >= 0
    has_no_embedding = model.position in ("none", "relative")
    missing = {"position_similarity"} if has_no_embedding else set()
    check_drawn_or_explained(model, params, found, missing=missing)


def test_a_mixer_has_what_needs_no_attention():
    model = MlpMixer({"size": (4, 4)}, 3, 2, 8, 4, 8)
    params = random_params(model, IMAGE[None])
    found = explain_image(model, params, IMAGE, 2)
    assert found.attention_maps is found.rollout is found.attention_relevance is None
    assert found.integrated_gradients.shape == GRID
    missing = {"attention", "rollout", "attention_distance", "position_similarity"}
    check_drawn_or_explained(model, params, found, missing=missing)


def test_a_model_without_a_head_has_no_relevance():
    model, params = vit(num_classes=0)
    found = explain_image(model, params, IMAGE, None)
    assert found.rollout is not None
    assert found.attention_relevance is found.integrated_gradients is None
    check_drawn_or_explained(model, params, found, missing={"relevance"})


def test_a_model_whose_attention_is_uniform_looks_everywhere():
    model, params = vit(classifier="gap", num_registers=2)
    blank = lambda path, leaf: leaf * (path[-2].key not in ("query", "key"))  # noqa: E731
    params = jax.tree_util.tree_map_with_path(blank, params)
    found = explain_image(model, params, IMAGE, 0)
    tokens = 6 + 2
    np.testing.assert_allclose(found.attention_maps, np.full((2, 2, *GRID), 1 / tokens), rtol=1e-5)
    np.testing.assert_allclose(
        found.distances, np.full((2, 2), patch_distances(GRID, (4, 4)).mean()), rtol=1e-5
    )
    # Each layer keeps half and spreads half: a patch keeps 1/4 in two, and 3/4 are spread.
    np.testing.assert_allclose(found.rollout, np.full(GRID, 1 / 4 / 6 + 3 / 4 / tokens), rtol=1e-5)


def test_without_positions_moving_the_patches_moves_the_maps():
    model, params = vit(position="none")
    order = np.array([4, 2, 0, 5, 1, 3])
    patches = IMAGE.reshape(2, 4, 3, 4, 3).swapaxes(1, 2).reshape(6, 4, 4, 3)
    moved = patches[order].reshape(2, 3, 4, 4, 3).swapaxes(1, 2).reshape(IMAGE.shape)
    straight, after = (explain_image(model, params, image, 1) for image in (IMAGE, moved))
    for name in ("attention_maps", "rollout", "attention_relevance", "integrated_gradients"):
        before, now = (getattr(one, name).reshape(-1, 6) for one in (straight, after))
        np.testing.assert_allclose(now, before[:, order], atol=1e-5 * np.abs(before).max())
    for before, now in zip(straight.features, after.features, strict=True):
        np.testing.assert_allclose(now.reshape(6, -1), before.reshape(6, -1)[order], atol=1e-5)


def test_an_image_that_is_gray_but_for_one_patch_is_relevant_only_there():
    # Only patch 4 differs from gray, so it accounts for the whole difference in score.
    model, params = vit(classifier="gap", position="none")
    image = np.zeros_like(IMAGE)
    image[4:8, 4:8] = IMAGE[4:8, 4:8]
    found = explain_image(model, params, image, 1).integrated_gradients
    others = np.delete(found.reshape(-1), 4)
    np.testing.assert_array_equal(others, np.zeros(5))
    logits = [
        model.apply({"params": params}, jnp.asarray(x)[None])[0, 1] for x in (image, 0 * image)
    ]
    np.testing.assert_allclose(found[1, 1], logits[0] - logits[1], rtol=1e-2)
