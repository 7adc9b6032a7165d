"""timm's VisionTransformer: plain, distilled (DeiT), hybrid, with registers, SigLIP and DINOv2
kinds.

Read from a state dict in safetensors, with the config.json of a hub folder where there is one.
Written with a config.json that `timm.create_model("local-dir:FOLDER")` builds the same model from.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from vit_jax.aliases import Json, Size
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import rules, tokens
from vit_jax.checkpoint.foreign.description import Reading, Writing, refuse, resolve_heads
from vit_jax.checkpoint.foreign.rules import CONV, Rule, Source, conv, dense, norm
from vit_jax.checkpoint.foreign.tokens import Token
from vit_jax.checkpoint.lazy import Lazy, from_array
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer, num_layers, patch_stride
from vit_jax.models.kinds import encoder_fields, square
from vit_jax.models.layers import ATTENTION
from vit_jax.models.position import sincos_2d
from vit_jax.preprocessing import Preprocessing

_BACKBONE = "patch_embed.backbone."
# Architectures whose functions set what config.json does not repeat.
_TANH = re.compile(
    r"vit_(base_patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt)"
)
_HEADS = {"vit_base_patch16_gap_224": 16, "test_vit": 2, "test_vit2": 2, "test_vit3": 3}
_HYBRIDS = {
    (192, ()): "vit_tiny_r_s16_p8_224",
    (384, (2, 2, 2, 2)): "vit_small_r26_s32_224",
    (768, (2, 2, 2, 2)): "vit_base_r26_s32_224",
    (768, (3, 4, 9)): "vit_base_r50_s16_224",
    (1024, (3, 4, 6, 3)): "vit_large_r50_s32_224",
}
_RESNET_EPS = {"norm_eps": 1e-5, "variance_eps": 1e-8}


def recognises(names: Collection[str]) -> bool:
    return "patch_embed.proj.weight" in names and any(n.startswith("blocks.0.") for n in names)


def source_names(names: Collection[str]) -> dict[str, str]:
    return {name: name for name in names}


def describe(source: Source, config: Json, *, num_heads: int | None, where: str) -> Reading:
    args: Json = {**config.get("kwargs", {}), **config.get("model_args", {})}
    architecture = config.get("architecture", "")
    pretrained = config.get("pretrained_cfg", {})
    width, channels, *patch = source.shape("patch_embed.proj.weight", 4)
    known = args.get("num_heads") or _HEADS.get(architecture)
    num_heads, note = resolve_heads(num_heads, known, width, where=where)
    tanh = "tanh" in str(args.get("act_layer", "")) or bool(_TANH.match(architecture))
    pool = args.get("global_pool") or config.get("global_pool") or _pool(source)
    if pool not in ("token", "avg", "map") or args.get("pool_include_prefix"):
        raise ValueError(
            f"{where} cannot become one of our models: it pools by {pool!r}"
            + (" over its prefix tokens too" if args.get("pool_include_prefix") else "")
            + ", and ours pool by token, by avg (of the patches) or by map."
        )

    fields: Json = {
        "patches": {"size": patch},
        "hidden_size": width,
        "transformer": {
            "num_layers": source.count("blocks."),
            "mlp_dim": source.shape("blocks.0.mlp.fc1.weight")[0],
            "num_heads": num_heads,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
        },
        "classifier": {"avg": "gap", "map": "map"}.get(pool, "token"),
        "gelu": "tanh" if tanh else "erf",
        "qkv_bias": "blocks.0.attn.qkv.bias" in source,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in source else None,
        "fc_norm": "fc_norm.weight" in source,
        "position": "learned" if "pos_embed" in source else "none",
    }
    if any(name.startswith(_BACKBONE) for name in source.names):
        fields["resnet"] = _describe_resnet(source)
        channels = source.shape(f"{_stem(source)}conv.weight")[1]

    found = [
        Token(name, role, True)
        for name, role in (("cls_token", "cls"), ("dist_token", "dist"), ("reg_token", "registers"))
        if name in source
    ]
    found, fields = _roles(source, found, fields)
    num_classes = source.shape("head.weight")[0] if "head.weight" in source else 0
    model = VisionTransformer(num_classes=num_classes, **fields)
    size = args.get("img_size") or pretrained.get("input_size", [None])[1:]
    grid, found = _grid(source, found, model, size, args.get("no_embed_class"), where)
    labels = config.get("label_names") or pretrained.get("label_names")
    card = Card(
        model,
        grid,
        channels,
        class_names=tuple(labels) if labels and len(labels) == num_classes else None,
        source=f"timm {architecture}".strip() + f", {Path(where).name}",
    )
    card = with_preprocessing(card, pretrained)
    notes = [note] if note else []
    if not pretrained:
        notes.append("note: no config.json; timm's own preprocessing of AugReg models is assumed")
    position = "pos_embed" if "pos_embed" in source else None
    ignored = {r"mask_token": "only masked pre-training reads it"}
    body = _rules(model, _stem(source))
    return Reading(card, body, found, position, ignored, notes=notes)


def _pool(source: Source) -> str:
    if "attn_pool.latent" in source:
        return "map"
    return "avg" if "fc_norm.weight" in source or "cls_token" not in source else "token"


def _roles(source: Source, found: list[Token], fields: Json) -> tuple[list[Token], Json]:
    """A class token that the head does not read, and a distillation token without a head, are
    registers to us.
    """
    by_token = fields["classifier"] == "token"
    distilled = by_token and "dist_token" in source and "head.weight" in source
    kept = {"cls"} if by_token else set()
    kept |= {"dist"} if distilled else set()
    found = [t if t.role in kept else t._replace(role="registers") for t in found]
    count = sum(source.shape(t.name)[1] for t in found if t.role == "registers")
    return found, {**fields, "distilled": distilled, "num_registers": count}


def _grid(
    source: Source,
    found: list[Token],
    model: VisionTransformer,
    size: Sequence[int] | int | None,
    no_embed: bool | None,
    where: str,
) -> tuple[Size | None, list[Token]]:
    """The grid, and the tokens, each of which now says whether it has position rows."""
    if "pos_embed" not in source:
        return (_grid_at(size, model) if size else None), found
    num_rows = source.shape("pos_embed")[1]
    num_tokens = sum(source.shape(token.name)[1] for token in found)
    counts = {False: num_rows - num_tokens, True: num_rows}  # by no_embed_class
    candidates = [bool(no_embed)] if no_embed is not None else [False, True]
    for without_rows in candidates:
        grid = _grid_with(counts[without_rows], size, model)
        if grid is not None:
            return grid, [token._replace(has_rows=not without_rows) for token in found]
    raise ValueError(
        f"{where} has {num_rows} position rows for {num_tokens} tokens and a grid, which is not "
        "square; put the model's config.json, which has the image size, beside it."
    )


def _grid_with(
    count: int, size: Sequence[int] | int | None, model: VisionTransformer
) -> Size | None:
    """The grid of `count` patches: the image size's if it has as many, else a square one."""
    grid = _grid_at(size, model) if size else None
    return grid if grid and grid[0] * grid[1] == count else square(count)


