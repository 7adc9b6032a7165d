"""Hugging Face transformers: ViT, DeiT, DINOv2 (with registers or not) and SigLIP's vision tower.

Read from a folder (config.json, preprocessor_config.json, one or several safetensors files), with
or without the `vit.` prefix, in the names of transformers 4 and of 5. Written in those of 4, which
both load. `Family` holds what differs.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from vit_jax.aliases import Json
from vit_jax.allowed import number, text, whole
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import hf_config, rules
from vit_jax.checkpoint.foreign.description import Reading, Writing, find_grid, recognise, refuse
from vit_jax.checkpoint.foreign.rules import KEY, MLP, OUT, QKV, QUERY, VALUE, Source, Table
from vit_jax.checkpoint.foreign.tokens import Token
from vit_jax.checkpoint.lazy import Lazy
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer, build_model, num_layers
from vit_jax.models.kinds import encoder_fields
from vit_jax.preprocessing import side_or_pair
from vit_jax.untrusted import fields, known_fields, names

_PREFIX = re.compile(r"^(?:model\.)?(vit|deit|dinov2|dinov2_with_registers|vision_model)\.")
_NEWER = (  # transformers 5's names in memory -> those it saves, and 4's
    (re.compile(r"^(?:encoder\.)?layers?\.(\d+)\."), r"encoder.layer.\1."),
    (re.compile(r"\.attention\.([qkv])_proj\."), lambda m: f".attention.attention.{_QKV[m[1]]}."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
)
_rate = number(0, 1)
_CONFIG = {
    "architectures": names,
    "vision_config": fields,
    "preprocessor": fields,
    "id2label": hf_config.LABELS,
    "hidden_size": whole(1),
    "hidden_act": text,
    "num_attention_heads": whole(1, 1024),
    "hidden_dropout_prob": _rate,
    "attention_probs_dropout_prob": _rate,
    "layer_norm_eps": number(above=0, most=1),
    "layerscale_value": number(),
    "image_size": side_or_pair,
}
_QKV = {"q": "query", "k": "key", "v": "value"}
_IGNORED = {
    r"embeddings\.mask_token": "only masked pre-training reads it",
    r"embeddings\.position_ids": "the numbers 0, 1, 2, …",
    r"text_model\..*|logit_scale|logit_bias": "of the text tower",
}


def source_names(names: Collection[str]) -> dict[str, str] | None:
    found = {_PREFIX.sub("", name): name for name in names}
    if f"{_SIGLIP.patch}.weight" in found:
        return found
    if f"{_VIT.patch}.weight" not in found:
        return None
    has_scale = any("layer_scale1" in name for name in found)
    return {_older(name, has_scale): actual for name, actual in found.items()}


def _older(name: str, is_dinov2: bool) -> str:
    for pattern, replacement in _NEWER:
        name = pattern.sub(replacement, name)
    if not is_dinov2 and name.startswith("encoder.layer."):
        name = name.replace(".mlp.fc1.", ".intermediate.dense.")
        name = name.replace(".mlp.fc2.", ".output.dense.")
    return name


def describe(source: Source, config: Json, num_heads: int | None) -> Reading:
    family = _find_family(source)
    where = f"The configuration of {source.where}"
    outer = known_fields(config, _CONFIG, where=where)
    about = known_fields({**config, **outer.get("vision_config", {})}, _CONFIG, where=where)
    width, _, *patch = source.shape(f"{family.patch}.weight", 4)
    activation, problems = about.get("hidden_act", family.activation), list[str]()
    if (gelu := hf_config.GELUS.get(activation)) is None:
        problems.append(f"its activation is {activation!r}, and ours are the erf and the tanh GELU")
    head = next((name for name in _HEADS if f"{name}.weight" in source), None)
    if head and (inputs := source.shape(f"{head}.weight")[1]) != width:
        told = f"its head reads {inputs} numbers and the model is {width} wide"
        problems.append(f"{told}: it classifies by more than one pooled vector")
    if any(".weights_in." in name or ".gate_proj." in name for name in source.names):
        problems.append("its MLPs are gated (SwiGLU, as DINOv2-giant's are)")
    source.refuse(problems)

    body = rules.follow(_table(family, source.count(f"{family.blocks}."), head))
    num_heads = about.get("num_attention_heads", num_heads)
    found, num_classes, notes = recognise(source, body, width=width, num_heads=num_heads)
    distilled = head == "cls_classifier"
    named = {
        "embeddings.cls_token": ("cls", True),
        "embeddings.distillation_token": ("dist" if distilled else "registers", True),
        "embeddings.register_tokens": ("registers", False),
    }
    tokens = [Token(name, *token) for name, token in named.items() if name in source]
    counts = {token: source.shape(token.name)[1] for token in tokens}
    described: Json = {
        **found.fields,
        "transformer": {
            **found.fields["transformer"],
            "dropout_rate": about.get("hidden_dropout_prob", 0.0),
            "attention_dropout_rate": about.get("attention_probs_dropout_prob", 0.0),
        },
        "gelu": gelu,
        "norm_eps": about.get("layer_norm_eps", family.norm_eps),
        "layer_scale": about.get("layerscale_value", 1.0) if family.name == "dinov2" else None,
        "distilled": distilled,
        "num_registers": sum(n for token, n in counts.items() if token.role == "registers"),
        "position": "learned",
    }
    if "embeddings.cls_token" in source:
        described["classifier"] = "token"
    num_leading = sum(n for token, n in counts.items() if token.has_rows)
    count = source.shape(family.position)[-2] - num_leading
    architecture = " ".join(outer.get("architectures") or [family.name])
    card = Card(
        build_model(described, num_classes),
        find_grid(count, about.get("image_size"), patch),
        found.channels,
        class_names=hf_config.read_labels(outer.get("id2label"), num_classes),
        source=f"Hugging Face {architecture}, {Path(source.where).name}",
    )
    if size := card.image_size:
        where = f"The preprocessor_config.json of {source.where}"
        images = known_fields(outer.get("preprocessor", {}), hf_config.PREPROCESSOR, where=where)
        preprocessing = hf_config.read_preprocessing(images, size, card.channels)
        card = dataclasses.replace(card, preprocessing=preprocessing)
    if "hidden_size" not in about and "vision_config" not in outer:
        notes.append(
            f"note: no config.json; the GELU and the epsilon are the defaults of {family.name}"
        )
    # SigLIP's image classifier averages the patches; its pooling head, if saved, is not read.
    unread = {r"pooler\.dense\..*|head\..*": "the classifier does not read it"} if head else {}
    return Reading(card, body, tokens, family.position, _IGNORED | unread, notes=notes)


class Family(NamedTuple):
    """The names of one architecture, and its defaults."""

    name: str
    patch: str
    position: str
    blocks: str
    block: Table
    last_norm: str
    activation: str
    norm_eps: float


_ATTENTION: Table = {
    "attention.attention.query": QUERY,
    "attention.attention.key": KEY,
    "attention.attention.value": VALUE,
    "attention.output.dense": OUT,
}
_VIT = Family(
    name="vit",
    patch="embeddings.patch_embeddings.projection",
    position="embeddings.position_embeddings",
    blocks="encoder.layer",
    block={
        "layernorm_before": "LayerNorm_0",
        "intermediate.dense": MLP[0],
        "layernorm_after": "LayerNorm_1",
        "output.dense": MLP[1],
        **_ATTENTION,
    },
    last_norm="layernorm",
    activation="gelu",
    norm_eps=1e-12,
)
_DINOV2 = _VIT._replace(
    name="dinov2",
    block={
        "norm1": "LayerNorm_0",
        "mlp.fc1": MLP[0],
        "layer_scale1.lambda1": "LayerScale_0/scale",
        "norm2": "LayerNorm_1",
        "mlp.fc2": MLP[1],
        "layer_scale2.lambda1": "LayerScale_1/scale",
        **_ATTENTION,
    },
    norm_eps=1e-6,
)
_SIGLIP = Family(
    name="siglip",
    patch="embeddings.patch_embedding",
    position="embeddings.position_embedding.weight",
    blocks="encoder.layers",
    block={
        "layer_norm1": "LayerNorm_0",
        "mlp.fc1": MLP[0],
        "layer_norm2": "LayerNorm_1",
        "mlp.fc2": MLP[1],
        "self_attn.q_proj": QUERY,
        "self_attn.k_proj": KEY,
        "self_attn.v_proj": VALUE,
        "self_attn.out_proj": OUT,
    },
    last_norm="post_layernorm",
    activation="gelu_pytorch_tanh",
    norm_eps=1e-6,
)
_POOL: Table = {
    "probe": "probe",
    # torch's own attention module writes an underscore here, not a dot
    "attention.in_proj_weight": tuple(f"{part}/kernel" for part in QKV),
    "attention.in_proj_bias": tuple(f"{part}/bias" for part in QKV),
    "attention.out_proj": OUT,
    "layernorm": "LayerNorm_0",
    "mlp.fc1": MLP[0],
    "mlp.fc2": MLP[1],
}
_HEADS: dict[str, Table] = {
    "cls_classifier": {"cls_classifier": "head", "distillation_classifier": "head_dist"},
    "classifier": {"classifier": "head"},
}


def _find_family(source: Source) -> Family:
    if f"{_SIGLIP.patch}.weight" in source:
        return _SIGLIP
    return _DINOV2 if any("layer_scale1" in name for name in source.names) else _VIT


def _table(family: Family, depth: int, head: str | None) -> Table:
    table: dict[str, str | tuple[str, ...]] = {
        family.patch: "embedding",
        **rules.blocks(family.blocks, "Transformer/encoderblock", family.block, depth),
        family.last_norm: "Transformer/encoder_norm",
    }
    if head:
        return {**table, **_HEADS[head]}
    return {**table, **rules.within("head", "MAPHead_0", _POOL), "pooler.dense": "pre_logits"}


class Kind(NamedTuple):
    """One of transformers' models, as a place for ours."""

    family: Family
    prefix: str
    head: str | None
    fits: bool


