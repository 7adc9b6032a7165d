"""The card: what a checkpoint says about itself, as plain JSON.

    {"format": 1, "model": {…fields of the model…}, "num_classes": 1000, "class_names": […] or null,
     "image_size": [h, w], "grid": [h, w], "channels": 3, "preprocessing": {…} or null,
     "source": "…", "versions": {…}, "metrics": {…}, "data": {…}}

With it, a path is all that `predict`, `evaluate`, `explain` and `convert` need. `preprocessing` is
what `vit_jax.data.eval_transform` takes: `resize` (the shorter side before a centre crop, or [h, w]
exactly, or null: straight to the crop), `crop` [h, w], `interpolation`, `channels`, then (x / 255 -
mean) / std per channel; `exif` says whether the camera's rotation is applied first. `data`, which
only our own training writes, is what it was trained on: the options of `config.DATA_SET`.
"""

import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax.checkpoint.inspection import count_blocks
from vit_jax.models import MlpMixer, VisionTransformer
from vit_jax.models.hybrid import stem_stride

FORMAT = 1
INTERPOLATIONS = ("bilinear", "bilinear_antialias", "bicubic")
_REQUIRED = ("format", "model", "num_classes", "class_names", "image_size", "grid", "channels")
_REQUIRED += ("preprocessing", "source", "versions", "metrics")
# How a model is computed is the reader's choice, not a property of the weights.
_NOT_IN_A_CARD = ("dtype", "attention_kernel", "scan", "remat", "encoder", "num_classes")
# Fields beyond the reference's, which a card leaves out at their defaults.
_OURS = ("position", "num_registers", "patch_norm", "qkv_bias", "gelu", "norm_eps", "layer_scale")
_OURS += ("fc_norm", "distilled")

Card = dict[str, Any]
Grid = tuple[int, int]


