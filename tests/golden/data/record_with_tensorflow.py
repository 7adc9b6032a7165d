"""Records what TensorFlow does to images, so that tests can compare without it.

Run by hand, in an environment with tensorflow-cpu, tensorflow-datasets and pillow:

    python tests/golden/data/record_with_tensorflow.py

`pixels.npz`   image files (bytes), and what the reference's evaluation and training make of them
`crops.npz`    boxes y x h w that tf.image.sample_distorted_bounding_box draws for the reference
`tfrecord/`    a data set of six images written by tensorflow-datasets in its default format
"""

import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

HERE = Path(__file__).parent


def picture(height, width, seed):
    """Smooth colour, hard edges and some noise: resampling mistakes show on each."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC)).copy()
    image[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 60)
    image[::9] = 255 - image[::9]
    noise = rng.integers(-12, 13, image.shape)
    return np.clip(image.astype(int) + noise, 0, 255).astype(np.uint8)


def encoded(array, kind, **options):
    mode = options.pop("mode", None)
    image = Image.fromarray(array)
    if mode:
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def files():
    a = picture(117, 160, 0)
    sixteen = (a[..., 0].astype(np.uint16) << 8) + 77
    return {
        "jpeg_420": encoded(a, "JPEG", quality=88),
        "jpeg_444": encoded(picture(90, 61, 1), "JPEG", quality=95, subsampling=0),
        "jpeg_progressive": encoded(picture(64, 200, 2), "JPEG", progressive=True),
        "jpeg_gray": encoded(a, "JPEG", mode="L"),
        "jpeg_cmyk": encoded(a, "JPEG", mode="CMYK", quality=95),
        "jpeg_tiny": encoded(picture(9, 14, 3), "JPEG"),
        "png_rgb": encoded(picture(75, 50, 4), "PNG"),
        "png_gray": encoded(a, "PNG", mode="L"),
        "png_palette": encoded(picture(40, 60, 5), "PNG", mode="P"),
        "png_gray16": encoded(sixteen, "PNG"),
        "png_rgba_opaque": encoded(picture(30, 30, 6), "PNG", mode="RGBA"),
        "bmp": encoded(picture(33, 47, 7), "BMP"),
        "gif": encoded(picture(33, 47, 8), "GIF"),
    }


def decode(data):
    return tf.io.decode_image(data, channels=3, expand_animations=False)


def record_pixels():
    arrays = {}
    for name, data in files().items():
        image = decode(data)
        height, width = image.shape[:2]
        box = (height // 5, width // 7, height // 2, width // 2)  # y x h w
        part = image[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
        arrays[f"{name}/file"] = np.frombuffer(data, np.uint8)
        arrays[f"{name}/box"] = np.array(box)
        arrays[f"{name}/eval"] = (tf.image.resize(image, [48, 40]).numpy() - 127.5) / 127.5
        arrays[f"{name}/train"] = (tf.image.resize(part, [32, 32]).numpy() - 127.5) / 127.5
    np.savez_compressed(HERE / "pixels.npz", **arrays)


def record_crops(count=4000):
    arrays = {}
    for height, width in [(375, 500), (100, 40), (32, 32)]:

        @tf.function
        def draw(height=height, width=width):
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                [height, width, 3],
                tf.zeros([0, 0, 4], tf.float32),
                area_range=(0.05, 1.0),
                min_object_covered=0,
                use_image_if_no_bounding_boxes=True,
            )
            return tf.concat([begin[:2], size[:2]], 0)

        tf.random.set_seed(0)
        arrays[f"{height}x{width}"] = np.stack([draw().numpy() for _ in range(count)]).astype(
            np.int16
        )
    np.savez_compressed(HERE / "crops.npz", **arrays)


class TinyPictures(tfds.core.GeneratorBasedBuilder):
    """Six pictures of two classes."""

    name = "tiny_pictures"
    VERSION = tfds.core.Version("1.0.0")

    @classmethod
    def get_metadata(cls):
        return tfds.core.dataset_metadata.DatasetMetadata("Test.", "", None, [])

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            }
        )
        return tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("image", "label"), description="Test."
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(4), "test": self._generate_examples(2)}

    def _generate_examples(self, count):
        for index in range(count):
            yield index, {"image": picture(24, 20 + index, index), "label": index % 2}


def record_tfrecord():
    builder = TinyPictures(data_dir=tempfile.mkdtemp())
    builder.download_and_prepare()
    target = HERE / "tfrecord" / "tiny_pictures" / "1.0.0"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(builder.data_dir, target)


if __name__ == "__main__":
    record_pixels()
    record_crops()
    record_tfrecord()
