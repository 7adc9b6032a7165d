"""The good files that are damaged: tiny models in every format, pictures in every format.

    FOLDER/checkpoints/NAME/…    a checkpoint each; `checkpoint_at` says what to open of it
    FOLDER/pictures/NAME         an image file each

Made anew for each run, so that a bare clone is enough. Same numbers each time; only Orbax names its
files at random.
"""

import functools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from PIL import Image
from safetensors.numpy import load_file, save_file

from vit_jax import checkpoint, models
from vit_jax.checkpoint.card import Card
from vit_jax.models.kinds import flatten
from vit_jax.preprocessing import google_preprocessing
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.training.state import TrainState

_FIELDS: dict[str, Any] = {
    "patches": {"size": (4, 4)},
    "hidden_size": 8,
    "transformer": {
        "num_layers": 1,
        "num_heads": 2,
        "mlp_dim": 12,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    },
    "classifier": "token",
}
_LUCIDRAINS = {"qkv_bias": False, "patch_norm": True, "gelu": "erf", "norm_eps": 1e-5}
_MIXER = {
    "patches": {"size": (4, 4)},
    "num_blocks": 1,
    "hidden_dim": 8,
    "tokens_mlp_dim": 6,
    "channels_mlp_dim": 10,
}


Files = Mapping[str, bytes]  # content by path


class Seeds(NamedTuple):
    folder: Path
    checkpoints: Mapping[str, Files]
    pictures: Files

    def __hash__(self) -> int:
        return hash(self.folder)


@functools.cache
def read(folder: Path) -> Seeds:
    """All that `make` wrote, in memory."""
    checkpoints = {path.name: _files(path) for path in sorted((folder / "checkpoints").iterdir())}
    return Seeds(folder, checkpoints, _files(folder / "pictures"))


def _files(folder: Path) -> Files:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def make(folder: Path) -> None:
    """Writes all of them below a folder."""
    _make_checkpoints(folder / "checkpoints")
    _make_pictures(folder / "pictures")


def checkpoint_at(folder: Path) -> Path:
    """What a command would be given of a checkpoint: its file, or its folder."""
    if folder.name.startswith("npz"):
        return folder / "model.npz"
    return folder / "model.safetensors" if folder.name in ("timm", "lucidrains") else folder


