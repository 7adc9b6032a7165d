"""Augmentations on the host: RandAugment, colour jitter, random erasing, on one 8-bit image.

RandAugment has the operations and level tables that AugReg trained with (arXiv:2106.10270, code in
big_vision), which are AutoAugment's. Lengths in pixels are theirs at 224 and scale with the image.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

_GRAY = 128  # fills what a shift or a rotation uncovers
_REFERENCE_SIZE = 224


def randaugment(
    image: np.ndarray, rng: np.random.Generator, layers: int, magnitude: float
) -> np.ndarray:
    """`layers` random operations, one after the other, each at strength `magnitude` out of 10.

    As published, strengths above 10 are allowed (AugReg uses 15 and 20), Solarize does nothing
    from 10 up, and Posterize gets milder with strength.
    """
    for _ in range(layers):
        name = OPERATIONS[rng.integers(len(OPERATIONS))]
        image = apply(name, image, rng, magnitude)
    return image


def apply(name: str, image: np.ndarray, rng: np.random.Generator, magnitude: float) -> np.ndarray:
    """One operation by name on uint8 `h w c` with 1 or 3 channels."""
    if image.shape[2] not in (1, 3):
        raise ValueError(f"RandAugment needs 1 or 3 channels; the image has {image.shape[2]}")
    level, fill = magnitude / 10, (_GRAY,) * image.shape[2]
    if name in _PICTURE_OPERATIONS:
        return _array(_PICTURE_OPERATIONS[name](_picture(image), level))
    if name in _GEOMETRY:
        # The matrix takes output to input coordinates; nearest neighbour, as published.
        matrix = _GEOMETRY[name](level if rng.random() < 0.5 else -level, *image.shape[:2])
        kind, size = Image.Transform.AFFINE, image.shape[1::-1]
        return _array(_picture(image).transform(size, kind, matrix, fillcolor=fill))
    if name == "Rotate":
        degrees = 30 * level * (1 if rng.random() < 0.5 else -1)
        return _array(_picture(image).rotate(degrees, fillcolor=fill))
    if name == "SolarizeAdd":
        added = np.minimum(image.astype(np.int16) + int(110 * level), 255).astype(np.uint8)
        return np.where(image < 128, added, image)
    assert name == "Cutout", name
    half = int(40 * level * min(image.shape[:2]) / _REFERENCE_SIZE)
    y, x = rng.integers(image.shape[0]), rng.integers(image.shape[1])
    image = image.copy()
    image[max(0, y - half) : y + half, max(0, x - half) : x + half] = _GRAY
    return image


def color_jitter(image: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Brightness, contrast and saturation, in random order, each by a factor in 1 ± `strength`."""
    picture = _picture(image)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for which in rng.permutation(3):
        factor = rng.uniform(max(0.0, 1 - strength), 1 + strength)
        picture = enhancers[which](picture).enhance(factor)
    return _array(picture)


def random_erase(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random rectangle becomes noise (arXiv:1708.04896). Values are in 0..255, of any type."""
    height, width, channels = image.shape
    for _ in range(10):
        target = rng.uniform(0.02, 1 / 3) * height * width
        ratio = np.exp(rng.uniform(*np.log((0.3, 10 / 3))))
        h, w = round(np.sqrt(target * ratio)), round(np.sqrt(target / ratio))
        if 0 < h < height and 0 < w < width:
            y, x = rng.integers(height - h + 1), rng.integers(width - w + 1)
            image = image.copy()
            image[y : y + h, x : x + w] = rng.integers(0, 256, (h, w, channels))
            return image
    return image


def _posterize(picture: Image.Image, bits: int) -> Image.Image:
    """Keeps the upper `bits`; below level 2.5 that is none, which leaves black, as published."""
    kept = [value >> (8 - bits) << (8 - bits) for value in range(256)]
    return picture.point(kept * len(picture.getbands()))


_PICTURE_OPERATIONS = {
    "AutoContrast": lambda p, level: ImageOps.autocontrast(p),
    "Equalize": lambda p, level: ImageOps.equalize(p),
    "Invert": lambda p, level: ImageOps.invert(p),
    "Posterize": lambda p, level: _posterize(p, min(8, int(4 * level))),
    "Solarize": lambda p, level: ImageOps.solarize(p, int(256 * level)),
    "Color": lambda p, level: ImageEnhance.Color(p).enhance(1.8 * level + 0.1),
    "Contrast": lambda p, level: ImageEnhance.Contrast(p).enhance(1.8 * level + 0.1),
    "Brightness": lambda p, level: ImageEnhance.Brightness(p).enhance(1.8 * level + 0.1),
    "Sharpness": lambda p, level: ImageEnhance.Sharpness(p).enhance(1.8 * level + 0.1),
}
_GEOMETRY = {
    "ShearX": lambda level, height, width: (1, 0.3 * level, 0, 0, 1, 0),
    "ShearY": lambda level, height, width: (1, 0, 0, 0.3 * level, 1, 0),
    "TranslateX": lambda level, height, width: (
        1,
        0,
        level * 100 * width / _REFERENCE_SIZE,
        0,
        1,
        0,
    ),
    "TranslateY": lambda level, height, width: (
        1,
        0,
        0,
        0,
        1,
        level * 100 * height / _REFERENCE_SIZE,
    ),
}
OPERATIONS = (*_PICTURE_OPERATIONS, *_GEOMETRY, "Rotate", "SolarizeAdd", "Cutout")


def _picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def _array(picture: Image.Image) -> np.ndarray:
    array = np.asarray(picture)
    return array[:, :, None] if array.ndim == 2 else array
