"""Runs an exported Vision Transformer. Needs jax, numpy and flatbuffers, but not vit_jax.

    python run_model.py IMAGE …         (reading image files also needs Pillow)

model = Model("the directory this file is in")
probabilities = model(images)           # 8-bit arrays h w c of any size, or float32 b h w c
probabilities = model([model.read("cat.jpg")])
"""

import json
import pathlib
import sys
from collections.abc import Sequence

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # that vit_jax reads
MAX_PIXELS = 100_000_000
ORIENTATION = 0x0112  # EXIF's tag


class Model:
    """`card` says what the model is: class_names, image_size, preprocessing."""

    def __init__(self, folder: str | pathlib.Path):
        folder = pathlib.Path(folder)
        self.card = json.loads((folder / "card.json").read_text())
        exported = jax.export.deserialize(bytearray((folder / "model.jax").read_bytes()))
        self.logits = jax.jit(exported.call)  # float32 b h w c -> b k; compiles for each b

    def __call__(self, images: np.ndarray | jax.Array | Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities, b k, of prepared images (float) or raw ones (8-bit; may be a list)."""
        if not isinstance(images, np.ndarray | jax.Array) or images.dtype == np.uint8:
            images = jnp.stack([self.prepare(image) for image in images])
        several = self.card.get("data", {}).get("loss") == "sigmoid"
        logits = self.logits(images)
        return np.asarray(jax.nn.sigmoid(logits) if several else jax.nn.softmax(logits))

    def read(self, path: str | pathlib.Path) -> np.ndarray:
        """The pixels of an image file, 8-bit h w c, upright if the card's `exif` asks for it.

        As vit_jax reads it: transparency over white, of 16 bits the upper eight, of an animation
        the first frame, of CMYK in a JPEG the light that its inks leave.
        """
        from PIL import Image, ImageOps

        channels = self.card["channels"]
        with Image.open(path, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise ValueError(f"it has more than {MAX_PIXELS:,} pixels")
            image = opened.convert(opened.mode)  # a copy, all of it read
            inks = opened.mode == "CMYK" and opened.format != "TIFF"
            if inks:  # of which Pillow takes all to be stored inverted, as Adobe's are
                light = np.asarray(image).astype(np.uint16)
                light = 255 - light if "adobe" in opened.info else light
                image = Image.fromarray((light[..., :3] * light[..., 3:] // 255).astype(np.uint8))
            elif image.mode.startswith("I"):
                values = np.asarray(image)
                if values.min() < 0 or values.max() > 65_535:
                    raise ValueError("it has more than 16 bits a channel")
                image = Image.fromarray((values.astype(np.uint32) >> 8).astype(np.uint8))
            elif channels != 4 and (image.mode[-1] in "Aa" or "transparency" in image.info):
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            image = image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
            if self.card["preprocessing"].get("exif"):
                image.getexif()[ORIENTATION] = opened.getexif().get(ORIENTATION, 1)
                image = ImageOps.exif_transpose(image)
        pixels = np.asarray(image)
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    def prepare(self, image: np.ndarray | jax.Array) -> jax.Array:
        """An 8-bit image h w c as the model takes it: resized, cropped, normalised."""
        about = self.card["preprocessing"]
        image = jnp.asarray(image, jnp.float32)
        crop, resize = about["crop"], about["resize"]
        size = resize if isinstance(resize, list) else crop
        if isinstance(resize, int):  # the shorter side, with the crop's shape
            height, width = (round(side * resize / min(crop)) for side in crop)
            h, w = image.shape[:2]
            if height * w >= width * h:
                size = [height, max(width, height * w // h)]
            else:
                size = [max(height, width * h // w), width]
        if size[0] * size[1] > max(MAX_PIXELS // 4, 4 * crop[0] * crop[1]):
            raise ValueError(f"it would be resized to {size[1]} x {size[0]} before the crop")
        method = "cubic" if about["interpolation"] == "bicubic" else "linear"
        antialias = about["interpolation"] != "bilinear"
        image = jax.image.resize(image, (*size, image.shape[2]), method, antialias=antialias)
        y, x = (round((side - new) / 2) for side, new in zip(size, crop, strict=True))
        image = jnp.clip(image[y : y + crop[0], x : x + crop[1]], 0, 255) / 255
        return (image - jnp.array(about["mean"])) / jnp.array(about["std"])


def main(paths: Sequence[str]) -> int:
    """Prints the likeliest classes; files that cannot be read are named, and the exit code is 3."""
    model = Model(pathlib.Path(__file__).parent)
    names, code = model.card["class_names"], 0
    for path in paths:
        try:
            row = model([model.read(path)])[0]
        except Exception as error:  # Pillow's are of a dozen kinds
            print(_shown(f"{path}: {error or type(error).__name__}"), file=sys.stderr)
            code = 3
            continue
        for i in np.argsort(-row)[:5]:
            name = names[i] if names else f"class {i}"
            print(_shown(f"{path}  {row[i]:7.2%}  {name}"))
    return code


def _shown(text: str) -> str:
    """Without what a terminal would obey, and what standard output could not encode."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python run_model.py IMAGE …")
    sys.exit(main(sys.argv[1:]))
