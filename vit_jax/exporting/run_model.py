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
        """The pixels of an image file, 8-bit h w c, upright if the card's `exif` asks for it."""
        from PIL import Image, ImageOps

        mode = {1: "L", 3: "RGB", 4: "RGBA"}[self.card["channels"]]
        with Image.open(path) as image:
            if self.card["preprocessing"].get("exif"):
                image = ImageOps.exif_transpose(image)
            pixels = np.asarray(image.convert(mode))
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    def prepare(self, image: np.ndarray | jax.Array) -> jax.Array:
        """An 8-bit image h w c as the model takes it: resized, cropped, normalised."""
        about = self.card["preprocessing"]
        image = jnp.asarray(image, jnp.float32)
        crop, resize = about["crop"], about["resize"]
        size = resize if isinstance(resize, list) else crop
        if isinstance(resize, int):  # the shorter side, with the crop's shape
            large = [round(side * resize / min(crop)) for side in crop]
            sides = list(zip(image.shape[:2], large, strict=True))
            factor = max(new / old for old, new in sides)
            size = [max(int(old * factor), new) for old, new in sides]
        method = "cubic" if about["interpolation"] == "bicubic" else "linear"
        antialias = about["interpolation"] != "bilinear"
        image = jax.image.resize(image, (*size, image.shape[2]), method, antialias=antialias)
        y, x = (round((side - new) / 2) for side, new in zip(size, crop, strict=True))
        image = jnp.clip(image[y : y + crop[0], x : x + crop[1]], 0, 255) / 255
        return (image - jnp.array(about["mean"])) / jnp.array(about["std"])


def main(paths: Sequence[str]) -> None:
    model = Model(pathlib.Path(__file__).parent)
    names = model.card["class_names"]
    for path in paths:
        row = model([model.read(path)])[0]
        for i in np.argsort(-row)[:5]:
            print(f"{path}  {row[i]:7.2%}  {names[i] if names else f'class {i}'}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python run_model.py IMAGE …")
    main(sys.argv[1:])
