"""The published models, one row each, and `get_model`.

Sizes are from the ViT paper (Dosovitskiy et al. 2021, table 1), AugReg (Steiner et al. 2021), MLP-
Mixer (Tolstikhin et al. 2021), Scaling ViTs (Zhai et al. 2022) and SoViT (Alabdulmohsin et al.
2023).
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import ml_collections
from ml_collections.config_dict import placeholder

from vit_jax.models.kinds import Fields, Model, Shapes, build_model, module_with, recognise
from vit_jax.models.vit import Encoder, EncoderFields


class Size(NamedTuple):
    hidden_size: int
    num_layers: int
    mlp_dim: int
    num_heads: int


SIZES = {
    "testing": Size(10, 1, 10, 2),
    "tiny": Size(80, 4, 240, 4),
    "Ti": Size(192, 12, 768, 3),
    "S": Size(384, 12, 1536, 6),
    "B": Size(768, 12, 3072, 12),
    "L": Size(1024, 24, 4096, 16),
    "H": Size(1280, 32, 5120, 16),
    "So400m": Size(1152, 27, 4304, 16),
    "g": Size(1408, 40, 6144, 16),
    "G": Size(1664, 48, 8192, 16),
}


class ViT(NamedTuple):
    size: str
    patch: int
    dropout_rate: float = 0.0
    classifier: str = "token"
    resnet: tuple[int, ...] | None = None  # units per stage; () is the root alone
    resnet_width: float = 1


class Mixer(NamedTuple):
    patch: int
    num_blocks: int
    hidden_dim: int
    tokens_mlp_dim: int
    channels_mlp_dim: int


MODELS: dict[str, ViT | Mixer] = {
    "ViT-Ti_16": ViT("Ti", 16),
    "ViT-S_16": ViT("S", 16),
    "ViT-S_32": ViT("S", 32),
    "ViT-B_8": ViT("B", 8),
    "ViT-B_16": ViT("B", 16),
    "ViT-B_32": ViT("B", 32),
    "ViT-L_16": ViT("L", 16, dropout_rate=0.1),
    "ViT-L_32": ViT("L", 32),
    "ViT-H_14": ViT("H", 14, dropout_rate=0.1),
    "ViT-So400m_14": ViT("So400m", 14, classifier="map"),
    "ViT-g_14": ViT("g", 14),
    "ViT-G_14": ViT("G", 14),
    "ViT-S_16-gap-norep": ViT("S", 16, classifier="gap"),
    "ViT-S_32-gap-norep": ViT("S", 32, classifier="gap"),
    "ViT-B_16-gap-norep": ViT("B", 16, classifier="gap"),
    "ViT-B_32-gap-norep": ViT("B", 32, classifier="gap"),
    "R+ViT-Ti_16": ViT("Ti", 8, resnet=()),
    "R26+ViT-S_32": ViT("S", 1, resnet=(2, 2, 2, 2)),
    "R26+ViT-B_32": ViT("B", 1, resnet=(2, 2, 2, 2)),
    "R50+ViT-B_16": ViT("B", 1, dropout_rate=0.1, resnet=(3, 4, 9)),
    "R50+ViT-L_32": ViT("L", 1, dropout_rate=0.1, resnet=(3, 4, 6, 3)),
    "Mixer-B_16": Mixer(16, 12, 768, 384, 3072),
    "Mixer-B_32": Mixer(32, 12, 768, 384, 3072),
    "Mixer-L_16": Mixer(16, 24, 1024, 512, 4096),
    # ours: the checkpoint bundled in checkpoints/, one token for 4×4 pixels
    "R+ViT-tiny_4": ViT("tiny", 1, classifier="gap", resnet=(), resnet_width=0.5),
    "testing": ViT("testing", 16, dropout_rate=0.1),
    "testing-unpooled": ViT("testing", 16, dropout_rate=0.1, classifier="unpooled"),
}


def get_model(name: str, *, num_classes: int | None, **overrides: Any) -> Model:
    """A published model, by its name in MODEL_CONFIGS or AUGREG_CONFIGS.

    `overrides` are fields of the model; a nested one is merged: transformer={'dropout_rate': 0.1}.
    """
    config = model_config(name)
    config.unlock()
    for field, value in overrides.items():
        nested = config.get(field)
        if isinstance(nested, ml_collections.ConfigDict) and value is not None:
            with nested.unlocked():
                nested.update(value)
        else:
            config[field] = value
    return build_model(config.to_dict(), num_classes)


def model_config(name: str) -> ml_collections.ConfigDict:
    """A copy of a published model's configuration, free to change."""
    for table in (MODEL_CONFIGS, AUGREG_CONFIGS):
        if name in table:
            return table[name].copy_and_resolve_references()
    known = [*MODEL_CONFIGS, *AUGREG_CONFIGS]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if near:
        raise ValueError(f"No model {name!r}. Did you mean {' or '.join(near)}?")
    raise ValueError(f"No model {name!r}. There are: {', '.join(MODEL_CONFIGS)}.")


