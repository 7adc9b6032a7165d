"""From one raw image to what the model sees, for training and for evaluation.

The evaluation side is described by a plain dictionary that travels with a checkpoint, so that
predict and evaluate run this very code with the numbers the model was trained for.
"""

from collections.abc import Callable
from typing import Any

import ml_collections
import numpy as np

from vit_jax.data import augment
from vit_jax.data.decode import MAX_PIXELS, Box, decode, decode_crop
from vit_jax.data.images import (
    INTERPOLATIONS,
    center_crop,
    covering_size,
    flip,
    inception_crop,
    normalize,
    resize,
    resize_to_cover,
)

Raw = bytes | np.ndarray  # an encoded file, or h w c


def preprocessing(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What evaluation does to an image, in JSON's types; every problem with it at once."""
    pp = config.pp
    size = [pp.crop, pp.crop] if isinstance(pp.crop, int) else list(pp.crop)
    mean, std = (
        [float(v)] * pp.channels if isinstance(v, int | float) else [float(one) for one in v]
        for v in (pp.mean, pp.std)
    )
    problems = []
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        problems.append(f"pp.crop={pp.crop} is neither a size nor (height, width)")
    elif pp.resize and pp.resize < min(size):
        problems.append(
            f"pp.resize={pp.resize} is smaller than pp.crop={pp.crop}; 0 resizes to the crop itself"
        )
    if pp.interpolation not in INTERPOLATIONS:
        known = ", ".join(INTERPOLATIONS)
        problems.append(f"pp.interpolation={pp.interpolation} is not one of {known}")
    if len(mean) != pp.channels or len(std) != pp.channels or not all(s > 0 for s in std):
        problems.append(
            f"pp.mean={pp.mean} and pp.std={pp.std} do not give each of {pp.channels} channels "
            "(pp.channels) a mean and a positive deviation"
        )
    if problems:
        raise ValueError("; ".join(problems))
    return {
        "crop": size,
        "resize": pp.resize or None,
        "interpolation": pp.interpolation,
        "mean": mean,
        "std": std,
        "channels": pp.channels,
        "exif": bool(pp.exif),
    }


def eval_transform(
    description: dict[str, Any], *, uint8: bool = False, max_pixels: int = MAX_PIXELS
) -> Callable[..., np.ndarray]:
    """The function from a raw image to float32 `h w c`, normalised; or uint8, left to the device.

    `description` is what `preprocessing` returns. The function may write into an array given as
    its last argument, and then returns that.
    """
    size = tuple(description["crop"])
    cover = description["resize"]
    interpolation = description["interpolation"]
    mean, std = description["mean"], description["std"]
    in_float = interpolation == "bilinear" and not uint8

    def transform(raw: Raw, out: np.ndarray | None = None) -> np.ndarray:
        image = decode(
            raw,
            channels=description["channels"],
            exif=description["exif"],
            max_pixels=max_pixels,
        )
        if in_float:
            image = image.astype(np.float32)
        if isinstance(cover, list | tuple):
            image = center_crop(resize(image, tuple(cover), interpolation), size)
        elif cover:
            image = center_crop(resize_to_cover(image, _covered(cover, size), interpolation), size)
        else:
            image = resize(image, size, interpolation, out)
        return np.ascontiguousarray(image) if uint8 else normalize(image, mean, std)

    return transform


def seen_box(description: dict[str, Any], shape: tuple[int, int]) -> Box:
    """The part of an image of a shape (height, width) that `eval_transform` leaves, in its own
    pixels: all of it, or less where there is a crop.
    """
    size, cover = tuple(description["crop"]), description["resize"]
    if not cover:
        return 0, 0, *shape
    exact = isinstance(cover, list | tuple)
    large = cover if exact else covering_size(shape, _covered(cover, size))
    (y, h), (x, w) = (
        (round(round((whole - part) / 2) * full / whole), max(1, round(part * full / whole)))
        for full, part, whole in zip(shape, size, large, strict=True)
    )
    return y, x, h, w


def _covered(cover: int, size: tuple[int, int]) -> tuple[int, int]:
    """What a resize of the shorter side to `cover` has to cover, for a crop of `size`."""
    return tuple(round(side * cover / min(size)) for side in size)


def train_transform(
    config: ml_collections.ConfigDict,
) -> Callable[..., np.ndarray]:
    """The function of a raw image and a generator that crops, resizes, flips and augments.

    Its result is float32 and normalised, or uint8; it may be written into an array given last.
    Colour operations work on 8-bit images, as published; without them the float pipeline equals
    the reference's to 0.01/255.
    """
    description = preprocessing(config)
    size, channels, exif = (description[key] for key in ("crop", "channels", "exif"))
    mean, std = description["mean"], description["std"]
    max_pixels, uint8 = config.pp.max_pixels, config.uint8_to_device
    area, mirror, layers, magnitude, jitter, erase_rate = (
        getattr(config.augment, name)
        for name in (
            "crop_area",
            "flip",
            "randaugment_layers",
            "randaugment_magnitude",
            "color_jitter",
            "erase_rate",
        )
    )
    recolored = layers > 0 or jitter > 0
    if not 0 < area[0] <= area[1] <= 1:
        raise ValueError(f"augment.crop_area={area} is not a range within 0 to 1")
    if recolored and channels not in (1, 3):
        raise ValueError(f"RandAugment and colour jitter need 1 or 3 channels, not {channels}")

    def transform(raw: Raw, rng: np.random.Generator, out: np.ndarray | None = None) -> np.ndarray:
        image = decode_crop(
            raw,
            lambda height, width: inception_crop(rng, height, width, area=area),
            channels=channels,
            exif=exif,
            max_pixels=max_pixels,
        )
        if mirror and rng.random() < 0.5:
            image = flip(image)
        if recolored:
            image = resize(image, size)
        else:
            image = resize(image if uint8 else image.astype(np.float32), size, out=out)
        if jitter > 0:
            image = augment.color_jitter(image, rng, jitter)
        if layers > 0:
            image = augment.randaugment(image, rng, layers, magnitude)
        if erase_rate > 0 and rng.random() < erase_rate:
            image = augment.random_erase(image, rng)
        return np.ascontiguousarray(image) if uint8 else normalize(image, mean, std)

    return transform
