"""What the first layer looks for: figure 7 of the ViT paper, on the left."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA


class Filters(NamedTuple):
    components: np.ndarray  # k h w c, unit length each, the strongest first
    explained: np.ndarray  # k: share of the filters' variance along each


def pixel_filters(params: Mapping[str, Any]) -> np.ndarray:  # h w c d
    """The kernel that meets the pixels: of the patches, or of a hybrid's first convolution.

    The latter standardised, as the network uses it.
    """
    if "conv_root" in params:
        kernel = np.asarray(params["conv_root"]["kernel"])
        return (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2)).clip(1e-12)
    return np.asarray(params["embedding" if "embedding" in params else "stem"]["kernel"])


def principal_filters(kernel: np.ndarray, count: int = 28) -> Filters:
    """The directions in which the d filters of a kernel `h w c d` differ most; 28 in the paper."""
    filters = kernel.reshape(-1, kernel.shape[-1]).T  # d hwc
    pca = PCA(min(count, *filters.shape), svd_solver="full").fit(filters)
    return Filters(pca.components_.reshape(-1, *kernel.shape[:3]), pca.explained_variance_ratio_)
