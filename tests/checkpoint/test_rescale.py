"""Position grids and patch kernels at another size, by each library's own convention."""

import json

import jax
import numpy as np
import pytest
import scipy.ndimage

from tests.reference import GOLDEN
from vit_jax import checkpoint
from vit_jax.checkpoint.rescale import CONVENTIONS, resize

rng = np.random.default_rng(0)


@pytest.mark.parametrize("i", range(4))
def test_interpolate_posembed_has_the_references_numbers(i):
    case = json.loads((GOLDEN / "rescale.json").read_text())[i]
    with np.load(GOLDEN / "rescale.npz") as file:
        before, after = file[f"in{i}"], file[f"out{i}"]
    rescaled = checkpoint.interpolate_posembed(before, after.shape[1], case["has_class_token"])
    np.testing.assert_allclose(rescaled, after, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("old", "new"), [((7, 5), (12, 9)), ((12, 9), (5, 4)), ((3, 3), (1, 6))])
def test_google_is_scipys_zoom(old, new):
    grid = rng.normal(size=(*old, 4))
    zoomed = scipy.ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    np.testing.assert_allclose(resize(grid, new, "google"), zoomed, atol=1e-6)


@pytest.mark.parametrize(("old", "new"), [((7, 5), (12, 9)), ((12, 9), (5, 4))])
@pytest.mark.parametrize(
    ("convention", "method", "antialias"),
    [("linear", "linear", False), ("cubic_antialias", "cubic", True)],
)
def test_linear_and_cubic_antialias_are_jaxs(old, new, convention, method, antialias):
    grid = rng.normal(size=(*old, 4)).astype(np.float32)
    theirs = jax.image.resize(grid, (*new, 4), method, antialias=antialias)
    np.testing.assert_allclose(resize(grid, new, convention), theirs, atol=3e-6)  # their float32


def test_torch_bicubic_weighs_neighbours_with_a_minus_three_quarters():
    """Doubling puts samples a quarter off; torch's weights there, from its published formula."""
    grid = np.zeros((8, 1, 1))
    grid[4] = 1.0
    doubled = resize(grid, (16, 1), "torch_bicubic")[:, 0, 0]
    taps = [-0.03515625, -0.10546875, 0.26171875, 0.87890625]
    np.testing.assert_allclose(doubled[5:13], taps + taps[::-1], atol=1e-9)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_constant_grid_stays_constant(convention):
    grid = np.full((6, 9, 2), 3.0)
    np.testing.assert_allclose(resize(grid, (11, 4), convention), 3.0, atol=1e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_rescaling_a_grid_leaves_extra_tokens_alone(convention):
    posemb = rng.normal(size=(1, 3 + 16 * 12, 8)).astype(np.float32)
    rescaled = checkpoint.rescale_grid(
        posemb, (16, 12), (8, 24), num_extra_tokens=3, convention=convention
    )
    assert rescaled.shape == (1, 3 + 8 * 24, 8)
    assert rescaled.dtype == np.float32
    np.testing.assert_array_equal(rescaled[:, :3], posemb[:, :3])


def test_the_same_grid_is_returned_as_it_is():
    posemb = rng.normal(size=(1, 10, 8))
    assert checkpoint.rescale_grid(posemb, (3, 3), (3, 3), num_extra_tokens=1) is posemb


def test_a_grid_that_is_not_the_embeddings_is_refused():
    with pytest.raises(ValueError, match=r"20×45 grid with 1 extra tokens has 901 .*\(1, 900"):
        checkpoint.rescale_grid(np.zeros((1, 900, 8)), (20, 45), (30, 30), num_extra_tokens=1)


def test_interpolate_posembed_refuses_grids_that_are_not_square():
    with pytest.raises(ValueError, match="192 patches are not a square grid"):
        checkpoint.interpolate_posembed(np.zeros((1, 193, 8)), 197, True)


def test_unknown_convention_lists_the_known_ones():
    with pytest.raises(ValueError, match="'nearest'; choose google, linear"):
        checkpoint.rescale_grid(np.zeros((1, 4, 8)), (2, 2), (3, 3), convention="nearest")


@pytest.mark.parametrize("size", [(32, 32), (24, 16)])
def test_a_larger_patch_kernel_gives_the_resized_patch_the_same_embedding(size):
    kernel = rng.normal(size=(16, 16, 3, 5))
    larger = checkpoint.resize_patch_kernel(kernel, size)
    patch = rng.normal(size=(16, 16, 3))
    resized = jax.image.resize(patch, (*size, 3), "linear", antialias=False)
    old = np.einsum("hwc,hwcd->d", patch, kernel)
    new = np.einsum("hwc,hwcd->d", resized, larger)
    np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4)  # jax resizes in float32


def test_a_smaller_patch_kernel_is_the_least_squares_answer():
    kernel = rng.normal(size=(8, 8, 1, 1))
    smaller = checkpoint.resize_patch_kernel(kernel, (4, 4)).ravel()
    basis = np.eye(64).reshape(64, 8, 8)
    resized = np.stack([resize(b[..., None], (4, 4), "linear").ravel() for b in basis])
    best = np.linalg.lstsq(resized, kernel.ravel(), rcond=None)[0]
    np.testing.assert_allclose(smaller, best, atol=1e-8)
