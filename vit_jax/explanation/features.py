"""Patch features as colours: alike patches look alike, within an image and between images."""

from collections.abc import Sequence

import numpy as np
from sklearn.decomposition import PCA

NUM_COLORS = 3
_REACH = 0.13  # of the two colour axes of OKLab, so that nearly every mixture exists in sRGB
_DARKEST, _LIGHTEST = 0.25, 0.92


def depths_shown(num_layers: int) -> list[int]:
    """After which blocks (counted from 1) features are looked at: four, evenly, with the last."""
    return sorted({round(num_layers * quarter / 4) for quarter in range(1, 5)} - {0})


def principal_colors(features: Sequence[np.ndarray]) -> list[np.ndarray]:  # h w d -> h w 3 each
    """The three main directions in which patches differ, each stretched to 0…1.

    Found over all images together, so that a colour means the same in each. Every feature vector is
    brought to zero mean and unit deviation first, as the network's last LayerNorm does; a few
    patches of huge length would take the components for themselves otherwise.
    """
    flat = np.concatenate([image.reshape(-1, image.shape[-1]) for image in features])
    flat = flat - flat.mean(1, keepdims=True)
    flat = flat / flat.std(1, keepdims=True).clip(1e-6)
    count = min(NUM_COLORS, *flat.shape)
    projected = PCA(count, svd_solver="full").fit_transform(flat)
    low, high = np.percentile(projected, [1, 99], axis=0)
    reach = (high - low).clip(1e-4 * (high - low).max() + 1e-12)  # rounding errors stay unseen
    spread = (0.5 + (projected - (low + high) / 2) / reach).clip(0, 1)
    spread = np.pad(spread, ((0, 0), (0, NUM_COLORS - count)), constant_values=0.5)
    ends = np.cumsum([image.shape[0] * image.shape[1] for image in features])[:-1]
    return [
        part.reshape(*image.shape[:2], NUM_COLORS)
        for part, image in zip(np.split(spread, ends), features, strict=True)
    ]


def as_rgb(components: np.ndarray) -> np.ndarray:  # (…, 3) in 0…1 -> sRGB in 0…1
    """The first component as lightness, the second blue to yellow, the third green to red.

    In OKLab (Ottosson 2020), whose distances are those of the eye. Those who cannot tell green from
    red lose the least of the three, and a print in gray keeps the first.
    """
    lightness = _DARKEST + (_LIGHTEST - _DARKEST) * components[..., 0]
    yellow, red = (_REACH * (2 * components[..., i] - 1) for i in (1, 2))
    lab = np.stack([lightness, red, yellow], axis=-1)
    linear = (lab @ _LAB_TO_LMS.T) ** 3 @ _LMS_TO_RGB.T
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


_LAB_TO_LMS = np.array(
    [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ]
)
_LMS_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)
