"""lucidrains' vit-pytorch: `ViT` and `SimpleViT`, of both generations.

Newer files have norms around the patch embedding and one after the encoder; older ones name a block
`fn` and keep the last norm in the head. No weight shows the number of heads; vit-pytorch's heads
are 64 wide by default.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from vit_jax.aliases import Json, Size
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import rules
from vit_jax.checkpoint.foreign.description import Reading, Writing, refuse, resolve_heads
from vit_jax.checkpoint.foreign.rules import (
    HEADS_OUT,
    PATCHES,
    WITH_BATCH_AXIS,
    Rule,
    Source,
    dense,
    norm,
    num_rows,
)
from vit_jax.checkpoint.lazy import Lazy, from_array
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer, num_layers
from vit_jax.models.kinds import encoder_fields, square
from vit_jax.models.layers import ATTENTION

_NORM_EPS = 1e-5  # torch's default, which vit-pytorch keeps
# What older releases (PreNorm) called the parts of a block.
_OLDER = {
    ".0.fn.to_qkv.": ".0.to_qkv.",
    ".0.fn.to_out.": ".0.to_out.",
    ".1.fn.net.3.": ".1.net.4.",
    ".1.fn.net.0.": ".1.net.1.",
    ".0.norm.": ".0.norm.",
    ".1.norm.": ".1.net.0.",
}


def recognises(names: Collection[str]) -> bool:
    return any(n.startswith("to_patch_embedding.") for n in names) and any(
        n.startswith("transformer.layers.0.") for n in names
    )


def source_names(names: Collection[str]) -> dict[str, str]:
    if not any(".fn." in name for name in names):
        return {name: name for name in names}
    found: dict[str, str] = {}
    for name in names:
        ours = name
        if name.startswith("transformer.layers."):
            for older, newer in _OLDER.items():
                if older in name:
                    ours = name.replace(older, newer)
                    break
        found[ours] = name
    return found


def describe(source: Source, config: Json, *, num_heads: int | None, where: str) -> Reading:
    args: Json = config.get("kwargs", config)
    patch_norm = "to_patch_embedding.3.weight" in source
    simple = "cls_token" not in source and "pos_embedding" not in source
    has_cls = "cls_token" in source and num_rows(source.shape("cls_token")) > 0
    linear = f"to_patch_embedding.{2 if patch_norm else 1}.weight"
    width, patch_dim = source.shape(linear, 2)
    inner = source.shape("transformer.layers.0.0.to_qkv.weight")[0] // 3
    num_heads, note = resolve_heads(num_heads, args.get("heads"), inner, where=where)
    patch = _pair(args["patch_size"]) if "patch_size" in args else _square_patch(patch_dim, where)
    head = _head(source)
    pool = args.get("pool", "cls" if has_cls else "mean")
    final_norm = "transformer.norm.weight" in source
    transformer = {
        "num_layers": source.count("transformer.layers."),
        "mlp_dim": source.shape("transformer.layers.0.1.net.1.weight")[0],
        "num_heads": num_heads,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    }
    if inner != width:
        transformer["head_dim"] = inner // num_heads
    mean = "mean" if has_cls else "gap"  # older releases average the class token too
    model = VisionTransformer(
        num_classes=source.shape(f"{head}.weight")[0] if head else 0,
        patches={"size": patch},
        hidden_size=width,
        transformer=transformer,
        classifier="token" if pool == "cls" else mean,
        position="sincos2d" if simple else "learned",
        patch_norm=patch_norm,
        qkv_bias=False,
        gelu="erf",
        norm_eps=_NORM_EPS,
        # A norm in the head after a class token is the same as one before it is taken.
        fc_norm=not final_norm and pool != "cls",
    )
    if final_norm and (head or "").endswith(".1"):
        raise ValueError(
            f"{where} has a norm after the encoder and another in the head; one of them "
            "has no place in our models."
        )
    card = Card(
        model,
        grid=_grid(source, args, patch, has_cls),
        channels=patch_dim // (patch[0] * patch[1]),
        source=f"vit-pytorch {'SimpleViT' if simple else 'ViT'}, {Path(where).name}",
    )
    notes = [note] if note else []
    notes.append("note: a vit-pytorch file says nothing about preprocessing; the card has none")
    body, zeros = _rules(model, head, final_norm, "transformer.layers.0.0.to_out.0.bias" in source)
    ignored = {} if has_cls else {"cls_token": "it has no rows"}
    if has_cls:
        lead = len(source.shape("cls_token")) == 2
        body.append(Rule("cls_token", ("cls",), WITH_BATCH_AXIS if lead else rules.SAME))
    if "pos_embedding" in source:
        lead = len(source.shape("pos_embedding")) == 2
        body.append(Rule("pos_embedding", (POSITION,), WITH_BATCH_AXIS if lead else rules.SAME))
    return Reading(card, body, ignored=ignored, zeros=zeros, notes=notes)


def _head(source: Source) -> str | None:
    for name in ("linear_head", "mlp_head", "mlp_head.1", "linear_head.1"):
        if f"{name}.weight" in source and len(source.shape(f"{name}.weight")) == 2:
            return name
    return None


def _grid(source: Source, args: Json, patch: Size, has_cls: bool) -> Size | None:
    if "image_size" in args:
        height, width = _pair(args["image_size"])
        return height // patch[0], width // patch[1]
    if "pos_embedding" not in source:
        return None
    return square(source.shape("pos_embedding")[-2] - has_cls)


def _pair(value: int | list[int]) -> Size:
    height, width = [value, value] if isinstance(value, int) else value
    return height, width


def _square_patch(patch_dim: int, where: str) -> Size:
    side = square(patch_dim // 3)
    if side is None or patch_dim % 3:
        raise ValueError(
            f"{where} has patches of {patch_dim} numbers, which are not square patches of three "
            "channels. Put a JSON file of the same name beside it with the constructor's "
            "arguments: "
            '{"kwargs": {"image_size": …, "patch_size": …, "heads": …}}.'
        )
    return side


def _rules(
    model: VisionTransformer, head: str | None, final_norm: bool, has_out_bias: bool
) -> tuple[list[Rule], list[str]]:
    linear = f"to_patch_embedding.{2 if model.patch_norm else 1}"
    found = [
        Rule(f"{linear}.weight", ("embedding/kernel",), PATCHES),
        Rule(f"{linear}.bias", ("embedding/bias",)),
    ]
    zeros: list[str] = []
    if model.patch_norm:
        found += norm("to_patch_embedding.1", "embedding/LayerNorm_0")
        found += norm("to_patch_embedding.3", "embedding/LayerNorm_1")
    last = 4 if has_out_bias else 3  # ViT has dropout between the linear layers, SimpleViT does not
    for i in range(num_layers(model)):
        theirs, ours = f"transformer.layers.{i}", f"Transformer/encoderblock_{i}"
        attention = f"{ours}/{ATTENTION}"
        found += norm(f"{theirs}.0.norm", f"{ours}/LayerNorm_0")
        parts = ("query", "key", "value")
        found += rules.projections(f"{theirs}.0.to_qkv", attention, parts, bias=False)
        if has_out_bias:
            found += rules.output(f"{theirs}.0.to_out.0", attention)
        else:
            found.append(Rule(f"{theirs}.0.to_out.weight", (f"{attention}/out/kernel",), HEADS_OUT))
            zeros.append(f"{attention}/out/bias")
        found += norm(f"{theirs}.1.net.0", f"{ours}/LayerNorm_1")
        found += dense(f"{theirs}.1.net.1", f"{ours}/MlpBlock_0/Dense_0")
        found += dense(f"{theirs}.1.net.{last}", f"{ours}/MlpBlock_0/Dense_1")
    last_norm = "transformer.norm" if final_norm else (head or "mlp_head.1").replace(".1", ".0")
    found += norm(last_norm, "fc_norm" if model.fc_norm else "Transformer/encoder_norm")
    found += dense(head, "head") if head else []
    return found, zeros


def prepare(model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]) -> Writing:
    """The newer generation of files, with the constructor's arguments in `kwargs`."""
    simple = model.position == "sincos2d"
    problems: list[str] = []
    if model.qkv_bias:
        problems.append("its query, key and value have biases")
    if not model.patch_norm:
        problems.append("its patch embedding has no norms")
    kinds = [(pool, "learned") for pool in ("token", "mean", "gap")] + [("gap", "sincos2d")]
    if (model.classifier, model.position) not in kinds:
        problems.append(
            f"no model there has {model.classifier!r} with {model.position!r} positions"
        )
    foreign = ("num_registers", "resnet", "distilled", "layer_scale", "fc_norm")
    for field in (*foreign, "representation_size"):
        if value := getattr(model, field):
            problems.append(f"it has {field}={value}")
    if not card.num_classes:
        problems.append("it has no head")
    refuse(problems, "vit-pytorch", "write --to npz or timm instead")

    body, zeros = _rules(model, "linear_head" if simple else "mlp_head", True, not simple)
    mapped: list[Mapped] = []
    notes: list[str] = []
    older = model.classifier == "mean"
    if not simple:
        how = rules.SAME if older else WITH_BATCH_AXIS
        body.append(Rule("pos_embedding", (POSITION,), how))
        if model.classifier == "gap":
            no_rows = from_array(np.zeros((0, model.hidden_size), np.float32))
            mapped.append(Mapped((), "cls_token", "no rows, where patches are averaged", no_rows))
        else:
            body.append(Rule("cls_token", ("cls",), how))
    transformer, width = encoder_fields(model), model.hidden_size
    kwargs: Json = {
        "image_size": list(card.image_size) if card.image_size else None,
        "patch_size": list(model.patches["size"]),
        "num_classes": card.num_classes,
        "dim": width,
        "depth": transformer["num_layers"],
        "heads": transformer["num_heads"],
        "dim_head": transformer.get("head_dim") or width // transformer["num_heads"],
        "mlp_dim": transformer["mlp_dim"],
        "channels": card.channels,
    }
    if not simple and model.classifier != "token":
        kwargs["pool"] = "mean"
    if older:
        notes.append("note: only older releases of vit-pytorch (1.6, for one) average class tokens")
    if model.norm_eps != _NORM_EPS or model.gelu != "erf":
        notes.append(
            "note: vit-pytorch has an epsilon of 1e-5 and the erf GELU; this model does not"
        )
    files = {"config.json": {"kwargs": kwargs}}
    return Writing(body, mapped, files, unused=zeros, notes=notes)
