"""From the bytes of an image file to what a person sees, as an array of 8-bit values.

JPEG goes through libjpeg-turbo with the settings TensorFlow uses, which gives the reference's
pixels bit for bit; the other FORMATS through Pillow. Whatever is wrong with a file is a ValueError.
"""

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from vit_jax.untrusted import read_file

Box = tuple[int, int, int, int]  # y x h w

MAX_BYTES = 1 << 30  # of a file: 100 million pixels of 16-bit RGB are less, even uncompressed
MAX_PIXELS = 100_000_000
MAX_SIDE = 65_535  # the largest a JPEG can say
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # of Pillow's forty; EPS starts Ghostscript

_MOST_PER_BYTE = 100  # pixels; the strongest compression of a photograph that anyone would use
_BAND = 1 << 24  # pixels
_MOST_SCANS = 100  # of a JPEG: usual are 1 to 10, and each takes time for the whole picture
_JPEG = b"\xff\xd8\xff"  # how such a file begins
_ORIENTATION_TAG = 0x0112
_SWAPPED, _FLIPPED_Y, _FLIPPED_X = (5, 6, 7, 8), (3, 4, 7, 8), (2, 3, 6, 7)  # by what it says


def read_image(path: str | os.PathLike[str]) -> bytes:
    """The content of an image file, for `decode`."""
    if Path(path).stat().st_size > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
    return read_file(path, MAX_BYTES)


