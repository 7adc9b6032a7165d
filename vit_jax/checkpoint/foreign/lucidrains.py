"""lucidrains' vit-pytorch: `ViT` and `SimpleViT`, of both generations.

Newer files have norms around the patch embedding and one after the encoder; older ones name a block
`fn` and keep the last norm in the head. No weight shows the number of heads; vit-pytorch's heads
are 64 wide by default.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from vit_jax.aliases import Json, Size
from vit_jax.allowed import one_of, whole
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import rules
from vit_jax.checkpoint.foreign.description import Reading, Writing, find_grid, recognise, refuse
from vit_jax.checkpoint.foreign.rules import MLP, OUT, PATCHES, QKV, WITH_BATCH_AXIS, Source, Table
from vit_jax.checkpoint.lazy import Lazy, from_array
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer, build_model, num_layers
from vit_jax.models.kinds import encoder_fields, square
from vit_jax.preprocessing import side_or_pair
from vit_jax.untrusted import known_fields

_NORM_EPS = 1e-5  # torch's default, which vit-pytorch keeps
_OUT_BIAS = rf".*/{OUT}/bias"  # which SimpleViT lacks
_ARGS = {
    "patch_size": side_or_pair,
    "image_size": side_or_pair,
    "heads": whole(1, 1024),
    "pool": one_of("cls", "mean"),
}
# What older releases (PreNorm) called the parts of a block.
_OLDER = {
    ".0.fn.to_qkv.": ".0.to_qkv.",
    ".0.fn.to_out.": ".0.to_out.",
    ".1.fn.net.3.": ".1.net.4.",
    ".1.fn.net.0.": ".1.net.1.",
    ".1.norm.": ".1.net.0.",
}


def source_names(names: Collection[str]) -> dict[str, str] | None:
    starts = ("to_patch_embedding.", "transformer.layers.0.")
    if not all(any(name.startswith(start) for name in names) for start in starts):
        return None
    is_older = any(".fn." in name for name in names)
    return {_newer(name) if is_older else name: name for name in names}


def _newer(name: str) -> str:
    for older, newer in _OLDER.items():
        name = name.replace(older, newer)
    return name


def describe(source: Source, config: Json, num_heads: int | None) -> Reading:
    where = f"The configuration of {source.where}"
    args = known_fields(config.get("kwargs") or config, _ARGS, where=where)
    patch_norm = "to_patch_embedding.3.weight" in source
    simple = "cls_token" not in source and "pos_embedding" not in source
    has_cls = "cls_token" in source and 0 not in source.shape("cls_token")
    _, patch_dim = source.shape(f"to_patch_embedding.{2 if patch_norm else 1}.weight", 2)
    patch = _pair(args["patch_size"]) if "patch_size" in args else _square_patch(patch_dim, source)
    head = _head(source)
    pool = args.get("pool", "cls" if has_cls else "mean")
    final_norm = "transformer.norm.weight" in source
    # A norm in the head after a class token is the same as one before it is taken.
    fc_norm = not final_norm and pool != "cls"
    if final_norm and (head or "").endswith(".1"):
        raise ValueError(
            f"{source.where} has a norm after the encoder and another in the head; one of them "
            "has no place in our models."
        )
    last_norm = "transformer.norm" if final_norm else (head or "mlp_head.1").replace(".1", ".0")
    has_out_bias = "transformer.layers.0.0.to_out.0.bias" in source
    table = _table(source.count("transformer.layers."), patch_norm, has_out_bias)
    table |= {last_norm: "fc_norm" if fc_norm else "Transformer/encoder_norm"}
    table |= {head: "head"} if head else {}
    leading = {"cls": "cls_token", POSITION: "pos_embedding"}
    lacking = [o for o, name in leading.items() if name in source and len(source.shape(name)) == 2]
    table |= {"cls_token": "cls"} if has_cls else {}
    hows = {"embedding/kernel": PATCHES, **dict.fromkeys(lacking, WITH_BATCH_AXIS)}
    body = rules.follow({**table, "pos_embedding": POSITION}, hows)
    inner = source.shape("transformer.layers.0.0.to_qkv.weight")[0] // 3
    heads = args.get("heads", num_heads)
    found, num_classes, notes = recognise(source, body, patch=patch, width=inner, num_heads=heads)
    mean = "mean" if has_cls else "gap"  # older releases average the class token too
    fields: Json = {
        **found.fields,
        "classifier": "token" if pool == "cls" else mean,
        "position": "sincos2d" if simple else "learned",
        "gelu": "erf",
        "norm_eps": _NORM_EPS,
    }
    grid = find_grid(None, args["image_size"], patch) if "image_size" in args else found.grid
    name = f"vit-pytorch {'SimpleViT' if simple else 'ViT'}, {Path(source.where).name}"
    card = Card(build_model(fields, num_classes), grid, found.channels, source=name)
    notes.append("note: a vit-pytorch file says nothing about preprocessing; the card has none")
    ignored = {} if has_cls else {"cls_token": "it has no rows"}
    zeros = "" if has_out_bias else _OUT_BIAS
    return Reading(card, body, ignored=ignored, zeros=zeros, notes=notes)


def _head(source: Source) -> str | None:
    for name in ("linear_head", "mlp_head", "mlp_head.1", "linear_head.1"):
        if f"{name}.weight" in source and len(source.shape(f"{name}.weight")) == 2:
            return name
    return None


def _pair(value: int | list[int]) -> Size:
    height, width = [value, value] if isinstance(value, int) else value
    return height, width


def _square_patch(patch_dim: int, source: Source) -> Size:
    side = square(patch_dim // 3)
    if side is None or patch_dim % 3:
        raise ValueError(
            f"{source.where} has patches of {patch_dim} numbers, which are not square patches of "
            "three channels. Put a JSON file of the same name beside it with the constructor's "
            'arguments: {"kwargs": {"image_size": …, "patch_size": …, "heads": …}}.'
        )
    return side


def _table(depth: int, patch_norm: bool, has_out_bias: bool) -> dict[str, str | tuple[str, ...]]:
    """The patches and the blocks. ViT has dropout between its linear layers and a bias in to_out,
    SimpleViT has neither.
    """
    out: Table = {"0.to_out.0": OUT} if has_out_bias else {"0.to_out.weight": f"{OUT}/kernel"}
    block: Table = {
        "0.norm": "LayerNorm_0",
        "0.to_qkv": QKV,
        **out,
        "1.net.0": "LayerNorm_1",
        "1.net.1": MLP[0],
        f"1.net.{4 if has_out_bias else 3}": MLP[1],
    }
    with_norms = {"2": "embedding", "1": "embedding/LayerNorm_0", "3": "embedding/LayerNorm_1"}
    patches = with_norms if patch_norm else {"1": "embedding"}
    return {
        **{f"to_patch_embedding.{i}": ours for i, ours in patches.items()},
        **rules.blocks("transformer.layers", "Transformer/encoderblock", block, depth),
    }


def prepare(model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]) -> Writing:
    """The newer generation of files, with the constructor's arguments in `kwargs`."""
    simple = model.position == "sincos2d"
    kinds = [(pool, "learned") for pool in ("token", "mean", "gap")] + [("gap", "sincos2d")]
    lacking = ("num_registers", "resnet", "distilled", "layer_scale", "fc_norm")
    given = {field: getattr(model, field) for field in (*lacking, "representation_size")}
    problems = {
        "its query, key and value have biases": model.qkv_bias,
        "its patch embedding has no norms": not model.patch_norm,
        f"no model there has {model.classifier!r} with {model.position!r} positions": (
            (model.classifier, model.position) not in kinds
        ),
        **{f"it has {field}={value}": value for field, value in given.items()},
        "it has no head": not card.num_classes,
    }
    refuse("vit-pytorch", problems)

    older = model.classifier == "mean"
    table = _table(num_layers(model), True, not simple) | {
        "transformer.norm": "Transformer/encoder_norm",
        "linear_head" if simple else "mlp_head": "head",
        "pos_embedding": POSITION,
        "cls_token": "cls",
    }
    how = rules.SAME if older else WITH_BATCH_AXIS
    body = rules.follow(table, {"embedding/kernel": PATCHES, POSITION: how, "cls": how})
    mapped: list[Mapped] = []
    if not simple and model.classifier == "gap":
        no_rows = from_array(np.zeros((0, model.hidden_size), np.float32))
        mapped.append(Mapped((), "cls_token", "no rows, where patches are averaged", no_rows))
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
    notes: list[str] = []
    if older:
        notes.append("note: only older releases of vit-pytorch (1.6, for one) average class tokens")
    if model.norm_eps != _NORM_EPS or model.gelu != "erf":
        notes.append(
            "note: vit-pytorch has an epsilon of 1e-5 and the erf GELU; this model does not"
        )
    files = {"config.json": {"kwargs": kwargs}}
    return Writing(body, mapped, files, zeros=_OUT_BIAS if simple else "", notes=notes)