def _grid_at(size: Sequence[int] | int, model: VisionTransformer) -> Size:
    height, width = [size, size] if isinstance(size, int) else size
    stride = patch_stride(model)
    return height // stride[0], width // stride[1]


def _rules(model: VisionTransformer, stem: str) -> list[Rule]:
    found: list[Rule] = []
    if model.resnet:
        found += _resnet_rules(model.resnet["num_layers"], stem)
    found += conv("patch_embed.proj", "embedding")
    for i in range(num_layers(model)):
        theirs, ours = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        found += norm(f"{theirs}.norm1", f"{ours}/LayerNorm_0")
        found += norm(f"{theirs}.norm2", f"{ours}/LayerNorm_1")
        attention = f"{ours}/{ATTENTION}"
        parts = ("query", "key", "value")
        found += rules.projections(f"{theirs}.attn.qkv", attention, parts, model.qkv_bias)
        found += rules.output(f"{theirs}.attn.proj", attention)
        found += dense(f"{theirs}.mlp.fc1", f"{ours}/MlpBlock_0/Dense_0")
        found += dense(f"{theirs}.mlp.fc2", f"{ours}/MlpBlock_0/Dense_1")
        if model.layer_scale is not None:
            found.append(Rule(f"{theirs}.ls1.gamma", (f"{ours}/LayerScale_0/scale",)))
            found.append(Rule(f"{theirs}.ls2.gamma", (f"{ours}/LayerScale_1/scale",)))
    found += (
        norm("fc_norm", "fc_norm") if model.fc_norm else norm("norm", "Transformer/encoder_norm")
    )
    if model.classifier == "map":
        found += _pooling_rules()
    if model.num_classes:
        found += dense("head", "head")
        found += dense("head_dist", "head_dist") if model.distilled else []
    return found