def _make_checkpoints(folder: Path) -> None:
    vit, mixer = _card(_FIELDS), _card(_MIXER)
    params = _params(vit)
    names = flatten(params)

    def path(name: str, file: str) -> Path:
        (folder / name).mkdir(parents=True, exist_ok=True)
        return folder / name / file

    checkpoint.save(params, path("npz", "model.npz"))
    with np.load(path("npz", "model.npz")) as file:
        official = dict(file)
    np.savez_compressed(path("npz_compressed", "model.npz"), **official)
    optimizer = {f"opt/target/{name}": array for name, array in official.items()}
    np.savez(path("npz_optimizer", "model.npz"), **optimizer, **{"opt/state/step": np.array(7)})
    np.savez(path("npz_stacked", "model.npz"), **_big_vision(official))
    checkpoint.save(params, path("npz_card", "model.npz"), card=vit)
    long_names = tuple(f"{i}" * 14_000 for i in range(5))
    checkpoint.save(params, path("npz_long_card", "model.npz"), card=_card(_FIELDS, long_names))
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in names.items()}
    half_tree = checkpoint.recover_tree(list(half), list(half.values()))
    checkpoint.save(half_tree, path("npz_bfloat16", "model.npz"), card=vit)
    checkpoint.save(_params(mixer), path("npz_mixer", "model.npz"), card=mixer)

    checkpoint.save(params, path("timm", "model.safetensors"), card=vit, to="timm")
    checkpoint.save(params, folder / "timm_folder", card=vit, to="timm")
    checkpoint.save(params, folder / "hf", card=vit, to="hf")
    checkpoint.save(params, folder / "hf_sharded", card=vit, to="hf")
    for name in ("timm_folder", "hf", "hf_sharded"):  # strangers' files have no card of ours
        file = path(name, "model.safetensors")
        save_file(load_file(file), file)
    _shard(folder / "hf_sharded")
    about = {"size": {"height": 12, "width": 12}, "do_resize": True, "do_center_crop": True}
    about |= {"crop_size": 12, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    for name in ("hf", "hf_sharded"):
        path(name, "preprocessor_config.json").write_text(json.dumps(about))
    lucid = _card(_FIELDS | _LUCIDRAINS)
    checkpoint.save(
        _params(lucid), path("lucidrains", "model.safetensors"), card=lucid, to="lucidrains"
    )
    save_file(
        load_file(path("lucidrains", "model.safetensors")), path("lucidrains", "model.safetensors")
    )
    arguments = {"image_size": 12, "patch_size": 4, "num_classes": 5, "dim": 8, "depth": 1}
    arguments |= {"heads": 2, "dim_head": 4, "mlp_dim": 12}
    path("lucidrains", "model.json").write_text(json.dumps({"kwargs": arguments}))

    checkpoint.save(params, folder / "orbax", card=vit, to="orbax")
    with RunCheckpoints(folder / "run", keep=2, best_metric="accuracy") as run:
        for step in (1, 2):
            state = TrainState(np.int32(step), params, (), None)  # pyright: ignore
            run.save(step, jax.tree.map(jax.numpy.asarray, state), card=vit)


def _card(fields: dict[str, Any], names: tuple[str, ...] = ("a", "b", "c", "d", "e")) -> Card:
    model = models.build_model(fields, 5)
    preprocessing = google_preprocessing((12, 12))
    return Card(model, (3, 3), class_names=names, preprocessing=preprocessing, source="fuzz")


def _params(card: Card) -> Any:
    rng = np.random.default_rng(0)
    shapes = card.parameter_shapes()
    arrays = [rng.standard_normal(leaf.shape, np.float32) for leaf in shapes.values()]
    return checkpoint.recover_tree(list(shapes), arrays)


def _big_vision(official: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As big_vision saves it: prefixed, blocks stacked, positions at the root for patches only."""
    stacked = {}
    for name, array in official.items():
        if "posembed" in name:
            name, array = "pos_embedding", array[:, 1:]
        elif "encoderblock_0" in name:
            name, array = name.replace("encoderblock_0", "encoderblock"), array[None]
        stacked[f"params/img/{name}"] = array
    return stacked


def _shard(folder: Path) -> None:
    """model.safetensors in two files and an index."""
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, files = sorted(arrays), {}
    for i in range(2):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({name: arrays[name] for name in names[i::2]}, folder / file)
        files |= dict.fromkeys(names[i::2], file)
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _make_pictures(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng = random.Random(0)
    smooth = np.add.outer(np.arange(20) * 9, np.arange(24) * 3).astype(np.uint8)
    color = np.dstack([smooth, smooth[::-1], np.full_like(smooth, 77)])
    pictures = {
        "L": Image.fromarray(smooth),
        "RGB": Image.fromarray(color),
        "RGBA": Image.fromarray(np.dstack([color, smooth])),
        "P": Image.fromarray(color).quantize(16),
        "I;16": Image.fromarray(smooth.astype(np.uint16) * 257),
        "1": Image.fromarray(smooth).convert("1"),
        "CMYK": Image.fromarray(color).convert("CMYK"),
    }
    tag = Image.Exif()
    tag[0x0112] = 6
    frames = [Image.fromarray(smooth // 2)]
    for mode, suffix, options in _PICTURES:
        name = f"{mode.replace(';', '')}_{rng.getrandbits(16):04x}.{suffix}"
        options = {k: {"exif": tag, "append_images": frames}.get(k, v) for k, v in options.items()}
        pictures[mode].save(folder / name, **options)


# Mode, format, options. Beside what we read there are some of Pillow's that we do not.
_PICTURES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((mode, "png", {}) for mode in ("L", "RGB", "RGBA", "P", "I;16", "1")),
    *(("P", "png", {"transparency": 3}), ("RGB", "png", {"exif": 6})),
    *(("RGB", "png", {"save_all": True, "append_images": 1}),),
    *((mode, "jpg", {}) for mode in ("L", "RGB", "CMYK")),
    *(("RGB", "jpg", {"progressive": True}), ("RGB", "jpg", {"exif": 6, "subsampling": 2})),
    *((mode, "gif", {}) for mode in ("L", "P")),
    *(("L", "gif", {"save_all": True, "append_images": 1}),),
    *((mode, "bmp", {}) for mode in ("L", "RGB", "P", "1")),
    *(("RGB", "webp", {}), ("RGBA", "webp", {"lossless": True}), ("RGB", "webp", {"exif": 6})),
    *(("RGB", "webp", {"save_all": True, "append_images": 1}),),
    *(
        (mode, "tiff", {"compression": c})
        for mode in ("RGB", "1", "I;16")
        for c in ("raw", "tiff_lzw")
    ),
    *(("RGB", "tiff", {"compression": "jpeg"}), ("1", "tiff", {"compression": "group4"})),
    *(("RGB", suffix, {}) for suffix in ("ppm", "tga", "pcx", "sgi", "ico", "icns", "qoi", "dds")),
    *(("RGB", suffix, {}) for suffix in ("avif", "jp2", "eps", "im", "pdf")),
    *(("P", "blp", {}), ("1", "xbm", {}), ("1", "msp", {})),
)