def _kind(model: VisionTransformer) -> Kind:
    by_token = model.classifier == "token"
    if model.layer_scale is not None:
        prefix = "dinov2_with_registers." if model.num_registers else "dinov2."
        return Kind(_DINOV2, prefix, None, by_token and not model.distilled)
    if model.classifier in ("gap", "map"):
        return Kind(
            _SIGLIP, "vision_model.", "classifier" if model.classifier == "gap" else None, True
        )
    if model.distilled:
        return Kind(_VIT, "deit.", "cls_classifier", by_token)
    return Kind(_VIT, "vit.", "classifier", by_token)


def prepare(model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]) -> Writing:
    """What to write for a model of ours; an error names all that transformers cannot hold."""
    family, prefix, head, fits = _kind(model)
    problems = {
        "no model there pools and normalises as it does": not fits,
        "it has a ResNet before its patches": model.resnet,
        "its patch embedding has norms": model.patch_norm,
        "its last norm comes after pooling": model.fc_norm,
        f"its positions are {model.position!r}": model.position != "learned",
        "its heads are not width / num_heads wide": encoder_fields(model).get("head_dim"),
        "it has registers and no LayerScale": model.num_registers and family != _DINOV2,
        "it has a head after its representation layer (pre_logits)": (
            model.representation_size and (card.num_classes or prefix != "vit.")
        ),
        "it has a head, and that model has none": card.num_classes and not head,
        "its image size is not known (say --image_size=HEIGHT,WIDTH)": card.image_size is None,
    }
    refuse("Hugging Face's layout", problems)

    if not card.num_classes:
        prefix, head = prefix if family == _SIGLIP else "", None
    inside = {
        **_table(family, num_layers(model), None),
        family.position: POSITION,
        "embeddings.cls_token": "cls",
        "embeddings.distillation_token": "dist",
        "embeddings.register_tokens": rules.REGISTERS,
    }
    table = {prefix + name: ours for name, ours in inside.items()}
    hows = {POSITION: rules.WITH_BATCH_AXIS} if family == _SIGLIP else {}
    body = rules.follow({**table, **(_HEADS[head] if head else {})}, hows)
    mapped: list[Mapped] = []
    if model.num_registers:
        zeros = leaves["cls"].map(lambda x: x[0] * 0)
        mapped.append(Mapped((), f"{prefix}embeddings.mask_token", "zeros, which it needs", zeros))
    files = {"config.json": hf_config.write_config(family.name, model, card)}
    if preprocessor := hf_config.write_preprocessing(card):
        files["preprocessor_config.json"] = preprocessor
    notes: list[str] = []
    if not card.num_classes and family == _VIT and not model.representation_size:
        notes.append("note: load it with ViTModel.from_pretrained(…, add_pooling_layer=False)")
    return Writing(body, mapped, files, notes=notes)