def _pooling_rules() -> list[Rule]:
    ours = "MAPHead_0"
    return [
        Rule("attn_pool.latent", (f"{ours}/probe",)),
        *rules.projections("attn_pool.q", f"{ours}/{ATTENTION}", ("query",)),
        *rules.projections("attn_pool.kv", f"{ours}/{ATTENTION}", ("key", "value")),
        *rules.output("attn_pool.proj", f"{ours}/{ATTENTION}"),
        *norm("attn_pool.norm", f"{ours}/LayerNorm_0"),
        *dense("attn_pool.mlp.fc1", f"{ours}/MlpBlock_0/Dense_0"),
        *dense("attn_pool.mlp.fc2", f"{ours}/MlpBlock_0/Dense_1"),
    ]


def _stem(source: Source) -> str:
    """The root's prefix; a hybrid of the root alone has no `stem.` level."""
    return f"{_BACKBONE}stem." if f"{_BACKBONE}stem.conv.weight" in source else _BACKBONE


def _describe_resnet(source: Source) -> Json:
    stages = source.count(f"{_BACKBONE}stages.")
    units = [source.count(f"{_BACKBONE}stages.{s}.blocks.") for s in range(stages)]
    width = source.shape(f"{_stem(source)}conv.weight")[0]
    return {"num_layers": units, "width_factor": width / 64, **_RESNET_EPS}


def _resnet_rules(num_layers: Sequence[int], stem: str) -> list[Rule]:
    found = [
        Rule(f"{stem}conv.weight", ("conv_root/kernel",), CONV),
        *norm(f"{stem}norm", "gn_root"),
    ]
    for s, num_units in enumerate(num_layers):
        for u in range(num_units):
            theirs = f"{_BACKBONE}stages.{s}.blocks.{u}"
            ours = f"block{s + 1}/unit{u + 1}"
            pairs = [(f"{theirs}.conv{k}", f"{theirs}.norm{k}", str(k)) for k in (1, 2, 3)]
            if u == 0:
                pairs.append((f"{theirs}.downsample.conv", f"{theirs}.downsample.norm", "_proj"))
            for conv_name, norm_name, which in pairs:
                found.append(Rule(f"{conv_name}.weight", (f"{ours}/conv{which}/kernel",), CONV))
                found += norm(norm_name, f"{ours}/gn{which}")
    return found


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
    problems: list[str] = []
    if model.representation_size is not None:
        problems.append("it has a representation layer (pre_logits), which timm has given up")
    if model.patch_norm:
        problems.append("its patch embedding has norms")
    if model.classifier not in ("token", "gap", "map"):
        problems.append(f"timm has no pooling like classifier {model.classifier!r}")
    if model.position not in ("learned", "none", "sincos2d"):
        problems.append(f"its positions are {model.position!r}")
    if encoder_fields(model).get("head_dim"):
        problems.append("its heads are not width / num_heads wide")
    if model.distilled and model.num_registers:
        problems.append("it has both a distillation token and registers")
    if card.image_size is None:
        problems.append("its image size is not known (say --image_size=HEIGHT,WIDTH)")
    architecture = _architecture(model)
    if architecture is None:
        problems.append("timm has no hybrid of this ResNet and width")
    refuse(problems, "timm's layout")

    stem = f"{_BACKBONE}stem." if (model.resnet or {}).get("num_layers") else _BACKBONE
    body = _rules(model, stem)
    mapped = _write_tokens(model, card, leaves)
    notes: list[str] = []
    if model.norm_eps != 1e-6:
        notes.append(f"note: LayerNorm's epsilon is {model.norm_eps} here and 1e-6 in timm")
    if model.resnet and model.resnet.get("variance_eps") != _RESNET_EPS["variance_eps"]:
        notes.append("note: timm's ResNet has other epsilons (1e-5 in GroupNorm, 1e-8 in kernels)")
    return Writing(body, mapped, {"config.json": _config(architecture, model, card)}, notes=notes)


