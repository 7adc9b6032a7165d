"""Images made to do harm: each becomes a picture or one ValueError, soon and in little memory."""

import contextlib
import io
import itertools
import os
import resource
import signal
import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from vit_jax.data import decode as decoding
from vit_jax.data import open_source
from vit_jax.data.decode import decode, decode_crop, image_size, read_image
from vit_jax.data.files import find_images, read_batches
from vit_jax.data.sources import first_of_each_class
from vit_jax.data.transforms import eval_transform, train_transform
from vit_jax.preprocessing import google_preprocessing

AT_224 = google_preprocessing((224, 224))
MODES = {  # that Pillow can write
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "L", "RGBA", "P", "1", "LA"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("RGB", "L", "RGBA", "P", "1"),
    "GIF": ("RGB", "L", "RGBA", "1"),
    "TIFF": ("RGB", "L", "RGBA", "P", "1", "CMYK", "LA"),
}
OTHER_KINDS = ["AVIF", "BLP", "DDS", "EPS", "ICO", "PCX", "PPM", "QOI", "SGI", "TGA", "XBM"]


@pytest.fixture
def soon():
    """What hangs fails."""

    def give_up(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("shape", [(1, 3000), (30_000, 1)])
def test_a_line_is_not_blown_up_to_gigabytes(encoded, shape):
    data = encoded(np.zeros(shape, np.uint8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"resized to \d+ x \d+; at most 25,000,000 pixels"):
        eval_transform(AT_224)(data)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # kB; it was 1.9 and 7.6 GB


def test_a_panorama_is_resized_as_ever(picture, encoded):
    image = eval_transform(AT_224)(encoded(picture(40, 4000)))
    whole = Image.fromarray(picture(40, 4000)).resize((25_600, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((12_688, 16, 12_912, 240)))
    assert np.abs(image - (expected - 127.5) / 127.5).max() < 1e-6


def test_a_model_of_large_images_sees_photographs(picture, config_for):
    large = google_preprocessing((2900, 2900))  # 33 million pixels of a photograph before the crop
    small = np.zeros((2, 2, 3), np.uint8)
    assert eval_transform(large, max_pixels=100)(small).shape == (2900, 2900, 3)


def test_training_takes_a_line_because_it_crops_first(encoded, config_for):
    line = encoded(np.zeros((1, 3000), np.uint8))
    image = train_transform(config_for("x"))(line, np.random.default_rng(0))
    assert image.shape == (8, 8, 3)


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_formats_that_we_do_not_read_are_not_opened(kind, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("it ran Ghostscript"))
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {kind}")
    stream = io.BytesIO()
    mode = {"BLP": "P", "XBM": "1"}.get(kind, "RGB")
    Image.new(mode, (32, 32)).save(stream, kind)
    for read in (decode, image_size):
        with pytest.raises(ValueError, match="not an image in a format we read: JPEG, PNG"):
            read(stream.getvalue())


@pytest.mark.parametrize("error", [KeyError(5), struct.error(), MemoryError(), AttributeError()])
def test_whatever_a_reader_raises_is_a_damaged_image(encoded, picture, monkeypatch, error):
    def fail(*_, **__):
        raise error

    data = encoded(picture())
    monkeypatch.setattr(Image, "open", fail)
    for read in (decode, image_size):
        with pytest.raises(ValueError, match=rf"the image is damaged \({type(error).__name__}"):
            read(data)


def seeds(picture, encoded):
    """Small files of every format, and in each the kinds of pixel that it can hold."""
    for kind, modes in MODES.items():
        yield from (encoded(picture(9, 11), kind, mode) for mode in modes)
    for kind in ("PNG", "TIFF"):
        yield encoded(picture(9, 11)[:, :, 0].astype(np.uint16) << 8, kind)
    tags = Image.Exif()
    tags[0x0112] = 6
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        yield encoded(picture(9, 11), kind, exif=tags)
    for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield encoded(picture(9, 11), "TIFF", compression=name)
    yield encoded(picture(9, 11), "JPEG", progressive=True)
    yield encoded(picture(9, 11), "PNG", save_all=True, append_images=[Image.new("RGB", (11, 9))])


def damaged(data, rng):
    """A few bytes changed, removed or added, or all after one cut off."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, length = int(rng.integers(len(data))), int(rng.integers(1, 5))
        new = rng.choice([b"", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff", rng.bytes(length)])
        if rng.random() < 0.1:
            del data[at + 1 :]
        data[at : at + length] = new or (b"" if len(data) > 9 else b"\0")
    return bytes(data)


@pytest.mark.filterwarnings("ignore:::PIL")
def test_a_mutated_image_is_a_picture_or_a_value_error(picture, encoded, capfd):
    rng = np.random.default_rng(0)
    originals = list(seeds(picture, encoded))
    assert len(originals) > 35
    read = failed = 0
    for number in range(2500):
        data = damaged(originals[number % len(originals)], rng)
        for look in (
            lambda data: decode(data, exif=True),
            lambda data: decode_crop(data, lambda h, w: (0, 0, h, w), channels=1),
            image_size,
        ):
            try:
                look(data)
                read += 1
            except ValueError:
                failed += 1
    capfd.readouterr()  # libtiff's own words
    assert read > 500 and failed > 500


def chunk(name, content):
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


@pytest.mark.parametrize("name", [b"zTXt", b"iCCP", b"iTXt"])
def test_a_bomb_in_a_comment_does_not_go_off(encoded, picture, name):
    data = encoded(picture())
    packed = zlib.compress(bytes(200 << 20), 1)  # 200 MiB in 1 MB
    head = b"a\0\1\0\0\0" if name == b"iTXt" else b"a\0\0"
    bomb = data[:33] + chunk(name, head + packed) + data[33:]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(ValueError):
        decode(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once(encoded, picture):
    data = encoded(picture(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    assert decode(data[:-2] + data[last:-2] * 50 + data[-2:]).shape == (20, 30, 3)
    with pytest.raises(ValueError, match=r"the JPEG has 100,0\d\d scans; at most 100"):
        decode(data[:-2] + data[last:-2] * 100_000 + data[-2:])


def test_of_a_million_frames_only_the_first_is_looked_at(soon):
    frames = [Image.new("P", (1, 1), value) for value in (0, 1)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 255, 0, 0])
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], duration=9)
    data = stream.getvalue()
    start = data.index(b"\x21\xf9")  # of the second frame
    assert decode(data[:-1] + data[start:-1] * 1_000_000 + b";").shape == (1, 1, 3)


def test_more_than_sixteen_bits_are_refused_and_not_wrapped_around(encoded):
    with pytest.raises(ValueError, match="more than 16 bits"):
        decode(encoded(np.full((4, 4), 70_000, np.int32), "TIFF"))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16"])
def test_large_pictures_are_converted_in_bands_with_the_same_result(
    picture, encoded, mode, monkeypatch
):
    if mode == "I;16":
        data = encoded(picture()[:, :, 0].astype(np.uint16) << 8, "TIFF")
    else:
        data = encoded(picture(), "PNG", mode, **({"transparency": 3} if mode == "P" else {}))
    for channels in (1, 3, 4):
        whole = decode(data, channels=channels)
        monkeypatch.setattr(decoding, "_BAND", 7 * 30)
        assert (decode(data, channels=channels) == whole).all()
        monkeypatch.undo()


def test_a_large_canvas_in_a_small_file_takes_little_more_than_its_pixels(encoded, picture):
    data = bytearray(encoded(picture(), "GIF", "L"))
    data[6:10] = struct.pack("<HH", 8_000, 8_000)  # with the same small frame on it
    with pytest.raises(ValueError, match=r"25,000,000 pixels .a quarter of pp.max_pixels"):
        decode(bytes(data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decode(bytes(data), max_pixels=4 * 64_000_000).shape == (8_000, 8_000, 3)
    # kB: 64 of gray, 192 of the result, and a band; it was 700
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 480_000


# Files that are no files


@pytest.fixture
def odd_files(tmp_path, write_image):
    """A folder with one image among things that only have an image's name."""
    write_image(tmp_path / "odd" / "cat" / "good.png")
    folder = tmp_path / "odd" / "cat"
    os.mkfifo(folder / "fifo.png")
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "nowhere.png").symlink_to("nothing")
    (folder / "itself.png").symlink_to("itself.png")
    return folder


def test_what_is_no_file_is_named_and_the_rest_is_done(odd_files, soon):
    paths = list(find_images([str(odd_files)]))
    (batch,) = read_batches(paths, eval_transform(AT_224), (224, 224, 3), 8)
    assert batch.paths == [str(odd_files / "good.png")]
    assert batch.errors == {
        str(odd_files / "device.png"): "Not a regular file",
        str(odd_files / "fifo.png"): "Not a regular file",
        str(odd_files / "itself.png"): "Too many levels of symbolic links",
        str(odd_files / "nowhere.png"): "No such file or directory",
    }


def test_examples_for_probes_are_those_that_can_be_read(odd_files, config_for, soon):
    source = open_source(config_for(odd_files.parent, test_fraction=0.0))
    assert len(source) == 5
    assert [row.path for row in first_of_each_class(source, 3).rows] == ["cat/good.png"]


def test_a_file_too_large_to_be_an_image_is_not_read(tmp_path):
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OSError, match="File too large"):
        read_image(tmp_path / "huge.png")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.fixture
def maze(tmp_path, write_image):
    """Twelve folders, each with links to all of them: more paths than can be walked."""
    folders = [tmp_path / "maze" / f"f{number}" for number in range(12)]
    for number, folder in enumerate(folders):
        write_image(folder / f"{number}.png", number)
    for folder, other in itertools.product(folders, folders):
        (folder / f"to_{other.name}").symlink_to(other)
    (tmp_path / "maze" / "f0" / "far.png").symlink_to(folders[5] / "5.png")
    return tmp_path / "maze"


@pytest.mark.parametrize("name", ["{maze}", "{maze}/**/*.png", "{maze}/**", "{maze}/**/**/*.png"])
def test_links_in_a_circle_end_and_every_file_is_found_once(maze, name, soon):
    found = list(find_images([name.format(maze=maze)]))
    real = [str(maze / f"f{number}" / f"{number}.png") for number in range(12)]
    assert found == sorted([*real, str(maze / "f0" / "far.png")])
