"""timm's VisionTransformer: plain, distilled (DeiT), hybrid, with registers, SigLIP and DINOv2
kinds.

Read from a state dict in safetensors, with the config.json of a hub folder where there is one.
Written with a config.json that `timm.create_model("local-dir:FOLDER")` builds the same model from.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from vit_jax.aliases import Json, Size
from vit_jax.allowed import number, several, switch, text, whole
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import rules
from vit_jax.checkpoint.foreign.description import Reading, Writing, find_grid, recognise, refuse
from vit_jax.checkpoint.foreign.rules import KEY, MLP, OUT, QKV, QUERY, VALUE, Source, Table
from vit_jax.checkpoint.foreign.tokens import Token, write_without_rows
from vit_jax.checkpoint.lazy import Lazy, from_array
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import Model, VisionTransformer, build_model, num_layers, patch_stride
from vit_jax.models.kinds import encoder_fields
from vit_jax.models.position import sincos_2d
from vit_jax.preprocessing import FIELDS, Preprocessing, side, side_or_pair
from vit_jax.untrusted import fields, known_fields, names

_BACKBONE = "patch_embed.backbone."
# Architectures whose functions set what config.json does not repeat.
_TANH = re.compile(
    r"vit_(base_patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt)"
)
_GELUS = {"gelu": "erf", "gelu_tanh": "tanh"}
# Those that have the names of ours and compute something else: of all 1,371 models of timm 1.0.31.
_REFUSED = {
    r"vit_.*_rpn_.*": "it normalises after attention and MLP (timm's ResPostBlock), ours before",
    r"test_vit3": "it averages its class token and registers with the patches",
}
_HEADS = {"vit_base_patch16_gap_224": 16, "test_vit": 2, "test_vit2": 2, "test_vit3": 3}
_HYBRIDS = {
    (192, ()): "vit_tiny_r_s16_p8_224",
    (384, (2, 2, 2, 2)): "vit_small_r26_s32_224",
    (768, (2, 2, 2, 2)): "vit_base_r26_s32_224",
    (768, (3, 4, 9)): "vit_base_r50_s16_224",
    (1024, (3, 4, 6, 3)): "vit_large_r50_s32_224",
}
_RESNET_EPS = {"norm_eps": 1e-5, "variance_eps": 1e-8}
_POOLS = {"token": "token", "gap": "avg", "map": "map"}
# What is read of a config.json. Arguments of the constructor are in `kwargs` or `model_args`.
CONFIG = {
    "architecture": text,
    "kwargs": fields,
    "model_args": fields,
    "pretrained_cfg": fields,
    "global_pool": text,
    "label_names": names,
}
_ARGS = {
    "num_heads": whole(1, 1024),
    "act_layer": text,
    "global_pool": text,
    "pool_include_prefix": switch,
    "no_embed_class": switch,
    "img_size": side_or_pair,
}
PRETRAINED = {
    "input_size": several(side, [3], "[channels, height, width]"),
    "label_names": names,
    "interpolation": text,
    "crop_mode": text,
    "crop_pct": number(0.01, 10),
    "mean": FIELDS["mean"],
    "std": FIELDS["std"],
}


def source_names(names: Collection[str]) -> dict[str, str] | None:
    has_blocks = any(name.startswith("blocks.0.") for name in names)
    return {n: n for n in names} if has_blocks and "patch_embed.proj.weight" in names else None


def describe(source: Source, config: Json, num_heads: int | None) -> Reading:
    where = f"The configuration of {source.where}"
    config = known_fields(config, CONFIG, where=where)
    given: Json = {**config.get("kwargs", {}), **config.get("model_args", {})}
    args = known_fields(given, _ARGS, where=where)
    pretrained = known_fields(config.get("pretrained_cfg", {}), PRETRAINED, where=where)
    architecture = config.get("architecture", "")
    width, *_ = source.shape("patch_embed.proj.weight", 4)
    num_heads = args.get("num_heads", _HEADS.get(architecture, num_heads))
    activation = "gelu_tanh" if _TANH.match(architecture) else "gelu"
    activation = args.get("act_layer", activation).lower()
    problems = [why for pattern, why in _REFUSED.items() if re.fullmatch(pattern, architecture)]
    if activation not in _GELUS:
        problems.append(f"its activation is {activation!r}, and ours are the erf and the tanh GELU")
    pool = args.get("global_pool") or config.get("global_pool")
    if not pool:
        by_token = "cls_token" in source and "fc_norm.weight" not in source
        pool = "map" if "attn_pool.latent" in source else "token" if by_token else "avg"
    if pool not in _POOLS.values() or args.get("pool_include_prefix"):
        pool += " over its prefix tokens too" if args.get("pool_include_prefix") else ""
        problems.append(f"it pools by {pool}, and ours by token, by avg (of the patches) or by map")
    source.refuse(problems)
    body = rules.follow(_table(source.count("blocks."), *_resnet(source)))
    found, num_classes, notes = recognise(source, body, width=width, num_heads=num_heads)
    described: Json = {
        **found.fields,
        "classifier": {"avg": "gap"}.get(pool, pool),
        "gelu": _GELUS[activation],
        "position": "learned" if "pos_embed" in source else "none",
    }
    if resnet := described.get("resnet"):
        factor = float(resnet["width_factor"])
        described["resnet"] = {**resnet, "width_factor": factor, **_RESNET_EPS}
    tokens, described = _roles(source, described)
    model = build_model(described, num_classes)
    size = args.get("img_size") or pretrained.get("input_size", [None])[1:]
    grid, tokens = _grid(source, tokens, model, size, args.get("no_embed_class"))
    labels = config.get("label_names") or pretrained.get("label_names")
    card = Card(
        model,
        grid,
        found.channels,
        class_names=tuple(labels) if labels and len(labels) == model.num_classes else None,
        source=f"timm {architecture}".strip() + f", {Path(source.where).name}",
        architecture=architecture,
    )
    if not pretrained:
        notes.append("note: no config.json; timm's own preprocessing of AugReg models is assumed")
    position = "pos_embed" if "pos_embed" in source else None
    ignored = {r"mask_token": "only masked pre-training reads it"}
    return Reading(with_preprocessing(card, pretrained), body, tokens, position, ignored, "", notes)


def _roles(source: Source, fields: Json) -> tuple[list[Token], Json]:
    """A class token that the head does not read, and a distillation token without a head, are
    registers to us.
    """
    by_token = fields["classifier"] == "token"
    distilled = by_token and "dist_token" in source and "head.weight" in source
    roles = {
        "cls_token": "cls" if by_token else "registers",
        "dist_token": "dist" if distilled else "registers",
        "reg_token": "registers",
    }
    tokens = [Token(name, role, True) for name, role in roles.items() if name in source]
    count = sum(source.shape(token.name)[1] for token in tokens if token.role == "registers")
    return tokens, {**fields, "distilled": distilled, "num_registers": count}


def _grid(
    source: Source,
    tokens: list[Token],
    model: Model,
    size: Sequence[int] | int | None,
    no_embed: bool | None,
) -> tuple[Size | None, list[Token]]:
    """The grid, and the tokens, each of which now says whether it has position rows."""
    stride = patch_stride(model)
    if "pos_embed" not in source:
        return find_grid(None, size, stride), tokens
    num_rows = source.shape("pos_embed")[1]
    num_tokens = sum(source.shape(token.name)[1] for token in tokens)
    for without_rows in (False, True) if no_embed is None else (bool(no_embed),):
        grid = find_grid(num_rows if without_rows else num_rows - num_tokens, size, stride)
        if grid is not None:
            return grid, [token._replace(has_rows=not without_rows) for token in tokens]
    raise ValueError(
        f"{source.where} has {num_rows} position rows for {num_tokens} tokens and a grid, which is "
        "not square; put the model's config.json, which has the image size, beside it."
    )


_BLOCK: Table = {
    "norm1": "LayerNorm_0",
    "norm2": "LayerNorm_1",
    "attn.qkv": QKV,
    "attn.proj": OUT,
    "mlp.fc1": MLP[0],
    "mlp.fc2": MLP[1],
    "ls1.gamma": "LayerScale_0/scale",
    "ls2.gamma": "LayerScale_1/scale",
}
_ATTENTION_POOL: Table = {
    "latent": "probe",
    "q": QUERY,
    "kv": (KEY, VALUE),
    "proj": OUT,
    "norm": "LayerNorm_0",
    "mlp.fc1": MLP[0],
    "mlp.fc2": MLP[1],
}
_LAYERS = (("conv", "conv"), ("norm", "gn"))
_UNIT: Table = {
    **{f"{theirs}{k}": f"{ours}{k}" for k in "123" for theirs, ours in _LAYERS},
    **{f"downsample.{theirs}": f"{ours}_proj" for theirs, ours in _LAYERS},
}


def _table(depth: int, stem: str, stages: Sequence[int]) -> Table:
    """`stages` are those of a hybrid's ResNet, with `stem` before the names of its root."""
    table: dict[str, str | tuple[str, ...]] = {f"{stem}conv": "conv_root", f"{stem}norm": "gn_root"}
    for s, num_units in enumerate(stages):
        for u in range(num_units):
            name = f"{_BACKBONE}stages.{s}.blocks.{u}"
            table |= rules.within(name, f"block{s + 1}/unit{u + 1}", _UNIT)
    return table | {
        "patch_embed.proj": "embedding",
        **rules.blocks("blocks", "Transformer/encoderblock", _BLOCK, depth),
        "norm": "Transformer/encoder_norm",
        "fc_norm": "fc_norm",
        **rules.within("attn_pool", "MAPHead_0", _ATTENTION_POOL),
        "head": "head",
        "head_dist": "head_dist",
    }