def decode(
    image: bytes | np.ndarray,
    *,
    channels: int = 3,
    exif: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """An encoded file, or an array of pixels, as uint8 `h w c`.

    `channels` is 3 (RGB), 1 (gray) or 4 (RGBA); an array may have any number, if it is the number
    asked for. Transparency is laid over white, of 16 bits the upper eight are kept, and of an
    animation the first frame. `exif` turns photographs upright, which the reference does not.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image, channels)
    if channels not in (1, 3, 4):
        raise ValueError(f"image files have 1, 3 or 4 channels; pp.channels is {channels}")
    if not image:
        raise ValueError("the file is empty")
    with _one_kind_of_error():
        if image.startswith(_JPEG):
            return _decode_jpeg(image, channels, exif, max_pixels)
        return _decode_with_pillow(image, channels, exif, max_pixels)


def decode_crop(
    image: bytes | np.ndarray,
    choose: Callable[[int, int], Box],
    *,
    channels: int = 3,
    exif: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """`decode`, cropped to the box that `choose` returns for a height and a width.

    A JPEG is read only as far down as the box, which saves a seventh of the time on random crops.
    """
    if not isinstance(image, np.ndarray) and not exif and _ends_as_jpeg(image):
        height, width = image_size(image)
        _refuse_absurd_size(height, width, image, max_pixels)
        box = choose(height, width)
        kept = _keep_rows(image, box[0] + box[2])
        decoded = decode(kept, channels=channels, max_pixels=max_pixels)
    else:
        decoded = decode(image, channels=channels, exif=exif, max_pixels=max_pixels)
        box = choose(*decoded.shape[:2])
    y, x, h, w = box
    return decoded[y : y + h, x : x + w]


def image_size(image: bytes | np.ndarray) -> tuple[int, int]:
    """Height and width, from the header alone, before any EXIF turn."""
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    if image.startswith(_JPEG):
        with contextlib.suppress(ValueError):
            height, width, *_ = simplejpeg.decode_jpeg_header(image)
            return int(height), int(width)
    with _one_kind_of_error(), _open(image) as opened:
        return opened.height, opened.width


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


@contextlib.contextmanager
def _one_kind_of_error() -> Iterator[None]:
    try:
        yield
    except ValueError:
        raise
    except UnidentifiedImageError as error:
        raise ValueError(f"not an image in a format we read: {', '.join(FORMATS)}") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's own words
        raise ValueError(str(error)) from error
    except Exception as error:  # any other is an accident in a reader that a broken file led astray
        raise ValueError(f"the image is damaged ({type(error).__name__}: {error})") from error


def _ends_as_jpeg(data: bytes) -> bool:
    """Whether a JPEG is complete to its last byte; then no warning can mean lost pixels."""
    return data.startswith(_JPEG) and data.endswith(b"\xff\xd9")


def _keep_rows(data: bytes, rows: int) -> bytes:
    """The same JPEG with a header that says it ends soon after `rows`, where that is safe.

    Colour at half resolution is interpolated from up to two rows below, so these are kept too, and
    whole blocks.
    """
    if (found := _only_scan(data)) is None:
        return data
    frame, block = found
    kept = -(-(rows + 2) // block) * block
    if kept >= int.from_bytes(data[frame + 5 : frame + 7], "big"):
        return data
    return data[: frame + 5] + kept.to_bytes(2, "big") + data[frame + 7 :]


def _only_scan(data: bytes) -> tuple[int, int] | None:
    """Of a JPEG that stores its pixels from top to bottom in one scan: where the header of its
    frame begins, and how many rows a block has.
    """
    at, frame, parts, block = 2, 0, 0, 8
    while at + 12 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker in (0xC0, 0xC1):  # one pass, as opposed to the progressive kinds
            frame, parts = at, data[at + 9]
            sampling = data[at + 11 : at + 11 + 3 * parts : 3]
            block = 8 * max((one & 15 for one in sampling), default=1)
        elif marker == 0xDA:  # pixels follow
            return (frame, block) if frame and block and data[at + 4] == parts else None
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _decode_jpeg(data: bytes, channels: int, exif: bool, max_pixels: int) -> np.ndarray:
    if _only_scan(data) is None and (scans := data.count(b"\xff\xda")) > _MOST_SCANS:
        raise ValueError(f"the JPEG has {scans:,} scans; at most {_MOST_SCANS} are accepted")
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # broken, or its colour has a resolution that TurboJPEG does not know
        return _decode_with_pillow(data, channels, exif, max_pixels)
    _refuse_absurd_size(int(height), int(width), data, max_pixels)
    ink = colorspace in ("CMYK", "YCCK")
    target = "CMYK" if ink else {1: "GRAY", 3: "RGB", 4: "RGBA"}[channels]
    try:
        image = simplejpeg.decode_jpeg(data, target, fastdct=True, strict=not _ends_as_jpeg(data))
    except ValueError as error:
        # libjpeg's warnings arrive as errors. Like the reference, forgive all but lost pixels.
        if "premature end of jpeg" in str(error).lower():
            raise
        image = simplejpeg.decode_jpeg(data, target, fastdct=True, strict=False)
    if ink:  # to RGB as TensorFlow does; files with Adobe's marker store the inks inverted
        light = image if b"Adobe" in data[:65_536] else 255 - image
        light = light[..., :3].astype(np.uint16) * light[..., 3:] // 255
        image = _from_array(light.astype(np.uint8), channels)
    if exif and b"Exif" in data[:4096]:
        with _open(data) as opened:
            image = _turn_upright(image, opened)
    return image


def _decode_with_pillow(data: bytes, channels: int, exif: bool, max_pixels: int) -> np.ndarray:
    with _open(data) as opened:
        _refuse_absurd_size(opened.height, opened.width, data, max_pixels)
        opened.load()
        image = _eight_bit(opened, channels)
        return _turn_upright(image, opened) if exif else image


def _eight_bit(picture: Image.Image, channels: int) -> np.ndarray:
    """As 8 bits a channel, with transparency laid over white unless it is asked for.

    A large picture goes row by row, some at a time: on the way a pixel takes up to 20 bytes.
    """
    rows = max(1, _BAND // picture.width)
    if picture.height <= rows:
        return _band_in_eight_bit(picture, channels)
    whole = np.empty((picture.height, picture.width, channels), np.uint8)
    for y in range(0, picture.height, rows):
        band = picture.crop((0, y, picture.width, min(y + rows, picture.height)))
        whole[y : y + rows] = _band_in_eight_bit(band, channels)
    return whole


def _band_in_eight_bit(picture: Image.Image, channels: int) -> np.ndarray:
    alpha = picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info
    if picture.mode.startswith("I"):  # 16-bit gray
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > 65_535:
            raise ValueError("the image has more than 16 bits a channel")
        picture = Image.fromarray((values.astype(np.uint32) >> 8).astype(np.uint8))
    elif alpha and channels != 4:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    image = np.asarray(picture.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return image[:, :, None] if channels == 1 else image


def _turn_upright(image: np.ndarray, opened: Image.Image) -> np.ndarray:
    said = opened.getexif().get(_ORIENTATION_TAG, 1)
    image = image.swapaxes(0, 1) if said in _SWAPPED else image
    image = image[::-1] if said in _FLIPPED_Y else image
    image = image[:, ::-1] if said in _FLIPPED_X else image
    return np.ascontiguousarray(image)


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
    return _eight_bit(Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image), channels)


def _refuse_absurd_size(height: int, width: int, data: bytes, max_pixels: int) -> None:
    """Of a file too small for a photograph of its size, a quarter of the pixels is believed."""
    pixels = height * width
    limit, accepted = max_pixels, "pp.max_pixels"
    if pixels > _MOST_PER_BYTE * len(data):
        limit //= 4
        accepted = f"a quarter of pp.max_pixels, for a file of {len(data):,} bytes"
    if height < 1 or width < 1 or max(height, width) > MAX_SIDE or pixels > limit:
        raise ValueError(
            f"the image says it is {width} x {height}; at most {limit:,} pixels ({accepted}), "
            f"{MAX_SIDE:,} to a side, are accepted"
        )
