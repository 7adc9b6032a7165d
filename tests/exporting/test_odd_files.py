"""The loader of an exported model prepares odd files exactly as `predict` does, or refuses both."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.reference import golden
from vit_jax.data.decode import decode
from vit_jax.exporting import run_model

SHAPE = (48, 32)  # of all, so that resizing compiles twice only: upright and lying


def _picture(mode):
    """Even 16×16 blocks, which JPEG's two decoders, ours and Pillow's, read almost alike."""
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (3, 2, 4), np.uint8).repeat(16, 0).repeat(16, 1)
    if mode.startswith("I;16"):
        return Image.fromarray(blocks[:, :, 0].astype(np.uint16) * 257)
    if mode == "I":
        return Image.fromarray(blocks[:, :, 0].astype(np.int32) * 257)
    if mode == "F":
        return Image.fromarray(blocks[:, :, 0].astype(np.float32))
    rgba = Image.fromarray(blocks)
    return rgba if mode == "RGBA" else rgba.convert(mode)


def _encoded(picture, kind, **options):
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def _write(mode, kind, **options):
    return _encoded(_picture(mode), kind, **options)


def _deep_png(color_type, channels):
    """A PNG of 16 bits a channel, which Pillow reads but does not write."""

    def chunk(name, content):
        ends = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + ends

    values = np.random.default_rng(6).integers(0, 65536, (*SHAPE, channels), np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", SHAPE[1], SHAPE[0], 16, color_type, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _turned(kind, orientation, mode="RGB"):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return _write(mode, kind, exif=tags)


def _animation(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    more = [_picture("RGB").rotate(180)]
    return _write("RGB", kind, save_all=True, append_images=more, duration=9, **options)


def _files():
    yield from ((f"jpeg {o}", _turned("JPEG", o)) for o in range(1, 9))
    yield from (
        (f"{k} {o}", _turned(k, o)) for k, o in itertools.product(("PNG", "TIFF"), (3, 6, 7))
    )
    yield "webp 6", _turned("WEBP", 6)
    yield "rgba 8", _turned("PNG", 8, "RGBA")
    yield "jpeg gray 6", _turned("JPEG", 6, "L")
    yield "jpeg cmyk", _write("CMYK", "JPEG")
    yield "jpeg cmyk 5", _turned("JPEG", 5, "CMYK")
    yield "jpeg cmyk, not Adobe's", _write("CMYK", "JPEG").replace(b"Adobe", b"Bdobe")
    yield "jpeg progressive", _write("RGB", "JPEG", progressive=True)
    for mode in ("1", "L", "LA", "P", "RGBA", "I;16"):
        yield f"png {mode}", _write(mode, "PNG")
    yield "palette with transparency", _write("P", "PNG", transparency=3)
    yield "palette with several", _write("P", "PNG", transparency=bytes(range(0, 256, 2)))
    yield "gray with transparency", _write("L", "PNG", transparency=200)
    yield "colour with transparency", _write("RGB", "PNG", transparency=(1, 2, 3))
    yield "deep with transparency", _write("I;16", "PNG", transparency=200)
    for color_type, channels in ((2, 3), (4, 2), (6, 4), (0, 1)):
        yield f"png of 16 bits, {channels} channels", _deep_png(color_type, channels)
    yield from ((f"animated {kind}", _animation(kind)) for kind in ("GIF", "PNG", "WEBP"))
    yield "gif with transparency", _write("P", "GIF", transparency=3)
    for mode in ("1", "LA", "RGBA", "CMYK", "I;16", "I", "F"):
        yield f"tiff {mode}", _write(mode, "TIFF")
    yield "webp rgba", _write("RGBA", "WEBP", lossless=True)
    yield "bmp", _write("1", "BMP")


FILES = dict(_files())
REFUSED = {
    "eps": _write("RGB", "EPS"),
    "32 bits": _encoded(Image.fromarray(np.full(SHAPE, 70_000, np.int32)), "TIFF"),
    "cut": _write("RGB", "PNG")[:60],
    "empty": b"",
}


def test_there_are_forty():
    assert len(FILES) >= 40


@pytest.fixture(scope="module", params=[True, False], ids=["upright", "as stored"])
def both(request):
    """The package and the loader, with the card of one model."""
    loaded = vit_jax.load(golden("vit_token").path, preprocessing={"exif": request.param})
    model = object.__new__(run_model.Model)
    model.card = loaded.card.to_json()
    return loaded, model


@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_is_read_and_prepared_as_predict_does(both, name, tmp_path):
    loaded, model = both
    path = tmp_path / "file"
    path.write_bytes(FILES[name])
    off = 2 if "jpeg" in name else 0  # steps of 255 between two decoders
    for channels in (1, 3, 4):
        other = object.__new__(run_model.Model)
        other.card = {**model.card, "channels": channels}
        pixels = other.read(path)
        expected = decode(FILES[name], channels=channels, exif=loaded.preprocessing.exif)
        assert (pixels.shape, pixels.dtype) == (expected.shape, np.uint8)
        assert np.abs(pixels.astype(int) - expected).max() <= off
    difference = np.abs(model.prepare(model.read(path)) - loaded.preprocess(path)[0])
    # Pillow rounds to 8 bits after each of two passes: a step of 2/255 in [-1, 1], twice
    assert difference.max() <= (off + 2.01) * 2 / 255


@pytest.mark.parametrize("name", REFUSED)
def test_what_predict_refuses_the_loader_refuses(both, name, tmp_path):
    loaded, model = both
    path = tmp_path / "file"
    path.write_bytes(REFUSED[name])
    with pytest.raises(ValueError):
        loaded.preprocess(path)
    with pytest.raises((ValueError, OSError)):
        model.read(path)


def test_the_loader_does_not_blow_up_a_line(both):
    model = object.__new__(run_model.Model)
    about = {"crop": [224, 224], "resize": 256, "interpolation": "bilinear_antialias"}
    model.card = {"preprocessing": {**both[1].card["preprocessing"], **about}}
    with pytest.raises(ValueError, match="would be resized to 768000 x 256 before the crop"):
        model.prepare(np.zeros((1, 3000, 3), np.uint8))
