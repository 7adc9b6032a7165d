"""Every kind of image becomes what a person sees, and the reference's pixels where it has them."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from vit_jax.data.decode import decode, decode_crop, image_size

REFERENCE_FILES = [
    "jpeg_420",
    "jpeg_444",
    "jpeg_progressive",
    "jpeg_gray",
    "jpeg_cmyk",
    "jpeg_tiny",
    "png_rgb",
    "png_gray",
    "png_palette",
    "png_gray16",
    "png_rgba_opaque",
    "bmp",
    "gif",
]


@pytest.fixture(scope="module")
def pixels(golden):
    return np.load(golden / "data" / "pixels.npz")


def test_every_recorded_file_is_compared(pixels):
    assert {name.split("/")[0] for name in pixels} == set(REFERENCE_FILES)


@pytest.mark.parametrize("name", REFERENCE_FILES)
def test_files_become_rgb_bytes(pixels, name):
    image = decode(pixels[f"{name}/file"].tobytes())
    assert image.dtype == np.uint8 and image.shape[2] == 3


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "TIFF"])
def test_lossless_formats_keep_every_pixel(picture, encoded, kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    assert (decode(encoded(picture(), kind, **options)) == picture()).all()


def test_a_wrong_extension_does_not_matter_because_content_decides(picture, encoded, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(encoded(picture(), "PNG"))
    assert (decode(path.read_bytes()) == picture()).all()


def test_gray_becomes_three_equal_channels(picture, encoded):
    image = decode(encoded(picture(), "JPEG", mode="L"))
    assert (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_one_channel_models_see_gray(picture, encoded, kind):
    image = decode(encoded(picture(), kind), channels=1)
    expected = np.asarray(Image.fromarray(picture()).convert("L"))
    assert image.shape == (20, 30, 1)
    assert np.abs(image[..., 0].astype(int) - expected).max() <= (0 if kind == "PNG" else 6)


def test_transparent_parts_are_white_as_on_a_page(encoded):
    clear = np.zeros((4, 6, 4), np.uint8)
    clear[:, :3] = (10, 20, 30, 255)
    image = decode(encoded(clear))
    assert (image[:, :3] == (10, 20, 30)).all() and (image[:, 3:] == 255).all()


def test_half_transparent_pixels_mix_with_white(encoded):
    half = np.full((2, 2, 4), (0, 100, 200, 128), np.uint8)
    expected = (128 * np.array([0, 100, 200]) + 127 * 255) / 255
    assert np.abs(decode(encoded(half)) - expected).max() <= 1


def test_transparency_survives_in_a_four_channel_model(encoded):
    half = np.full((2, 2, 4), (0, 100, 200, 128), np.uint8)
    assert (decode(encoded(half), channels=4) == half).all()


def test_palette_transparency_is_white_too():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((0, 0), 1)
    stream = io.BytesIO()
    image.save(stream, "PNG", transparency=0)
    pixels = decode(stream.getvalue())
    assert (pixels[0, 0] == (0, 0, 255)).all() and (pixels[1:] == 255).all()


def test_sixteen_bits_keep_the_upper_eight(encoded):
    deep = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    assert (decode(encoded(deep))[..., 0] == deep >> 8).all()


def test_bilevel_images_are_black_and_white(picture, encoded):
    assert set(np.unique(decode(encoded(picture(), mode="1")))) == {0, 255}


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(kind):
    frames = [Image.new("RGB", (5, 4), color) for color in ("red", "lime", "blue")]
    stream = io.BytesIO()
    options = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(stream, kind, save_all=True, append_images=frames[1:], duration=9, **options)
    assert (decode(stream.getvalue()) == (255, 0, 0)).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_upright_when_asked(picture, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    Image.fromarray(picture()).save(stream, kind, exif=exif)
    turned = decode(stream.getvalue(), exif=True)
    with Image.open(stream) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    # Pillow's JPEG transform differs from ours by a few steps; a wrong turn by far more.
    assert turned.shape == expected.shape
    assert np.abs(turned.astype(int) - expected).mean() < 2


def test_exif_is_ignored_by_default_as_in_the_reference(picture):
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.fromarray(picture()).save(stream, "JPEG", exif=exif)
    assert decode(stream.getvalue()).shape == (20, 30, 3)


def test_arrays_pass_through_when_they_have_the_channels():
    spectral = np.zeros((4, 5, 12), np.uint8)
    assert decode(spectral, channels=12) is spectral
    assert decode(np.full((4, 5), 7, np.uint8)).tolist() == np.full((4, 5, 3), 7).tolist()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_truncated_files_are_refused(picture, encoded, kind):
    data = encoded(picture(200, 300), kind)
    with pytest.raises(ValueError):
        decode(data[: len(data) // 2])


@pytest.mark.parametrize("data", [b"", b"<html>not found</html>", b"\xff\xd8\xff" + b"0" * 60])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(ValueError):
        decode(data)


def test_harmless_damage_is_forgiven_as_in_the_reference(picture, encoded):
    data = bytearray(encoded(picture(200, 300), "JPEG"))
    middle = len(data) * 3 // 4
    data[middle : middle + 4] = b"\xff\x77\xff\x88"
    assert decode(bytes(data)).shape == (200, 300, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_too_many_pixels_are_refused_before_decoding(encoded, picture, kind):
    data = encoded(picture(100, 101), kind)
    with pytest.raises(ValueError, match=r"101 x 100; at most 10,000 pixels"):
        decode(data, max_pixels=10_000)
    assert decode(data, max_pixels=10_100).shape == (100, 101, 3)


def test_a_bomb_that_only_claims_its_size_is_refused(encoded):
    data = bytearray(encoded(np.zeros((4, 4), np.uint8), "PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2  # 3.6 billion pixels in a hundred bytes
    with pytest.raises(ValueError):
        decode(bytes(data))


def test_absurdly_long_images_are_refused(encoded):
    with pytest.raises(ValueError, match="65,535 to a side"):
        decode(encoded(np.zeros((1, 70_000), np.uint8), "PNG"))


def test_image_size_reads_the_header_alone(picture, encoded):
    for kind in ("JPEG", "PNG"):
        assert image_size(encoded(picture(40, 70), kind)[:-20]) == (40, 70)


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_crop_read_in_part_equals_one_of_the_whole(picture, encoded, options, subsampling, mode):
    noise = np.random.default_rng(0).integers(0, 40, (75, 90, 3), dtype=np.uint8)
    data = encoded(picture(75, 90) // 2 + noise, "JPEG", mode, subsampling=subsampling, **options)
    whole = decode(data)
    for bottom in (1, 7, 8, 13, 14, 15, 16, 17, 31, 32, 60, 74, 75):
        y = bottom // 3
        part = decode_crop(data, lambda h, w, y=y, b=bottom: (y, 5, b - y, 70))
        assert (part == whole[y:bottom, 5:75]).all(), bottom


def test_a_crop_is_chosen_from_the_true_size(picture, encoded):
    seen = []
    for kind in ("JPEG", "PNG"):
        decode_crop(encoded(picture(40, 70), kind), lambda *size: seen.append(size) or (0, 0, 5, 5))
    assert seen == [(40, 70), (40, 70)]


def test_a_crop_of_a_lying_photograph_is_chosen_upright(picture):
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.fromarray(picture(40, 70)).save(stream, "JPEG", exif=exif)
    part = decode_crop(stream.getvalue(), lambda h, w: (0, 0, h, w), exif=True)
    assert part.shape == (70, 40, 3)


def test_a_crop_of_a_truncated_or_huge_image_is_refused(picture, encoded):
    data = encoded(picture(200, 300), "JPEG")
    with pytest.raises(ValueError):
        decode_crop(data[:-40], lambda h, w: (0, 0, h, w))
    with pytest.raises(ValueError, match="at most 59,999 pixels"):
        decode_crop(data, lambda h, w: (0, 0, 8, 8), max_pixels=59_999)
