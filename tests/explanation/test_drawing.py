"""Figures keep the shape of what they show, for any input."""

import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.explanation import figures
from vit_jax.explanation.figures import as_png, scaled
from vit_jax.explanation.numbers import principal_filters

RNG = np.random.default_rng(0)


def photo(height, width):
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def panel_shapes(figure):
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in figure.axes if axes.images]
    return [box.height / box.width for box in boxes]


@pytest.mark.parametrize(("height", "width"), [(60, 60), (40, 100), (100, 40)])
def test_a_photograph_keeps_its_shape_in_every_panel(height, width):
    shown, grid = photo(height, width), RNG.random((3, 5))
    for figure in (
        figures.draw_rollout(shown, grid, "t"),
        figures.draw_relevance(shown, grid, grid - 0.5, "t"),
        figures.draw_relevance(shown, None, grid - 0.5, "t"),
        figures.draw_features(shown, [RNG.random((3, 5, 3))] * 4, [1, 2, 3, 4], "t"),
    ):
        np.testing.assert_allclose(panel_shapes(figure), height / width, rtol=1e-3)


def test_attention_maps_have_the_shape_of_the_photograph():
    maps = RNG.random((6, 2, 3, 5))
    figure = figures.draw_attention_maps(photo(40, 100), maps, None, "t")
    of_photo, mosaic = panel_shapes(figure)
    assert of_photo == pytest.approx(0.4, rel=1e-3)
    # Two rows of six maps; gaps take a few percent.
    assert mosaic == pytest.approx(0.4 * 2 / 6, rel=0.1)


@pytest.mark.parametrize("layers_and_heads", [(1, 1), (24, 16)])
def test_small_and_large_models_fit_on_a_page(layers_and_heads):
    maps = RNG.random((*layers_and_heads, 4, 4))
    pool_maps = RNG.random((layers_and_heads[1], 4, 4))
    figure = figures.draw_attention_maps(photo(50, 50), maps, pool_maps, "t")
    with Image.open(io.BytesIO(as_png(figure))) as picture:
        assert 300 < min(picture.size) <= max(picture.size) < 4000


def test_names_are_shown_as_they_are():
    title = "a_$x$ \\frac{1} very " + "long " * 60
    figure = figures.draw_rollout(photo(20, 20), RNG.random((2, 2)), title)
    as_png(figure)
    shown = figure.get_suptitle()
    assert shown.startswith("a_$x$ \\frac{1}")
    assert len(shown) <= 90


def test_pictures_of_a_model_are_drawn_for_any_grid_and_filter():
    for grid in ((1, 1), (3, 7), (40, 20)):
        similarity = np.broadcast_to(RNG.random(grid), (*grid, *grid))
        assert as_png(figures.draw_position_similarity(similarity))
    for shape in ((1, 1, 3, 8), (16, 16, 1, 8), (14, 7, 4, 64)):
        filters = principal_filters(RNG.normal(size=shape))
        assert as_png(figures.draw_filters(*filters, "filters"))
    assert as_png(figures.draw_attention_distance(RNG.random((48, 16)), 0.5, 1))


def test_a_few_bright_patches_do_not_darken_the_rest():
    values = RNG.random(400)
    values[:5] = 1e6
    assert np.median(scaled(values)) > 0.3
    assert scaled(values).max() == 1
    np.testing.assert_array_equal(scaled(np.zeros(9)), np.zeros(9))
    one = np.zeros(400)
    one[7] = 3
    assert scaled(one)[7] == 1