def _write_tokens(model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]) -> list[Mapped]:
    mapped: list[Mapped] = []
    if model.num_registers:
        mapped.append(Mapped((tokens.REGISTERS,), "reg_token", "same", leaves[tokens.REGISTERS]))
        if model.position == "learned":
            return mapped + tokens.write_without_rows(leaves, "cls_token", "pos_embed")
    for ours, theirs in (("cls", "cls_token"), ("dist", "dist_token"), (POSITION, "pos_embed")):
        if ours in leaves:
            mapped.append(Mapped((ours,), theirs, "same", leaves[ours]))
    if model.position == "sincos2d":
        assert card.grid is not None
        table = from_array(sincos_2d(*card.grid, model.hidden_size)[None])
        mapped.append(Mapped((), "pos_embed", "the sin-cos table, written out", table))
    return mapped


def _architecture(model: VisionTransformer) -> str | None:
    if model.resnet:
        return _HYBRIDS.get((model.hidden_size, tuple(model.resnet["num_layers"])))
    if model.distilled:
        return "deit_base_distilled_patch16_224"
    size = {192: "tiny", 384: "small", 1024: "large"}.get(model.hidden_size, "base")
    return f"vit_{size}_patch16_224"


def _config(architecture: str | None, model: VisionTransformer, card: Card) -> Json:
    pool = {"token": "token", "gap": "avg", "map": "map"}[model.classifier]
    transformer, size = encoder_fields(model), card.image_size
    assert size is not None
    width, mlp_dim = model.hidden_size, transformer["mlp_dim"]
    ratio = mlp_dim / width
    if int(width * ratio) != mlp_dim:
        ratio = (mlp_dim + 0.5) / width
    args: Json = {
        "img_size": list(size),
        "embed_dim": width,
        "depth": transformer["num_layers"],
        "num_heads": transformer["num_heads"],
        "mlp_ratio": ratio,
        "qkv_bias": model.qkv_bias,
        "class_token": model.classifier == "token",
        "global_pool": pool,
        "fc_norm": model.fc_norm,
        "act_layer": "gelu_tanh" if model.gelu == "tanh" else "gelu",
        "in_chans": card.channels,
    }
    if model.resnet:
        args["in_chans"] = 3  # timm builds the ResNet for three channels
    else:
        args["patch_size"] = list(model.patches["size"])
    if model.num_registers:
        args |= {"reg_tokens": model.num_registers, "no_embed_class": True}
    elif model.position == "sincos2d":
        args["no_embed_class"] = True
    if model.layer_scale is not None:
        args["init_values"] = model.layer_scale
    if model.position == "none":
        args["pos_embed"] = "none"
    config: Json = {
        "architecture": architecture,
        "num_classes": card.num_classes,
        "num_features": width,
        "global_pool": pool,
        "model_args": {key: value for key, value in args.items() if value is not None},
        "pretrained_cfg": _write_preprocessing(card),
    }
    if card.class_names:
        config["label_names"] = list(card.class_names)
    return config


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
