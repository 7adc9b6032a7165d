"""Pictures and small data sets that tests make for themselves."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.config import default_config


def draw_picture(height: int = 20, width: int = 30, seed: int = 0) -> np.ndarray:
    """Smooth colours, so that JPEG changes them little; `h w 3`."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encode_picture(array: np.ndarray, kind: str = "PNG", mode: str | None = None, **options):
    image = Image.fromarray(array)
    stream = io.BytesIO()
    (image.convert(mode) if mode else image).save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def picture() -> Callable[..., np.ndarray]:
    return draw_picture


@pytest.fixture
def encoded() -> Callable[..., bytes]:
    return encode_picture


@pytest.fixture
def write_image() -> Callable[..., None]:
    """Writes a picture, its seed telling it from others, and the folders above it."""

    def write(path: Path, seed: int = 0, kind: str = "PNG") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_picture(draw_picture(seed=seed), kind))

    return write


@pytest.fixture
def config_for() -> Callable:
    """A small configuration for a data set: `config_for(folder, batch=4, **{"pp.crop": 16})`."""

    def make(dataset, **options):
        config = default_config()
        config.dataset = str(dataset)
        config.pp.crop = 8
        config.batch = config.batch_eval = 4
        config.reader_threads = 2
        config.update_from_flattened_dict(options)
        return config

    return make


@pytest.fixture
def numbered(tmp_path, write_image) -> Path:
    """A folder of twenty images in two classes, with train and test."""
    for index in range(20):
        split = "train" if index < 13 else "test"
        write_image(tmp_path / "numbered" / split / f"class{index % 2}" / f"{index}.png", index)
    return tmp_path / "numbered"