def find_model(name: str) -> str:
    """The model a short name stands for: 'b16' is ViT-B_16, 'r50l32' is R50+ViT-L_32."""
    if name in MODEL_CONFIGS:
        return name
    for fold in (str, str.lower):
        found = [full for full in MODEL_CONFIGS if fold(_short(full)) == fold(_short(name))]
        if found:
            return found[0]
    return model_config(name).model_name  # an AugReg name, or an error with near ones


def _short(name: str) -> str:
    return re.sub(r"ViT|[-_+]", "", name)


def full_model_config(name: str) -> ml_collections.ConfigDict:
    """A published model's configuration with all other fields of the model at their defaults, so
    that each can be set from the command line.
    """
    config = model_config(name)
    config.dtype = "float32"
    _add_defaults(config, module_with(config), ("num_classes", "encoder"))
    if "transformer" in config:
        of_model = [field.name for field in dataclasses.fields(EncoderFields)]
        _add_defaults(config.transformer, Encoder, (*of_model, "grid", "final_norm"))
    return config


def _add_defaults(config: ml_collections.ConfigDict, module: type, left_out: Sequence[str]) -> None:
    for field in dataclasses.fields(module):
        is_set = field.default is dataclasses.MISSING or config.get(field.name) is not None
        if is_set or field.name in (*left_out, "parent", "name"):
            continue
        kinds = [kind for kind in typing.get_args(field.type) if kind in (int, float, str)]
        optional = field.default is None and kinds  # None for now; of this type once it is set
        config[field.name] = placeholder(kinds[0]) if optional else field.default


def guess_model(shapes: Shapes) -> str | None:
    """The published model that has these parameter shapes, or None."""
    found = recognise(shapes)
    if found is None:
        return None
    identity = _identity(found.fields)
    configs = ((name, config.to_dict()) for name, config in MODEL_CONFIGS.items())
    return next((name for name, fields in configs if _identity(fields) == identity), None)


def _identity(config: Fields) -> tuple[Hashable, ...]:
    """What distinguishes published models: sizes, and what the head sees."""
    if "transformer" not in config:
        return *(config[name] for name in Mixer._fields[1:]), config["patches"]["size"]
    transformer, resnet = config["transformer"], config.get("resnet")
    return (
        *(transformer[name] for name in ("num_layers", "mlp_dim", "num_heads")),
        config["hidden_size"],
        tuple(config["patches"]["size"]),
        {"token_unpooled": "token", "unpooled": "gap"}.get(
            config["classifier"], config["classifier"]
        ),
        tuple(resnet["num_layers"]) if resnet else None,
    )


def _vit_config(name: str, row: ViT) -> ml_collections.ConfigDict:
    size = SIZES[row.size]
    config = ml_collections.ConfigDict(
        {
            "model_name": name,
            "patches": {"size": (row.patch, row.patch)},
            "hidden_size": size.hidden_size,
            "transformer": {
                "num_layers": size.num_layers,
                "mlp_dim": size.mlp_dim,
                "num_heads": size.num_heads,
                "dropout_rate": row.dropout_rate,
                "attention_dropout_rate": 0.0,
            },
            "classifier": row.classifier,
            "representation_size": None,
        }
    )
    if row.resnet is not None:
        config.resnet = {"num_layers": row.resnet, "width_factor": row.resnet_width}
    return config


def _mixer_config(name: str, row: Mixer) -> ml_collections.ConfigDict:
    fields = row._asdict()
    patch = fields.pop("patch")
    return ml_collections.ConfigDict(
        {"model_name": name, "patches": {"size": (patch, patch)}, **fields}
    )


MODEL_CONFIGS: dict[str, ml_collections.ConfigDict] = {
    name: _vit_config(name, row) if isinstance(row, ViT) else _mixer_config(name, row)
    for name, row in MODELS.items()
}

# The same models under the names AugReg files carry: B_16, R26_S_32, …
AUGREG_CONFIGS: dict[str, ml_collections.ConfigDict] = {
    name.replace("+", "_").replace("ViT-", ""): config
    for name, config in MODEL_CONFIGS.items()
    if "ViT-" in name
}
