"""The built-in digits need nothing but scikit-learn."""

import numpy as np
import pytest

from vit_jax.data import open_source, split_sizes


def test_all_digits_are_there_once():
    sizes = split_sizes("digits")
    assert sum(sizes.values()) == 1797 and sizes["test"] == pytest.approx(180, abs=5)
    both = open_source("digits", "train+test")
    assert len({both.path(index) for index in range(len(both))}) == 1797


def test_digits_are_images_with_their_class():
    source = open_source("digits")
    example = source[0]
    assert example.image.shape == (8, 8, 1) and example.image.dtype == np.uint8
    assert source.class_names == tuple("0123456789") and 0 <= example.label < 10


def test_digits_follow_a_saved_class_map():
    plain, turned = open_source("digits"), open_source("digits", class_names="9876543210")
    assert turned[5].label == 9 - plain[5].label


def test_a_class_map_without_a_digit_is_refused():
    with pytest.raises(ValueError, match="did not: '9'"):
        open_source("digits", class_names="012345678")