def _resnet(source: Source) -> tuple[str, list[int]]:
    """The prefix of the root, and the units in each stage; a hybrid of the root alone has no
    `stem.` level.
    """
    stem = f"{_BACKBONE}stem." if f"{_BACKBONE}stem.conv.weight" in source else _BACKBONE
    if stages := range(source.count(f"{_BACKBONE}stages.")):
        source.shape(f"{stem}conv.weight", 4)  # raises if it is missing
    return stem, [source.count(f"{_BACKBONE}stages.{s}.blocks.") for s in stages]


def with_preprocessing(card: Card, pretrained: Json) -> Card:
    """timm resizes the shorter side to crop / crop_pct (PIL, so with antialias), then crops."""
    size = card.image_size
    if size is None:
        return card
    bilinear = pretrained.get("interpolation", "bicubic") == "bilinear"
    squash = pretrained.get("crop_mode") == "squash"
    scale = pretrained.get("crop_pct") or (0.9 if size[0] < 384 else 1.0)
    exact = (int(size[0] / scale), int(size[1] / scale))
    preprocessing = Preprocessing(
        crop=size,
        resize=exact if squash else int(min(size) / scale),
        interpolation="bilinear_antialias" if bilinear else "bicubic",
        mean=tuple(pretrained.get("mean", [0.5] * 3)),
        std=tuple(pretrained.get("std", [0.5] * 3)),
        channels=card.channels,
    )
    return dataclasses.replace(card, preprocessing=preprocessing)


