"""Pictures of every format, damaged, and prepared in all the ways that commands do it."""

import contextlib
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz import mutations
from benchmarks.fuzz.seeds import Seeds
from benchmarks.fuzz.trial import Trial, Wrong
from vit_jax import data
from vit_jax.config import default_config
from vit_jax.data.decode import image_size
from vit_jax.preprocessing import Preprocessing


def damaged(rng: random.Random, good: Seeds, room: Path) -> Trial:
    """A picture is damaged, and prepared as a command would."""
    name, spare = (rng.choice(list(good.pictures)) for _ in range(2))
    aware = _AWARE.get(Path(name).suffix, mutations.blind)
    damage = aware if rng.random() < 0.6 else mutations.blind
    content = damage(good.pictures[name], good.pictures[spare], rng)
    (room / name).write_bytes(content)
    way = rng.choice(list(_transforms()))
    what = f"{damage.__name__} in {name}, {way}"
    return Trial(what, functools.partial(_prepare, content, way))


_AWARE = {".png": mutations.png_chunk, ".jpg": mutations.jpeg_header}


@functools.cache
def _transforms() -> dict[str, tuple[Callable[[bytes], np.ndarray], tuple[int, ...]]]:
    """Ways from a file to a model's input, and the shapes that they promise."""

    def evaluation(h: int, w: int, c: int, resize: Any, interpolation: str, exif: bool = False):
        how = Preprocessing((h, w), resize, interpolation, (0.5,) * c, (0.5,) * c, c, exif)
        return data.eval_transform(how), (h, w, c)

    config = default_config()
    config.pp.crop = 16
    train = data.train_transform(config)
    return {
        "squeezed": evaluation(16, 16, 3, None, "bilinear"),
        "cropped": evaluation(16, 16, 3, 18, "bilinear_antialias"),
        "wide": evaluation(16, 24, 3, (18, 26), "bicubic"),
        "gray": evaluation(16, 16, 1, 18, "bilinear", exif=True),
        "transparent": evaluation(16, 16, 4, 16, "bicubic", exif=True),
        "training": (lambda raw: train(raw, np.random.default_rng(0)), (16, 16, 3)),
        "size": (lambda raw: np.array(image_size(raw)), (2,)),
    }


def _prepare(content: bytes, way: str) -> str:
    transform, shape = _transforms()[way]
    image = transform(content)
    if image.shape != shape or not np.isfinite(image).all():
        raise Wrong(f"a result of {image.shape} where {shape} was promised, or not finite")
    return "read"


def prepare_all(content: bytes) -> str:
    """Every way, although most refuse a damaged picture."""
    for way in _transforms():
        with contextlib.suppress(ValueError, OSError):
            _prepare(content, way)
    return "read"
