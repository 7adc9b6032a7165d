"""Hugging Face transformers: ViT, DeiT, DINOv2 (with registers or not) and SigLIP's vision tower.

Read from a folder (config.json, preprocessor_config.json, one or several safetensors files), with
or without the `vit.` prefix, in the names of transformers 4 and of 5. Written in those of 4, which
both load. `FAMILIES` holds what differs between the four.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.aliases import Json, Size
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import hf_config, rules, tokens
from vit_jax.checkpoint.foreign.description import Reading, Writing, refuse, resolve_heads
from vit_jax.checkpoint.foreign.rules import WITH_BATCH_AXIS, Rule, Source, conv, dense, norm
from vit_jax.checkpoint.foreign.tokens import Token
from vit_jax.checkpoint.lazy import Lazy
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped
from vit_jax.models import VisionTransformer, num_layers
from vit_jax.models.kinds import encoder_fields, square
from vit_jax.models.layers import ATTENTION

_PREFIX = re.compile(r"^(?:model\.)?(vit|deit|dinov2|dinov2_with_registers|vision_model)\.")
_NEWER = (  # transformers 5's names in memory -> those it saves, and 4's
    (re.compile(r"^(?:encoder\.)?layers?\.(\d+)\."), r"encoder.layer.\1."),
    (re.compile(r"\.attention\.([qkv])_proj\."), lambda m: f".attention.attention.{_QKV[m[1]]}."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
)
_QKV = {"q": "query", "k": "key", "v": "value"}
_IGNORED = {
    r"embeddings\.mask_token": "only masked pre-training reads it",
    r"embeddings\.position_ids": "the numbers 0, 1, 2, …",
    r"text_model\..*|logit_scale|logit_bias": "of the text tower",
}


def recognises(names: Collection[str]) -> bool:
    found = source_names(names)
    return any(family.patch + ".weight" in found for family in FAMILIES.values())


def source_names(names: Collection[str]) -> dict[str, str]:
    found = {_PREFIX.sub("", name): name for name in names}
    if FAMILIES["vit"].patch + ".weight" not in found:
        return found
    has_scale = any("layer_scale1" in name for name in found)
    return {_older(name, has_scale): actual for name, actual in found.items()}


def _older(name: str, is_dinov2: bool) -> str:
    for pattern, replacement in _NEWER:
        name = pattern.sub(replacement, name)
    if not is_dinov2 and name.startswith("encoder.layer."):
        name = name.replace(".mlp.fc1.", ".intermediate.dense.")
        name = name.replace(".mlp.fc2.", ".output.dense.")
    return name


def describe(source: Source, config: Json, *, num_heads: int | None, where: str) -> Reading:
    family = _find_family(source)
    about: Json = {**config, **config.get("vision_config", {})}
    width, channels, *patch = source.shape(f"{family.patch}.weight", 4)
    num_heads, note = resolve_heads(num_heads, about.get("num_attention_heads"), width, where=where)
    gelu, problem = hf_config.read_gelu(about.get("hidden_act", family.activation))
    block = f"{family.blocks}.0"
    head, head_dist = _heads(source)
    if head and source.shape(f"{head}.weight")[1] != width:
        problem = (
            f"its head reads {source.shape(f'{head}.weight')[1]} numbers and the model is {width} "
            "wide: it classifies by more than one pooled vector"
        )
    if any(".weights_in." in name or ".gate_proj." in name for name in source.names):
        problem = "its MLPs are gated (SwiGLU, as DINOv2-giant's are)"
    if problem:
        raise ValueError(f"{where} cannot become one of our models: {problem}.")

    has_cls = "embeddings.cls_token" in source
    # SigLIP's image classifier averages the patches; its pooling head, if saved, is not read.
    by_map = "head.probe" in source and not head
    fields: Json = {
        "patches": {"size": patch},
        "hidden_size": width,
        "transformer": {
            "num_layers": source.count(f"{family.blocks}."),
            "mlp_dim": source.shape(f"{block}.{family.mlp[0]}.weight")[0],
            "num_heads": num_heads,
            "dropout_rate": about.get("hidden_dropout_prob", 0.0),
            "attention_dropout_rate": about.get("attention_probs_dropout_prob", 0.0),
        },
        "classifier": "token" if has_cls else "map" if by_map else "gap",
        "gelu": gelu,
        "norm_eps": about.get("layer_norm_eps", family.norm_eps),
        "qkv_bias": f"{block}.{family.query.format('query', 'q')}.bias" in source,
        "layer_scale": about.get("layerscale_value", 1.0) if family.name == "dinov2" else None,
        "distilled": head_dist is not None,
    }
    found = [
        Token(name, role, has_rows)
        for name, role, has_rows in (
            ("embeddings.cls_token", "cls", True),
            ("embeddings.distillation_token", "dist" if head_dist else "registers", True),
            ("embeddings.register_tokens", "registers", False),
        )
        if name in source
    ]
    fields["num_registers"] = sum(source.shape(t.name)[1] for t in found if t.role == "registers")
    if "pooler.dense.weight" in source and not head:
        fields["representation_size"] = source.shape("pooler.dense.weight")[0]
    num_classes = source.shape(f"{head}.weight")[0] if head else 0
    num_leading = sum(source.shape(t.name)[1] for t in found if t.has_rows)
    grid = _grid(source.shape(family.position)[-2] - num_leading, about.get("image_size"), patch)
    architecture = " ".join(config.get("architectures") or [family.name])
    model = VisionTransformer(num_classes=num_classes, **fields)
    card = Card(
        model,
        grid,
        channels,
        class_names=hf_config.read_labels(config.get("id2label"), num_classes),
        source=f"Hugging Face {architecture}, {Path(where).name}",
    )
    card = dataclasses.replace(
        card,
        preprocessing=hf_config.read_preprocessing(
            config.get("preprocessor"), card.image_size, channels
        ),
    )
    notes = [note] if note else []
    if not config.get("hidden_size") and "vision_config" not in config:
        notes.append(
            f"note: no config.json; the GELU and the epsilon are the defaults of {family.name}"
        )
    body = _rules(family, model, head, head_dist)
    ignored = dict(_IGNORED)
    if head:
        ignored[r"pooler\.dense\..*|head\..*"] = "the classifier does not read it"
    return Reading(card, body, found, family.position, ignored, notes=notes)


def _heads(source: Source) -> tuple[str | None, str | None]:
    if "cls_classifier.weight" in source:
        return "cls_classifier", "distillation_classifier"
    return ("classifier" if "classifier.weight" in source else None), None


def _grid(count: int, size: Sequence[int] | int | None, patch: Sequence[int]) -> Size | None:
    if size:
        pair = [size, size] if isinstance(size, int) else list(size)
        h, w = (n // p for n, p in zip(pair, patch, strict=True))
        if h * w == count:
            return h, w
    return square(count)


class Family(NamedTuple):
    """The names of one architecture, and its defaults."""

    name: str
    patch: str
    position: str
    blocks: str
    norms: tuple[str, str]
    query: str  # formatted with ("query", "q") and so on
    out: str
    mlp: tuple[str, str]
    last_norm: str
    activation: str
    norm_eps: float


FAMILIES = {
    "vit": Family(
        name="vit",
        patch="embeddings.patch_embeddings.projection",
        position="embeddings.position_embeddings",
        blocks="encoder.layer",
        norms=("layernorm_before", "layernorm_after"),
        query="attention.attention.{0}",
        out="attention.output.dense",
        mlp=("intermediate.dense", "output.dense"),
        last_norm="layernorm",
        activation="gelu",
        norm_eps=1e-12,
    ),
    "siglip": Family(
        name="siglip",
        patch="embeddings.patch_embedding",
        position="embeddings.position_embedding.weight",
        blocks="encoder.layers",
        norms=("layer_norm1", "layer_norm2"),
        query="self_attn.{1}_proj",
        out="self_attn.out_proj",
        mlp=("mlp.fc1", "mlp.fc2"),
        last_norm="post_layernorm",
        activation="gelu_pytorch_tanh",
        norm_eps=1e-6,
    ),
}
FAMILIES["dinov2"] = FAMILIES["vit"]._replace(
    name="dinov2", norms=("norm1", "norm2"), mlp=("mlp.fc1", "mlp.fc2"), norm_eps=1e-6
)


def _find_family(source: Source) -> Family:
    if "embeddings.patch_embedding.weight" in source:
        return FAMILIES["siglip"]
    dinov2 = any("layer_scale1" in name for name in source.names)
    return FAMILIES["dinov2" if dinov2 else "vit"]


def _rules(
    family: Family, model: VisionTransformer, head: str | None, head_dist: str | None
) -> list[Rule]:
    found = conv(family.patch, "embedding")
    for i in range(num_layers(model)):
        theirs, ours = f"{family.blocks}.{i}", f"Transformer/encoderblock_{i}"
        attention = f"{ours}/{ATTENTION}"
        for k in (0, 1):
            found += norm(f"{theirs}.{family.norms[k]}", f"{ours}/LayerNorm_{k}")
            found += dense(f"{theirs}.{family.mlp[k]}", f"{ours}/MlpBlock_0/Dense_{k}")
            if model.layer_scale is not None:
                name = f"{theirs}.layer_scale{k + 1}.lambda1"
                found.append(Rule(name, (f"{ours}/LayerScale_{k}/scale",)))
        for part in ("query", "key", "value"):
            name = f"{theirs}.{family.query.format(part, part[0])}"
            found += rules.projections(name, attention, (part,), model.qkv_bias)
        found += rules.output(f"{theirs}.{family.out}", attention)
    found += norm(family.last_norm, "Transformer/encoder_norm")
    if model.classifier == "map":
        found += _pooling_rules()
    if model.representation_size:
        found += dense("pooler.dense", "pre_logits")
    found += dense(head, "head") if head else []
    found += dense(head_dist, "head_dist") if head_dist else []
    return found


def _pooling_rules() -> list[Rule]:
    ours = "MAPHead_0"
    parts = ("query", "key", "value")
    in_proj = rules.projections("head.attention.in_proj", f"{ours}/{ATTENTION}", parts)
    return [
        Rule("head.probe", (f"{ours}/probe",)),
        # torch's own attention module writes an underscore here, not a dot
        *(rule._replace(theirs=rule.theirs.replace("in_proj.", "in_proj_")) for rule in in_proj),
        *rules.output("head.attention.out_proj", f"{ours}/{ATTENTION}"),
        *norm("head.layernorm", f"{ours}/LayerNorm_0"),
        *dense("head.mlp.fc1", f"{ours}/MlpBlock_0/Dense_0"),
        *dense("head.mlp.fc2", f"{ours}/MlpBlock_0/Dense_1"),
    ]


def prepare(model: VisionTransformer, card: Card, leaves: Mapping[str, Lazy]) -> Writing:
    """What to write for a model of ours; an error names all that transformers cannot hold."""
    kind = _kind(model)
    problems = [] if kind.fits else ["no model there pools and normalises as it does"]
    if model.resnet:
        problems.append("it has a ResNet before its patches")
    if model.patch_norm:
        problems.append("its patch embedding has norms")
    if model.fc_norm:
        problems.append("its last norm comes after pooling")
    if model.position != "learned":
        problems.append(f"its positions are {model.position!r}")
    if encoder_fields(model).get("head_dim"):
        problems.append("its heads are not width / num_heads wide")
    if model.num_registers and not kind.registers:
        problems.append("it has registers and no LayerScale")
    if model.representation_size and (card.num_classes or kind.prefix != "vit."):
        problems.append("it has a head after its representation layer (pre_logits)")
    if card.num_classes and not kind.head:
        problems.append("it has a head, and that model has none")
    if card.image_size is None:
        problems.append("its image size is not known (say --image_size=HEIGHT,WIDTH)")
    refuse(problems, "Hugging Face's layout", "write --to timm or npz instead")

    prefix = kind.prefix if card.num_classes or kind.always_prefixed else ""
    head = kind.head if card.num_classes else None
    head_dist = "distillation_classifier" if model.distilled else None
    outside = {f"{name}.{part}" for name in (head, head_dist) for part in ("weight", "bias")}
    body = [
        rule if rule.theirs in outside else rule._replace(theirs=prefix + rule.theirs)
        for rule in _rules(kind.family, model, head, head_dist)
    ]
    how = WITH_BATCH_AXIS if kind.family.name == "siglip" else rules.SAME
    body.append(Rule(prefix + kind.family.position, (POSITION,), how))
    named = {"cls": "cls_token", "dist": "distillation_token", tokens.REGISTERS: "register_tokens"}
    for ours, theirs in named.items():
        if ours in leaves:
            body.append(Rule(f"{prefix}embeddings.{theirs}", (ours,)))
    mapped: list[Mapped] = []
    if kind.registers and model.num_registers:
        zeros = leaves["cls"].map(lambda x: x[0] * 0)
        mapped.append(Mapped((), f"{prefix}embeddings.mask_token", "zeros, which it needs", zeros))
    files = {"config.json": kind.config(model, card)}
    if preprocessor := hf_config.write_preprocessing(card):
        files["preprocessor_config.json"] = preprocessor
    notes: list[str] = []
    if not card.num_classes and kind.prefix == "vit." and not model.representation_size:
        notes.append("note: load it with ViTModel.from_pretrained(…, add_pooling_layer=False)")
    return Writing(body, mapped, files, notes=notes)


class Kind(NamedTuple):
    """One of transformers' models, as a place for ours."""

    family: Family
    prefix: str
    head: str | None
    config: Callable[[VisionTransformer, Card], Json]
    registers: bool = False
    always_prefixed: bool = False
    fits: bool = True


def _kind(model: VisionTransformer) -> Kind:
    if model.classifier == "token" and model.layer_scale is not None:
        name = "dinov2_with_registers" if model.num_registers else "dinov2"
        fits = not model.distilled
        config = hf_config.write_dinov2
        return Kind(FAMILIES["dinov2"], f"{name}.", None, config, registers=True, fits=fits)
    if model.layer_scale is not None:
        return Kind(FAMILIES["dinov2"], "", None, hf_config.write_dinov2, fits=False)
    if model.classifier in ("gap", "map"):
        head = "classifier" if model.classifier == "gap" else None
        config = hf_config.write_siglip
        return Kind(FAMILIES["siglip"], "vision_model.", head, config, always_prefixed=True)
    fits = model.classifier == "token"
    if model.distilled:
        return Kind(FAMILIES["vit"], "deit.", "cls_classifier", hf_config.write_vit, fits=fits)
    return Kind(FAMILIES["vit"], "vit.", "classifier", hf_config.write_vit, fits=fits)
