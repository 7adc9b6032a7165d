"""Whether a model knows how sure it may be."""

import numpy as np


def calibration_error(confidence: np.ndarray, correct: np.ndarray, num_bins: int = 15) -> float:
    """How far confidence is from accuracy, on average (ECE, Guo et al. 2017; equal bins)."""
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=confidence - correct, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))
