"""From one raw image to what the model sees, for training and for evaluation.

The evaluation side is a `Preprocessing`, which travels with a checkpoint: predict and evaluate run
this very code with the numbers the model was trained for.
"""

import functools
import math
from collections.abc import Callable

import ml_collections
import numpy as np

from vit_jax.aliases import Size
from vit_jax.config import check
from vit_jax.data import augment, images
from vit_jax.data.decode import MAX_PIXELS, Box, decode, decode_crop
from vit_jax.preprocessing import Preprocessing

Raw = bytes | np.ndarray  # an encoded file, or h w c


def preprocessing(config: ml_collections.ConfigDict) -> Preprocessing:
    """What evaluation does to an image, from `config.pp`; raises if an option has a wrong value."""
    check(config)
    pp = config.pp
    size = (pp.crop, pp.crop) if isinstance(pp.crop, int) else tuple(pp.crop)
    mean, std = (
        (float(v),) * pp.channels if isinstance(v, int | float) else tuple(map(float, v))
        for v in (pp.mean, pp.std)
    )
    return Preprocessing(
        crop=size,
        resize=pp.resize or None,
        interpolation=pp.interpolation,
        mean=mean,
        std=std,
        channels=pp.channels,
        exif=bool(pp.exif),
    )


def eval_transform(
    preprocessing: Preprocessing, *, uint8: bool = False, max_pixels: int = MAX_PIXELS
) -> Callable[..., np.ndarray]:
    """The function from a raw image to float32 `h w c`, normalised; or uint8, left to the device.

    The function may write into an array given as its last argument, and then returns that array.
    """
    interpolation, channels = preprocessing.interpolation, preprocessing.channels

    def transform(raw: Raw, out: np.ndarray | None = None) -> np.ndarray:
        image = decode(raw, channels=channels, exif=preprocessing.exif, max_pixels=max_pixels)
        if interpolation == "bilinear" and not uint8:
            image = image.astype(np.float32)
        if preprocessing.resize is None:
            image = images.resize(image, preprocessing.crop, interpolation, out)
        else:
            before_crop = _size_before_crop(preprocessing, image.shape[:2])
            _refuse_to_blow_up(image.shape[:2], before_crop, preprocessing.crop, max_pixels)
            image = images.resize(image, before_crop, interpolation)
            image = images.center_crop(image, preprocessing.crop)
        if uint8:
            return np.ascontiguousarray(image)
        return images.normalize(image, preprocessing.mean, preprocessing.std)

    return transform


def seen_box(preprocessing: Preprocessing, shape: Size) -> Box:
    """The part of an image of this shape that `eval_transform` keeps, in the image's own pixels:
    all of it, or less where there is a crop.
    """
    large = _size_before_crop(preprocessing, shape)
    (y, h), (x, w) = (
        (round(round((whole - part) / 2) * full / whole), max(1, round(part * full / whole)))
        for full, part, whole in zip(shape, preprocessing.crop, large, strict=True)
    )
    return y, x, h, w


def _size_before_crop(preprocessing: Preprocessing, shape: Size) -> Size:
    """What an image of this shape is resized to."""
    size, cover = preprocessing.crop, preprocessing.resize
    if not isinstance(cover, int):
        return cover or size
    height, width = (round(side * cover / min(size)) for side in size)
    return images.covering_size(shape, (height, width))


def _refuse_to_blow_up(shape: Size, resized: Size, crop: Size, max_pixels: int) -> None:
    """A line of 3000×1 pixels, its shorter side resized to 256, would take gigabytes for one crop.

    Values may be floats by now, of four bytes each, hence a quarter of `max_pixels`; a model that
    sees very large images gets its due in any case.
    """
    most = max(max_pixels // 4, 4 * math.prod(crop))
    if math.prod(resized) > most:
        raise ValueError(
            f"the image is {shape[1]} x {shape[0]}, and before the crop it would be resized to "
            f"{resized[1]} x {resized[0]}; at most {most:,} pixels are accepted"
        )


def train_transform(config: ml_collections.ConfigDict) -> Callable[..., np.ndarray]:
    """The function of a raw image and a generator that crops, resizes, flips and augments.

    Its result is float32 and normalised, or uint8. It may write into an array given as its last
    argument, and then returns that array. Colour operations work on 8-bit images, as published;
    without them the float pipeline equals the reference's to 0.01/255.
    """
    wanted, options = preprocessing(config), config.augment
    area, mirror, jitter = options.crop_area, options.flip, options.color_jitter
    layers, magnitude = options.randaugment_layers, options.randaugment_magnitude
    erase_rate, max_pixels = options.erase_rate, config.pp.max_pixels
    channels, exif, uint8 = wanted.channels, wanted.exif, config.uint8_to_device
    recolored = layers > 0 or jitter > 0

    def transform(raw: Raw, rng: np.random.Generator, out: np.ndarray | None = None) -> np.ndarray:
        choose = functools.partial(images.inception_crop, rng, area=area)
        image = decode_crop(raw, choose, channels=channels, exif=exif, max_pixels=max_pixels)
        if mirror and rng.random() < 0.5:
            image = images.flip(image)
        if not (uint8 or recolored):
            image = image.astype(np.float32)
        image = images.resize(image, wanted.crop, out=None if recolored else out)
        if jitter > 0:
            image = augment.color_jitter(image, rng, jitter)
        if layers > 0:
            image = augment.randaugment(image, rng, layers, magnitude)
        if erase_rate > 0 and rng.random() < erase_rate:
            image = augment.random_erase(image, rng)
        if uint8:
            return np.ascontiguousarray(image)
        return images.normalize(image, wanted.mean, wanted.std)

    return transform