def prepare(model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]) -> Writing:
    """What to write for a model of ours; an error names all that timm's model has no place for."""
    architecture = card.architecture or _architecture(model)
    problems = {
        "it has a representation layer (pre_logits), which timm has given up": (
            model.representation_size is not None
        ),
        "its patch embedding has norms": model.patch_norm,
        f"timm has no pooling like classifier {model.classifier!r}": model.classifier not in _POOLS,
        f"its positions are {model.position!r}": (
            model.position not in ("learned", "none", "sincos2d")
        ),
        "its heads are not width / num_heads wide": encoder_fields(model).get("head_dim"),
        "it has both a distillation token and registers": model.distilled and model.num_registers,
        "its image size is not known (say --image_size=HEIGHT,WIDTH)": card.image_size is None,
        "timm has no hybrid of this ResNet and width": architecture is None,
    }
    refuse("timm's layout", problems)

    without_rows = model.position == "learned" and (
        bool(model.num_registers) or _has_zero_row(leaves)
    )
    stages = (model.resnet or {}).get("num_layers", ())
    names = {"reg_token": rules.REGISTERS, "cls_token": "cls", "dist_token": "dist"}
    mapped: list[Mapped] = []
    if model.position == "sincos2d":
        assert card.grid is not None
        table = from_array(sincos_2d(*card.grid, model.hidden_size)[None])
        mapped.append(Mapped((), "pos_embed", "the sin-cos table, written out", table))
    elif without_rows:
        mapped += write_without_rows(leaves, "cls_token", "pos_embed")
        del names["cls_token"]
    else:
        names["pos_embed"] = POSITION
    stem = f"{_BACKBONE}stem." if stages else _BACKBONE
    body = rules.follow({**_table(num_layers(model), stem, stages), **names})
    notes: list[str] = []
    if model.norm_eps != 1e-6:
        notes.append(f"note: LayerNorm's epsilon is {model.norm_eps} here and 1e-6 in timm")
    if model.resnet and model.resnet.get("variance_eps") != _RESNET_EPS["variance_eps"]:
        notes.append("note: timm's ResNet has other epsilons (1e-5 in GroupNorm, 1e-8 in kernels)")
    config = _config(architecture, model, card, without_rows or model.position == "sincos2d")
    return Writing(body, mapped, {"config.json": config}, notes=notes)


