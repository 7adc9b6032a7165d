"""The good files that are damaged: tiny models in every format, pictures in every format.

    FOLDER/checkpoints/NAME/…    a checkpoint each; `checkpoint_at` says what to open of it
    FOLDER/pictures/NAME         an image file each

Made anew for each run, so that a bare clone is enough. Same numbers each time; only Orbax names its
files at random.
"""

import dataclasses
import functools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from PIL import Image
from safetensors.numpy import load_file, save_file

from vit_jax import checkpoint, models
from vit_jax.aliases import Params
from vit_jax.checkpoint.card import Card
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
# Models that each layout can hold, beside the plain one.
_LUCIDRAINS = {"qkv_bias": False, "patch_norm": True, "gelu": "erf", "norm_eps": 1e-5}
_DINOV2 = {"layer_scale": 1e-5, "num_registers": 2, "gelu": "erf"}
_SIGLIP = {"classifier": "map", "norm_eps": 1e-6}
_DEIT = {"distilled": True, "gelu": "erf"}
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
    card = _card(_FIELDS)
    _make_npz(folder, card, _params(card))
    _make_safetensors(folder, card, _params(card))
    checkpoint.save(_params(card), folder / "orbax", card=card, to="orbax")
    with RunCheckpoints(folder / "run", keep=2, best_metric="accuracy") as run:
        for step in (1, 2):
            state = TrainState(jnp.int32(step), jax.tree.map(jnp.asarray, _params(card)), ())
            run.save(step, state, card=dataclasses.replace(card, metrics={"accuracy": 0.5}))


def _make_npz(folder: Path, card: Card, params: Params) -> None:
    """Google's of each generation, compressed ones, and ours."""

    def path(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        return folder / name / "model.npz"

    checkpoint.save(params, plain := path("npz"))
    with np.load(plain) as file:
        official = dict(file)
    np.savez_compressed(path("npz_compressed"), **official)
    in_optimizer = {f"opt/target/{name}": array for name, array in official.items()}
    np.savez(path("npz_optimizer"), **in_optimizer, **{"opt/state/step": np.array(7)})
    np.savez(path("npz_stacked"), **_big_vision(official))
    checkpoint.save(params, path("npz_card"), card=card)
    names = tuple(f"{i}" * 14_000 for i in range(5))
    long = dataclasses.replace(card, class_names=names)
    checkpoint.save(params, path("npz_long_card"), card=long)
    half = jax.tree.map(lambda array: array.astype(ml_dtypes.bfloat16), params)
    checkpoint.save(half, path("npz_bfloat16"), card=card)
    mixer = _card(_MIXER)
    checkpoint.save(_params(mixer), path("npz_mixer"), card=mixer)


def _make_safetensors(folder: Path, card: Card, params: Params) -> None:
    """In other libraries' layouts; only `timm` has a card of ours inside."""
    (folder / "timm").mkdir()
    (folder / "lucidrains").mkdir()
    checkpoint.save(params, folder / "timm" / "model.safetensors", card=card, to="timm")
    models_of = {
        "timm_folder": ("timm", _FIELDS),
        "timm_deit": ("timm", _FIELDS | _DEIT),
        "hf": ("hf", _FIELDS),
        "hf_sharded": ("hf", _FIELDS),
        "hf_dinov2": ("hf", _FIELDS | _DINOV2),
        "hf_siglip": ("hf", _FIELDS | _SIGLIP),
        "lucidrains/model.safetensors": ("lucidrains", _FIELDS | _LUCIDRAINS),
    }
    for name, (to, fields) in models_of.items():
        features_only = {"num_classes": 0} if name in ("hf_dinov2", "hf_siglip") else {}
        card = _card(fields | features_only)
        checkpoint.save(_params(card), folder / name, card=card, to=to)
        file = folder / name / "model.safetensors" if (folder / name).is_dir() else folder / name
        save_file(load_file(file), file)  # without the card
    _shard(folder / "hf_sharded")
    about = {"size": {"height": 12, "width": 12}, "do_resize": True, "do_center_crop": True}
    about |= {"crop_size": 12, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    for name in ("hf", "hf_sharded"):
        (folder / name / "preprocessor_config.json").write_text(json.dumps(about))
    arguments = {"image_size": 12, "patch_size": 4, "num_classes": 5, "dim": 8, "depth": 1}
    arguments |= {"heads": 2, "dim_head": 4, "mlp_dim": 12}
    (folder / "lucidrains" / "model.json").write_text(json.dumps({"kwargs": arguments}))


def _card(fields: dict[str, Any]) -> Card:
    num_classes = fields.get("num_classes", 5)
    model = models.build_model({k: v for k, v in fields.items() if k != "num_classes"}, num_classes)
    names = tuple("abcde") if num_classes else None
    preprocessing = google_preprocessing((12, 12))
    return Card(model, (3, 3), class_names=names, preprocessing=preprocessing, source="fuzz")


def _params(card: Card) -> Params:
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
    *(("RGB", suffix, {}) for suffix in ("avif", "jp2", "eps", "pdf")),
    *(("P", "blp", {}), ("1", "xbm", {}), ("1", "msp", {})),
)