def make_card(
    *,
    model: Mapping[str, Any],
    num_classes: int | None,
    grid: Sequence[int] | None,
    class_names: Sequence[str] | None = None,
    channels: int = 3,
    preprocessing: Mapping[str, Any] | None = None,
    source: str = "",
    metrics: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Card:
    """A valid card; the image size follows from the grid. `model` is the model's configuration."""
    if isinstance(model, ml_collections.ConfigDict):
        model = model.to_dict()
    fields = {
        name: value
        for name, value in model.items()
        if name not in _NOT_IN_A_CARD
        and value is not None
        and not (name in _OURS and value == getattr(VisionTransformer, name))
    }
    card = {
        "format": FORMAT,
        "model": _plain(fields),
        "num_classes": num_classes or 0,
        "class_names": list(class_names) if class_names is not None else None,
        "image_size": None,
        "grid": [int(n) for n in grid] if grid is not None else None,
        "channels": channels,
        "preprocessing": _complete(preprocessing, channels),
        "source": source,
        "versions": {name: _version(name) for name in ("vit_jax", "jax", "flax")},
        "metrics": _plain(metrics or {}),
    }
    if data is not None:
        card["data"] = _plain(data)
    if grid is not None:
        strides = patch_stride(card["model"])
        card["image_size"] = [n * s for n, s in zip(card["grid"], strides, strict=True)]
    check_card(card)
    return card


def _complete(preprocessing: Mapping[str, Any] | None, channels: int) -> dict[str, Any] | None:
    """With the channels, and null for a resize that is the crop itself."""
    if preprocessing is None:
        return None
    plain = {"channels": channels, "resize": None, **_plain(preprocessing)}
    if plain.get("resize") == plain.get("crop"):
        plain["resize"] = None
    return plain


def check_card(card: Any, *, where: str = "The card") -> None:
    """One error with everything that is wrong with it."""
    if not isinstance(card, Mapping):
        raise ValueError(f"{where} is not a card: {type(card).__name__} instead of a JSON object.")
    if card.get("format") != FORMAT:
        raise ValueError(
            f"{where} has format {card.get('format')!r}, and this vit_jax reads format {FORMAT}. "
            "A newer vit_jax may have written it; upgrade, or convert it there."
        )
    problems = [f"{key!r} is missing" for key in _REQUIRED if key not in card]
    names, num_classes = card.get("class_names"), card.get("num_classes")
    if not isinstance(num_classes, int) or num_classes < 0:
        problems.append(f"num_classes is {num_classes!r}, not a count")
    elif names is not None and len(names) != num_classes:
        problems.append(f"there are {len(names)} class names for {num_classes} classes")
    for key in ("image_size", "grid"):
        if (size := card.get(key)) is not None and not _is_size(size):
            problems.append(f"{key} is {size!r}, not [height, width]")
    problems += _preprocessing_problems(card.get("preprocessing"))
    if not problems:
        try:
            model_from_card(card)
        except (TypeError, ValueError, KeyError) as e:
            problems.append(f"its model cannot be built ({e})")
    if problems:
        raise ValueError(f"{where} is not a valid card: {'; '.join(problems)}.")


def model_from_card(card: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """The network that a card describes; `overrides` are fields of the model, dtype= for one."""
    fields = {**_tuples(card["model"]), **overrides}
    module = MlpMixer if "num_blocks" in fields else VisionTransformer
    return module(num_classes=card["num_classes"], **fields)


def parameter_shapes(card: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Flat name to shape of every parameter of the card's model.

    Traces one block and repeats it, so a deep model costs as little as a shallow one.
    """
    model = card["model"]
    if "num_blocks" in model:
        depth, block, short = model["num_blocks"], "MixerBlock", {**model, "num_blocks": 1}
    else:
        transformer = model["transformer"]
        depth, block = transformer["num_layers"], "Transformer/encoderblock"
        short = {**model, "transformer": {**transformer, "num_layers": 1}}
    size = card["image_size"] or patch_stride(model)
    image = jax.ShapeDtypeStruct((1, *size, card["channels"]), jnp.float32)
    module = model_from_card({**card, "model": short})
    variables = jax.eval_shape(lambda x: module.init(jax.random.key(0), x, train=False), image)
    flat = flax.traverse_util.flatten_dict(variables["params"], sep="/")
    shapes = {}
    for name, leaf in flat.items():
        repeats = depth if name.startswith(f"{block}_0/") else 1
        for i in range(repeats):
            shapes[name.replace(f"{block}_0/", f"{block}_{i}/")] = leaf
    return shapes


def patch_stride(model: Mapping[str, Any]) -> Grid:
    """Pixels of the image per step on the grid, (height, width)."""
    resnet = model.get("resnet")
    stride = stem_stride(resnet["num_layers"]) if resnet else 1
    height, width = model["patches"]["size"]
    return stride * height, stride * width


def infer_card(
    shapes: Mapping[str, Any], *, source: str, image_size: Sequence[int] | None = None
) -> Card | None:
    """A card for parameters that came without one (flat names of ours, `.shape`s).

    Shapes tell all but the pooling of a model without a class token (taken to be `gap`), positions
    that are not learned (taken to be none), and the GELU, epsilon and preprocessing, for which
    those of Google's published models are taken. A grid that is not square needs the `image_size`.
    None where the tree is of another model.
    """
    if "stem/kernel" in shapes:
        return _infer_mixer(shapes, source, image_size)
    block = "Transformer/encoderblock_0/"
    needed = ("embedding/kernel", block + "MlpBlock_0/Dense_0/kernel")
    query = shapes.get(block + "MultiHeadDotProductAttention_0/query/kernel")
    if query is None or any(name not in shapes for name in needed):
        return None
    ph, pw, channels, width = shapes["embedding/kernel"].shape
    transformer = {
        "num_layers": count_blocks(shapes, "Transformer/encoderblock"),
        "mlp_dim": shapes[needed[1]].shape[-1],
        "num_heads": query.shape[1],
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    }
    if query.shape[1] * query.shape[2] != width:
        transformer["head_dim"] = query.shape[2]
    model = {
        "patches": {"size": [ph, pw]},
        "hidden_size": width,
        "transformer": transformer,
        "classifier": _classifier(shapes),
        "representation_size": _width_of(shapes, "pre_logits/kernel"),
        "num_registers": _rows_of(shapes, "Transformer/registers"),
        "qkv_bias": block + "MultiHeadDotProductAttention_0/query/bias" in shapes,
        "patch_norm": "embedding/LayerNorm_0/scale" in shapes,
        "layer_scale": 1e-5 if block + "LayerScale_0/scale" in shapes else None,
        "fc_norm": "fc_norm/scale" in shapes,
        "distilled": "dist" in shapes,
        "position": _position(shapes, block),
    }
    if "conv_root/kernel" in shapes:
        model["resnet"] = {"num_layers": _stages(shapes), "width_factor": 1}
        channels = shapes["conv_root/kernel"].shape[2]
    grid = _grid(shapes, int("cls" in shapes) + int("dist" in shapes))
    if image_size is not None:
        grid = [n // s for n, s in zip(image_size, patch_stride(model), strict=True)]
    size = [n * s for n, s in zip(grid, patch_stride(model), strict=True)] if grid else None
    return make_card(
        model=model,
        num_classes=_width_of(shapes, "head/kernel"),
        grid=grid,
        channels=channels,
        preprocessing=google_preprocessing(size, channels) if size else None,
        source=f"inferred from the shapes in {source}",
    )


def google_preprocessing(size: Sequence[int], channels: int = 3) -> dict[str, Any]:
    """As big_vision evaluates what it publishes: the shorter side to 8/7 of the crop (256 for 224),
    antialiased, and the middle of that, values in [-1, 1].
    """
    return {
        "resize": round(min(size) * 8 / 7),
        "crop": list(size),
        "interpolation": "bilinear_antialias",
        "mean": [0.5] * channels,
        "std": [0.5] * channels,
        "exif": False,
    }


def _infer_mixer(shapes: Mapping[str, Any], source: str, image_size: Sequence[int] | None) -> Card:
    ph, pw, channels, width = shapes["stem/kernel"].shape
    tokens, tokens_mlp_dim = shapes["MixerBlock_0/token_mixing/Dense_0/kernel"].shape
    model = {
        "patches": {"size": [ph, pw]},
        "num_blocks": count_blocks(shapes, "MixerBlock"),
        "hidden_dim": width,
        "tokens_mlp_dim": tokens_mlp_dim,
        "channels_mlp_dim": shapes["MixerBlock_0/channel_mixing/Dense_0/kernel"].shape[-1],
    }
    grid = square(tokens)
    if image_size is not None:
        grid = [n // p for n, p in zip(image_size, (ph, pw), strict=True)]
    return make_card(
        model=model,
        num_classes=_width_of(shapes, "head/kernel"),
        grid=grid,
        channels=channels,
        preprocessing=google_preprocessing([grid[0] * ph, grid[1] * pw], channels)
        if grid
        else None,
        source=f"inferred from the shapes in {source}",
    )


def square(num_patches: int) -> Grid | None:
    """The square grid of so many patches, or None."""
    side = math.isqrt(max(0, num_patches))
    return (side, side) if side and side * side == num_patches else None


def _classifier(shapes: Mapping[str, Any]) -> str:
    if "cls" in shapes:
        return "token"
    return "map" if "MAPHead_0/probe" in shapes else "gap"


def _position(shapes: Mapping[str, Any], block: str) -> str:
    if "Transformer/posembed_input/pos_embedding" in shapes:
        return "learned"
    if "Transformer/posembed_input/pos_embedding_x" in shapes:
        return "learned2d"
    return "relative" if block + "relative_position_bias/offsets" in shapes else "none"


def _grid(shapes: Mapping[str, Any], num_leading: int) -> Grid | None:
    if table := shapes.get("Transformer/posembed_input/pos_embedding"):
        return square(table.shape[1] - num_leading)
    columns = shapes.get("Transformer/posembed_input/pos_embedding_x")
    rows = shapes.get("Transformer/posembed_input/pos_embedding_y")
    return (rows.shape[0], columns.shape[0]) if columns and rows else None


def _stages(shapes: Mapping[str, Any]) -> list[int]:
    stages = []
    while units := len(
        {n.split("/")[1] for n in shapes if n.startswith(f"block{len(stages) + 1}/")}
    ):
        stages.append(units)
    return stages


def _width_of(shapes: Mapping[str, Any], name: str) -> int | None:
    return shapes[name].shape[-1] if name in shapes else None


def _rows_of(shapes: Mapping[str, Any], name: str) -> int:
    return shapes[name].shape[1] if name in shapes else 0


def _preprocessing_problems(preprocessing: Any) -> list[str]:
    if preprocessing is None:
        return []
    if not isinstance(preprocessing, Mapping):
        return [f"preprocessing is {preprocessing!r}, not a JSON object"]
    problems = []
    if preprocessing.get("interpolation") not in INTERPOLATIONS:
        given = preprocessing.get("interpolation")
        problems.append(f"interpolation is {given!r}, not one of {', '.join(INTERPOLATIONS)}")
    if not _is_size(preprocessing.get("crop")):
        problems.append(f"crop is {preprocessing.get('crop')!r}, not [height, width]")
    resize = preprocessing.get("resize")
    is_side = isinstance(resize, int) and resize > 0
    if resize is not None and not _is_size(resize) and not is_side:
        problems.append(f"resize is {resize!r}, neither a side nor [height, width]")
    for key in ("mean", "std"):
        values = preprocessing.get(key)
        if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
            problems.append(f"{key} is {values!r}, not a list of numbers")
    return problems


def _is_size(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(isinstance(n, int) and n > 0 for n in value)


def _plain(value: Any) -> Any:
    """The value in JSON's own types, and nothing for a field that is not set."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples that models are made with, so that equal models compare equal."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