def _has_zero_row(leaves: Mapping[str, Lazy]) -> bool:
    """Whether the class token has no position, as in deit3 and flexivit."""
    alone = "cls" in leaves and "dist" not in leaves
    return alone and not np.any(leaves[POSITION].read((slice(0, 1), slice(0, 1))))


def _architecture(model: VisionTransformer) -> str | None:
    if model.resnet:
        return _HYBRIDS.get((model.hidden_size, tuple(model.resnet["num_layers"])))
    if model.distilled:
        return "deit_base_distilled_patch16_224"
    size = {192: "tiny", 384: "small", 1024: "large"}.get(model.hidden_size, "base")
    return f"vit_{size}_patch16_224"


def _config(
    architecture: str | None, model: VisionTransformer, card: Card, without_rows: bool
) -> Json:
    transformer, size = encoder_fields(model), card.image_size
    assert size is not None
    width, mlp_dim = model.hidden_size, transformer["mlp_dim"]
    exact = int(width * (mlp_dim / width)) == mlp_dim  # as timm computes it
    args: Json = {
        "img_size": list(size),
        "embed_dim": width,
        "depth": transformer["num_layers"],
        "num_heads": transformer["num_heads"],
        "mlp_ratio": (mlp_dim if exact else mlp_dim + 0.5) / width,
        "qkv_bias": model.qkv_bias,
        "class_token": model.classifier == "token",
        "global_pool": _POOLS[model.classifier],
        "fc_norm": model.fc_norm,
        "act_layer": "gelu_tanh" if model.gelu == "tanh" else "gelu",
        "in_chans": 3 if model.resnet else card.channels,  # timm's ResNets have three channels
        "patch_size": None if model.resnet else list(model.patches["size"]),
        "reg_tokens": model.num_registers or None,
        "no_embed_class": None if model.distilled else without_rows,
        "init_values": model.layer_scale,
        "pos_embed": "none" if model.position == "none" else None,
    }
    config: Json = {
        "architecture": architecture,
        "num_classes": card.num_classes,
        "num_features": width,
        "global_pool": _POOLS[model.classifier],
        "model_args": {key: value for key, value in args.items() if value is not None},
        "pretrained_cfg": _write_preprocessing(card),
    }
    return config | ({"label_names": list(card.class_names)} if card.class_names else {})


def _write_preprocessing(card: Card) -> Json:
    found: Json = {
        "num_classes": card.num_classes,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    if size := card.image_size:
        found |= {"input_size": [card.channels, *size], "fixed_input_size": True}
    if about := card.preprocessing:
        resize = about.resize or about.crop
        side = resize if isinstance(resize, int) else min(resize)
        found |= {
            "interpolation": "bicubic" if about.interpolation == "bicubic" else "bilinear",
            "crop_pct": min(about.crop) / side,
            "crop_mode": "center" if isinstance(resize, int) else "squash",
            "mean": list(about.mean),
            "std": list(about.std),
        }
    return found
