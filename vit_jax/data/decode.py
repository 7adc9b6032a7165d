"""From the bytes of an image file to what a person sees, as an array of 8-bit values.

JPEG goes through libjpeg-turbo with the settings TensorFlow uses, which gives the reference's
pixels bit for bit; every other format through Pillow. What cannot be read raises ValueError.
"""

import io
import struct

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 100_000_000
MAX_SIDE = 65_535  # the largest a JPEG can say

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image.swapaxes(0, 1)[::-1, ::-1],
    8: lambda image: image.swapaxes(0, 1)[::-1],
}


def decode(
    image: bytes | np.ndarray,
    *,
    channels: int = 3,
    exif: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """An encoded file, or an array that is one already, as uint8 `h w c`.

    `channels` is 3 (RGB), 1 (gray) or 4 (RGBA); an array that has that many channels is taken as
    it is, so other counts work there. Transparency is laid over white, 16 bits keep the upper
    eight, and of an animation the first frame counts. `exif` turns photographs upright; the
    reference leaves them lying.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image, channels)
    if channels not in (1, 3, 4):
        raise ValueError(f"image files have 1, 3 or 4 channels; pp.channels is {channels}")
    if not image:
        raise ValueError("the file is empty")
    try:
        if image[:3] == b"\xff\xd8\xff":
            return _decode_jpeg(image, channels, exif, max_pixels)
        return _decode_with_pillow(image, channels, exif, max_pixels)
    except UnidentifiedImageError as error:
        raise ValueError("not an image in a format that Pillow knows") from error
    except (OSError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error


def image_size(image: bytes | np.ndarray) -> tuple[int, int]:
    """Height and width, from the header alone, before any EXIF turn."""
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    if image[:3] == b"\xff\xd8\xff":
        return simplejpeg.decode_jpeg_header(image)[:2]
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return opened.height, opened.width
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error


def _decode_jpeg(data: bytes, channels: int, exif: bool, max_pixels: int) -> np.ndarray:
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    _refuse_absurd_size(height, width, max_pixels)
    ink = colorspace in ("CMYK", "YCCK")
    target = "CMYK" if ink else {1: "GRAY", 3: "RGB", 4: "RGBA"}[channels]
    try:
        image = simplejpeg.decode_jpeg(data, target, fastdct=True)
    except ValueError as error:
        # Libjpeg's warnings arrive as errors. Like the reference, forgive all but lost pixels.
        if "premature end of jpeg" in str(error).lower():
            raise
        image = simplejpeg.decode_jpeg(data, target, fastdct=True, strict=False)
    if ink:
        image = _from_array(_ink_to_light(image, inverted=b"Adobe" in data[:65_536]), channels)
    if exif and b"Exif" in data[:4096]:
        with Image.open(io.BytesIO(data)) as opened:
            image = _turn_upright(image, opened)
    return image


def _ink_to_light(image: np.ndarray, inverted: bool) -> np.ndarray:
    """CMYK to RGB as TensorFlow does; files with Adobe's marker store the inks inverted."""
    light = image if inverted else 255 - image
    return (light[..., :3].astype(np.uint16) * light[..., 3:] // 255).astype(np.uint8)


def _decode_with_pillow(data: bytes, channels: int, exif: bool, max_pixels: int) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as opened:
        _refuse_absurd_size(opened.height, opened.width, max_pixels)
        opened.load()
        target = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
        image = np.asarray(_eight_bit(opened, keep_alpha=channels == 4).convert(target))
        if image.ndim == 2:
            image = image[:, :, None]
        return _turn_upright(image, opened) if exif else image


def _eight_bit(image: Image.Image, keep_alpha: bool) -> Image.Image:
    """As 8 bits a channel, with any transparency laid over white."""
    if image.mode.startswith("I"):  # 16-bit gray
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    transparent = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    if not transparent or keep_alpha:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def _turn_upright(image: np.ndarray, opened: Image.Image) -> np.ndarray:
    turn = _UPRIGHT.get(opened.getexif().get(_ORIENTATION_TAG, 1), _UPRIGHT[1])
    return np.ascontiguousarray(turn(image))


def _from_array(image: np.ndarray, channels: int) -> np.ndarray:
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or 0 in image.shape:
        raise ValueError(f"an image array is h w or h w c; this one has shape {image.shape}")
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8:
        raise ValueError(f"an image array holds 8- or 16-bit values; this one holds {image.dtype}")
    if image.shape[2] == channels:
        return image
    if image.shape[2] not in (1, 3, 4) or channels not in (1, 3, 4):
        raise ValueError(f"an image with {image.shape[2]} channels cannot become one of {channels}")
    picture = _eight_bit(Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image), False)
    converted = np.asarray(picture.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return converted[:, :, None] if channels == 1 else converted


def _refuse_absurd_size(height: int, width: int, max_pixels: int) -> None:
    if height < 1 or width < 1 or max(height, width) > MAX_SIDE or height * width > max_pixels:
        raise ValueError(
            f"the image says it is {width} x {height}; at most {max_pixels:,} pixels "
            f"and {MAX_SIDE:,} a side are accepted (pp.max_pixels)"
        )
