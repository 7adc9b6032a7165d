"""Principal components of filters and features that are known in advance."""

import numpy as np

from vit_jax.explanation.figures import as_rgb
from vit_jax.explanation.numbers import (
    depths_shown,
    pixel_filters,
    principal_colors,
    principal_filters,
)

RNG = np.random.default_rng(0)


def test_filters_made_of_two_patterns_have_those_as_components():
    patterns = np.linalg.qr(RNG.normal(size=(4 * 6 * 3, 2)))[0]
    strength = np.linalg.qr(RNG.normal(size=(100, 3)) - 0)[0][:, :2] * [3, 1]
    strength -= strength.mean(0)
    kernel = (patterns @ strength.T).reshape(4, 6, 3, 100)
    components, explained = principal_filters(kernel, count=5)
    assert components.shape == (5, 4, 6, 3)
    np.testing.assert_allclose(explained[:2].sum(), 1, atol=1e-6)
    span = components[:2].reshape(2, -1) @ patterns
    np.testing.assert_allclose(np.abs(np.linalg.det(span)), 1, atol=1e-6)
    assert abs(span[0, 0]) > abs(span[0, 1])  # the stronger one first


def test_there_are_no_more_components_than_filters_or_pixels():
    assert len(principal_filters(RNG.normal(size=(2, 2, 1, 50)))[0]) == 4
    assert len(principal_filters(RNG.normal(size=(16, 16, 3, 10)))[0]) == 10
    assert len(principal_filters(RNG.normal(size=(16, 16, 3, 64)))[0]) == 28


def test_the_filters_are_those_applied_to_the_pixels():
    kernel = RNG.normal(size=(7, 7, 3, 8))
    of_patches = {"embedding": {"kernel": RNG.normal(size=(1, 1, 8, 4))}}
    hybrid = pixel_filters({"conv_root": {"kernel": kernel}, **of_patches})
    assert hybrid.shape == kernel.shape
    np.testing.assert_allclose(hybrid.mean((0, 1, 2)), 0, atol=1e-12)
    assert pixel_filters({"stem": {"kernel": kernel}}) is kernel
    assert pixel_filters(of_patches).shape == (1, 1, 8, 4)


def test_equal_patches_have_the_same_colour_in_every_image():
    kinds = RNG.normal(size=(3, 32))
    first, second = RNG.integers(3, size=(2, 5)), RNG.integers(3, size=(4, 3))
    colors = principal_colors([kinds[first], kinds[second]])
    assert [image.shape for image in colors] == [(2, 5, 3), (4, 3, 3)]
    for kind in range(3):
        of_kind = np.concatenate([colors[0][first == kind], colors[1][second == kind]])
        np.testing.assert_allclose(of_kind, np.broadcast_to(of_kind[0], of_kind.shape), atol=1e-6)


def test_the_length_of_a_feature_vector_does_not_matter():
    features = RNG.normal(size=(6, 6, 32))
    longer = features.copy()
    longer[2, 3] *= 1000
    np.testing.assert_allclose(
        principal_colors([longer])[0], principal_colors([features])[0], atol=1e-6
    )


def test_permuting_patches_permutes_the_colours():
    features = RNG.normal(size=(3, 5, 16))
    order = RNG.permutation(15)
    permuted = features.reshape(15, 16)[order].reshape(3, 5, 16)
    straight = principal_colors([features])[0].reshape(15, 3)[order]
    again = principal_colors([permuted])[0].reshape(15, 3)
    flipped = np.minimum(abs(again - straight), abs(1 - again - straight))  # a sign is arbitrary
    np.testing.assert_allclose(flipped, 0, atol=1e-6)


def test_the_first_component_is_what_a_gray_print_keeps():
    ramp = np.full((11, 3), 0.5)
    ramp[:, 0] = np.linspace(0, 1, 11)
    gray = as_rgb(ramp) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(gray) > 0).all()
    everywhere = as_rgb(np.stack(np.meshgrid(*[np.linspace(0, 1, 5)] * 3), axis=-1))
    assert everywhere.min() >= 0
    assert everywhere.max() <= 1


def test_depths_end_with_the_last_block():
    assert depths_shown(12) == [3, 6, 9, 12]
    assert depths_shown(1) == [1]
    assert depths_shown(2) == [1, 2]
    assert depths_shown(27)[-1] == 27
