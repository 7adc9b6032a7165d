"""Patch features as colours: similar patches look similar, within an image and between images."""

from collections.abc import Sequence

import numpy as np
from sklearn.decomposition import PCA

NUM_COLORS = 3


def depths_shown(num_layers: int) -> list[int]:
    """The blocks (counted from 1) after which features are shown: the last of each quarter."""
    return sorted({round(num_layers * quarter / 4) for quarter in range(1, 5)} - {0})


def principal_colors(features: Sequence[np.ndarray]) -> list[np.ndarray]:  # h w d -> h w 3 each
    """The three main directions in which patches differ, each stretched to 0…1.

    Found over all images together, so that a colour means the same in each. Every feature vector is
    first brought to zero mean and unit deviation, as the network's last LayerNorm does; otherwise
    a few patches with huge features would take the components for themselves.
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
