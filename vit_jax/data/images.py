"""Crop, resize, flip, normalise: pure functions on one image, `h w c`.

`resize` of the default kind keeps within 0.004/255 of tf.image.resize, which does not antialias.
"""

import functools
import math
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.decode import Box

# How checkpoints from elsewhere resize for evaluation, and what Pillow calls it.
_PILLOW = Image.Resampling
_ANTIALIASED = {"bilinear_antialias": _PILLOW.BILINEAR, "bicubic": _PILLOW.BICUBIC}


def inception_crop(
    rng: np.random.Generator, height: int, width: int, area: tuple[float, float] = (0.05, 1.0)
) -> Box:
    """A random box, distributed as tf.image.sample_distorted_bounding_box draws it.

    TensorFlow draws the aspect ratio uniformly, then the height uniformly between those that give
    the smallest and the largest area allowed. The area itself is then not uniform: small crops are
    more frequent than in other libraries. Its offsets stop one short of the far edge.
    """
    narrowest, widest = 0.75, 1.33
    smallest, largest = (share * height * width for share in area)
    for _ in range(100):
        ratio = narrowest + rng.random() * (widest - narrowest)
        high = min(round(math.sqrt(largest / ratio)), int((width + 0.5) / ratio), height)
        low = min(round(math.sqrt(smallest / ratio)), high)
        h = int(rng.integers(low, high + 1))
        if round(h * ratio) * h < smallest:
            h += 1
        if round(h * ratio) * h > largest:
            h -= 1
        w = round(h * ratio)
        if smallest <= w * h <= largest and 0 < w <= width and 0 < h <= height:
            y = int(rng.integers(height - h)) if h < height else 0
            x = int(rng.integers(width - w)) if w < width else 0
            return y, x, h, w
    return 0, 0, height, width


def crop(image: np.ndarray, box: Box) -> np.ndarray:
    y, x, h, w = box
    return image[y : y + h, x : x + w]


def flip(image: np.ndarray) -> np.ndarray:
    """Left becomes right. Before a resize the result is the same as after it, and costs less."""
    return cv2.flip(image, 1).reshape(image.shape)


def center_crop(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The middle `size` of an image at least that large; half pixels round as torchvision's do."""
    y = round((image.shape[0] - size[0]) / 2)
    x = round((image.shape[1] - size[1]) / 2)
    return crop(image, (y, x, *size))


def resize(
    image: np.ndarray,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    out: np.ndarray | None = None,
) -> np.ndarray:
    """To `size` (height, width), keeping the type; bilinear writes into `out` and returns it.

    For the reference's pixels give float32: 8-bit input is computed in fixed point and rounded.
    The antialiased kinds are Pillow's, and always round to 8 bits, as timm and Hugging Face do.
    """
    channels, width_height = image.shape[2], (size[1], size[0])
    if (resample := _ANTIALIASED.get(interpolation)) is not None:
        planes = [image] if channels == 3 else np.moveaxis(image, -1, 0)
        planes = [Image.fromarray(plane).resize(width_height, resample) for plane in planes]
        return np.dstack([np.asarray(plane) for plane in planes])
    if out is None:
        out = np.empty((*size, channels), image.dtype)
    flat = out[:, :, 0] if channels == 1 else out  # cv2 drops a single channel
    resized = cv2.resize(image, width_height, dst=flat, interpolation=cv2.INTER_LINEAR)
    assert np.may_share_memory(resized, out), "cv2 did not write into the array it was given"
    return out


def covering_size(shape: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """What an image of this shape (height, width) is resized to so that it just covers `size`.

    For a square `size` that is "shorter side to"; the longer side rounds down, as in torchvision.
    """
    height, width = shape
    if size[0] * width >= size[1] * height:
        return size[0], max(size[1], size[0] * width // height)
    return max(size[0], size[1] * height // width), size[1]


def normalize(image: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """0..255 to float32 `(value / 255 - mean) / std`, in place where it can be."""
    if image.dtype != np.float32 or not image.flags.c_contiguous:
        image = np.ascontiguousarray(image, np.float32)
    scale, shift = _affine(tuple(mean), tuple(std), image.shape[1])
    rows = image.reshape(image.shape[0], -1)  # h wc
    rows *= scale
    rows += shift
    return image


@functools.lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], width: int
) -> tuple[np.ndarray | np.float32, np.ndarray | np.float32]:
    """Factor and summand of a row: one number where the channels agree, else a whole row, because
    an inner loop over three channels takes ten times as long.
    """
    scale = 1 / (255 * np.array(std, np.float64))
    shift = -np.array(mean, np.float64) / np.array(std, np.float64)
    if len(set(mean)) == len(set(std)) == 1:
        return np.float32(scale[0]), np.float32(shift[0])
    return np.tile(scale, width).astype(np.float32), np.tile(shift, width).astype(np.float32)
