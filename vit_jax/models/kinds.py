"""The kinds of model, one row each: how to build one, how deep it is, how to recognise it.

Code that must treat kinds differently asks this table; adding a kind is adding a row.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax.aliases import Params, Size
from vit_jax.models.fields import field_problems
from vit_jax.models.hybrid import stem_stride
from vit_jax.models.layers import ATTENTION
from vit_jax.models.mixer import MlpMixer
from vit_jax.models.vit import VisionTransformer

Model = VisionTransformer | MlpMixer
Fields = Mapping[str, Any]  # of a model, by name
MOST_PATCHES = 2**16  # of an image; attention takes the square of them


class Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


Shapes = Mapping[str, Shaped]  # by flat parameter name, `Transformer/encoderblock_0/…`


class Found(NamedTuple):
    """A model, as far as its parameter shapes show it."""

    fields: Fields
    grid: Size | None
    channels: int


class Kind(NamedTuple):
    module: type[Model]
    block: str  # blocks are named {block}_0, {block}_1, … in the parameter tree
    num_layers: Callable[[Any], int]
    shortened: Callable[[Any], Model]  # the same with one block, and two units in a ResNet's stage
    from_shapes: Callable[[Shapes], Found | None]
    any_resolution: bool  # whether it runs at other sizes than it was trained at
    tokens: str  # the module whose output is the tokens before they are pooled


def find_kind(model: Model) -> Kind:
    return next(kind for kind in KINDS if isinstance(model, kind.module))


def build_model(fields: Fields, num_classes: int | None) -> Model:
    """The model with these fields, of the kind whose required fields are all there.

    Raises one ValueError with every field that has a wrong value, or is none of the model's.
    """
    module = module_with(fields)
    if problems := field_problems(module, {**fields, "num_classes": num_classes}):
        raise ValueError("; ".join(problems))
    return module(num_classes=num_classes, **fields)


def module_with(fields: Iterable[str]) -> type[Model]:
    """The class of the model that has fields of these names."""
    missing = {kind.module: _required(kind.module) - set(fields) for kind in KINDS}
    nearest = min(missing, key=lambda module: len(missing[module]))
    if missing[nearest]:
        raise ValueError(f"a {nearest.__name__} lacks {', '.join(sorted(missing[nearest]))}")
    return nearest


def _required(module: type[Model]) -> set[str]:
    required = {f.name for f in dataclasses.fields(module) if f.default is dataclasses.MISSING}
    return required - {"num_classes", "parent"}


def model_fields(model: Model) -> Fields:
    """A model as its card describes it, in JSON's types: the fields that are not at their default,
    except the number of classes and those that say how it is computed (the reader's choice).
    """
    left_out = (*HOW_COMPUTED, "num_classes", "parent", "name")
    return {
        field.name: _plain(getattr(model, field.name))
        for field in dataclasses.fields(model)
        if field.name not in left_out and getattr(model, field.name) != field.default
    }


HOW_COMPUTED = ("dtype", "attention_kernel", "scan", "remat", "encoder")


def _plain(value: Any) -> Any:
    """Dicts and lists; entries that are None are left out."""
    if isinstance(value, Mapping | ml_collections.ConfigDict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value


def num_layers(model: Model) -> int:
    return find_kind(model).num_layers(model)


def patch_stride(model: Model) -> Size:
    """Pixels of the image per step on the grid of patches, (height, width)."""
    resnet = getattr(model, "resnet", None)
    stride = stem_stride(resnet["num_layers"]) if resnet else 1
    height, width = model.patches["size"]
    return stride * height, stride * width


def grid_at(size: Sequence[int], model: Model, *, floor: bool = False) -> Size:
    """The patches, (height, width), that an image of this size is cut into; with `floor`, a rest
    that is smaller than a patch is ignored.
    """
    (height, width), (down, right) = size, patch_stride(model)
    if not floor and (height % down or width % right):
        near = [max(s, round(n / s) * s) for n, s in ((height, down), (width, right))]
        raise ValueError(
            f"A resolution of {height}×{width} cannot be cut into patches of {down}×{right}; "
            f"{near[0]}×{near[1]} can."
        )
    grid = height // down, width // right
    if grid[0] * grid[1] > MOST_PATCHES:
        raise ValueError(
            f"A resolution of {height}×{width} is {grid[0] * grid[1]:,} patches of {down}×{right}; "
            f"at most {MOST_PATCHES:,} are possible."
        )
    return grid


def parameter_shapes(
    model: Model, image_size: Size | None, channels: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Flat name to shape of every parameter.

    Traces one block and repeats it, and two units of each stage of a ResNet, so a deep model costs
    as little as a shallow one.
    """
    kind, size = find_kind(model), image_size or patch_stride(model)
    if by_pairs := getattr(model, "position", None) in ("sincos2d", "relative"):
        size = patch_stride(model)  # tracing would make a table, of all pairs of patches even
    image = jax.ShapeDtypeStruct((1, *size, channels), jnp.float32)
    short, num_units = kind.shortened(model), _units_by_stage(model)
    variables = jax.eval_shape(lambda x: short.init(jax.random.key(0), x, train=False), image)
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for name, leaf in flatten(variables["params"]).items():
        if by_pairs and name.endswith("/offsets") and image_size is not None:
            sides = (2 * side - 1 for side in grid_at(image_size, model))
            leaf = jax.ShapeDtypeStruct((*sides, leaf.shape[-1]), leaf.dtype)
        repeats = kind.num_layers(model) if name.startswith(f"{kind.block}_0/") else 1
        for i in range(repeats):
            shapes[name.replace(f"{kind.block}_0/", f"{kind.block}_{i}/")] = leaf
        if unit := re.match(r"block(\d+)/unit2/", name):
            for i in range(3, num_units[int(unit[1]) - 1] + 1):
                shapes[name.replace("/unit2/", f"/unit{i}/")] = leaf
    return shapes


def flatten(params: Params) -> dict[str, Any]:
    """The leaves by flat parameter name."""
    return flax.traverse_util.flatten_dict(dict(params), sep="/")


def recognise(shapes: Shapes) -> Found | None:
    """The model that has parameters of these names and shapes; None if it is none of ours.

    Shapes do not show the pooling of a model without a class token (`gap` is assumed), positions
    that are not learned (none), the GELU and the epsilon (Google's).
    """
    found = (kind.from_shapes(shapes) for kind in KINDS)
    with contextlib.suppress(IndexError, ValueError):  # arrays may have other axes
        return next((one for one in found if one is not None), None)


def square(num_patches: int) -> Size | None:
    """The square grid of this many patches, or None."""
    side = math.isqrt(max(0, num_patches))
    return (side, side) if side and side * side == num_patches else None


# Vision Transformers


def encoder_fields(model: VisionTransformer) -> Fields:
    assert model.transformer is not None
    return model.transformer


def _shortened_vit(model: VisionTransformer) -> VisionTransformer:
    if model.transformer is not None:
        model = model.clone(transformer={**model.transformer, "num_layers": 1})
    if model.resnet is not None:
        num_units = tuple(min(2, count) for count in _units_by_stage(model))
        model = model.clone(resnet={**model.resnet, "num_layers": num_units})
    return model


def _units_by_stage(model: Model) -> Sequence[int]:
    return (getattr(model, "resnet", None) or {}).get("num_layers", ())


def _vit_from_shapes(shapes: Shapes) -> Found | None:
    block = "Transformer/encoderblock_0"
    patches = shapes.get("embedding/kernel")
    mlp = shapes.get(f"{block}/MlpBlock_0/Dense_0/kernel")
    query = shapes.get(f"{block}/{ATTENTION}/query/kernel")
    if patches is None or mlp is None or query is None:
        return None
    ph, pw, channels, width = patches.shape
    _, num_heads, head_dim = query.shape
    fields: dict[str, Any] = {
        "patches": {"size": (ph, pw)},
        "hidden_size": width,
        "transformer": {
            "num_layers": count_blocks(shapes, "Transformer/encoderblock"),
            "mlp_dim": mlp.shape[-1],
            "num_heads": num_heads,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            **({"head_dim": head_dim} if num_heads * head_dim != width else {}),
        },
        "classifier": "token" if "cls" in shapes else "map" if _MAP in shapes else "gap",
        "representation_size": _size(shapes, "pre_logits/kernel", -1),
        "num_registers": _size(shapes, "Transformer/registers", 1) or 0,
        "qkv_bias": f"{block}/{ATTENTION}/query/bias" in shapes,
        "patch_norm": "embedding/LayerNorm_0/scale" in shapes,
        "layer_scale": 1e-5 if f"{block}/LayerScale_0/scale" in shapes else None,
        "fc_norm": "fc_norm/scale" in shapes,
        "distilled": "dist" in shapes,
        "position": _position(shapes, block),
    }
    if (root := shapes.get("conv_root/kernel")) is not None:
        stages: list[int] = []
        while len(stages) < 9 and (units := _units(shapes, len(stages) + 1)):  # 8 at most
            stages.append(units)
        channels, root_width = root.shape[2:]
        factor = root_width / 64
        fields["resnet"] = {
            "num_layers": tuple(stages),
            "width_factor": int(factor) if factor == int(factor) else factor,
        }
    return Found(fields, _grid(shapes), channels)


_MAP = "MAPHead_0/probe"
_TABLE = "Transformer/posembed_input/pos_embedding"


def _position(shapes: Shapes, block: str) -> str:
    if _TABLE in shapes:
        return "learned"
    if f"{_TABLE}_x" in shapes:
        return "learned2d"
    return "relative" if f"{block}/relative_position_bias/offsets" in shapes else "none"


def _grid(shapes: Shapes) -> Size | None:
    if (table := shapes.get(_TABLE)) is not None:
        return square(table.shape[1] - ("cls" in shapes) - ("dist" in shapes))
    columns, rows = shapes.get(f"{_TABLE}_x"), shapes.get(f"{_TABLE}_y")
    return None if columns is None or rows is None else (rows.shape[0], columns.shape[0])


def _units(shapes: Shapes, stage: int) -> int:
    return len({name.split("/")[1] for name in shapes if name.startswith(f"block{stage}/")})


# Mixers


def _mixer_from_shapes(shapes: Shapes) -> Found | None:
    stem = shapes.get("stem/kernel")
    tokens = shapes.get("MixerBlock_0/token_mixing/Dense_0/kernel")
    mlp = shapes.get("MixerBlock_0/channel_mixing/Dense_0/kernel")
    if stem is None or tokens is None or mlp is None:
        return None
    ph, pw, channels, width = stem.shape
    fields = {
        "patches": {"size": (ph, pw)},
        "num_blocks": count_blocks(shapes, "MixerBlock"),
        "hidden_dim": width,
        "tokens_mlp_dim": tokens.shape[-1],
        "channels_mlp_dim": mlp.shape[-1],
    }
    return Found(fields, square(tokens.shape[0]), channels)


def count_blocks(names: Iterable[str], block: str) -> int:
    pattern = re.compile(re.escape(block) + r"_(\d+)/")
    return len({match[1] for name in names if (match := pattern.match(name))})


def _size(shapes: Shapes, name: str, axis: int) -> int | None:
    return shapes[name].shape[axis] if name in shapes else None


KINDS = (
    Kind(
        module=VisionTransformer,
        block="Transformer/encoderblock",
        num_layers=lambda model: model.transformer["num_layers"] if model.transformer else 0,
        shortened=_shortened_vit,
        from_shapes=_vit_from_shapes,
        any_resolution=True,
        tokens="Transformer",
    ),
    Kind(
        module=MlpMixer,
        block="MixerBlock",
        num_layers=lambda model: model.num_blocks,
        shortened=lambda model: model.clone(num_blocks=1),
        from_shapes=_mixer_from_shapes,
        any_resolution=False,  # its token mixing has the size of its grid
        tokens="pre_head_layer_norm",
    ),
)
