"""The JSON files of a Hugging Face folder: config.json and preprocessor_config.json."""

import logging
from collections.abc import Mapping, Sequence

from vit_jax.aliases import Json, Size
from vit_jax.allowed import Allowed, either, number, switch, whole
from vit_jax.checkpoint.card import Card
from vit_jax.models import VisionTransformer
from vit_jax.models.kinds import encoder_fields
from vit_jax.preprocessing import FIELDS, Preprocessing, side

log = logging.getLogger(__name__)

GELUS = {
    **dict.fromkeys(("gelu", "gelu_python"), "erf"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "tanh"),
}
LABELS = Allowed(
    "names by number",
    lambda v: (
        isinstance(v, dict)
        and all(k.isdecimal() and len(k) < 9 and isinstance(name, str) for k, name in v.items())
    ),
)
_size_by_name = Allowed(
    "an object with height and width, or a shortest_edge",
    lambda v: (
        isinstance(v, dict)
        and all(map(side.holds, v.values()))
        and ("shortest_edge" in v or {"height", "width"} <= v.keys())
    ),
)
PREPROCESSOR = {
    "do_resize": switch,
    "size": either(side, _size_by_name),
    "do_center_crop": switch,
    "crop_size": either(side, _size_by_name),
    "resample": whole(0, 5),
    "do_rescale": switch,
    "rescale_factor": number(above=0, most=1),
    "do_normalize": switch,
    "image_mean": FIELDS["mean"],
    "image_std": FIELDS["std"],
}
_RESAMPLE = {2: "bilinear_antialias", 3: "bicubic"}  # PIL's numbers; PIL always antialiases


def read_labels(id2label: Mapping[str, str] | None, num_classes: int) -> tuple[str, ...] | None:
    """Class names; None where transformers made them up (LABEL_0, LABEL_1, …)."""
    if not id2label or len(id2label) != num_classes:
        return None
    names = tuple(name for _, name in sorted(id2label.items(), key=lambda item: int(item[0])))
    return None if names == tuple(f"LABEL_{i}" for i in range(num_classes)) else names


def read_preprocessing(about: Json, size: Size, channels: int) -> Preprocessing:
    """From the fields of `PREPROCESSOR`; the crop need not be the `size` that the model was trained
    at. Without the file: resized to the size, values in [-1, 1], as for ViT.
    """
    resize = _size(about.get("size")) if about.get("do_resize", True) else None
    crop = size if isinstance(resize, int) else resize or size  # unless it is cropped
    if about.get("do_center_crop"):
        crop = _size(about.get("crop_size")) or size
        crop = (crop, crop) if isinstance(crop, int) else crop
    kind = about.get("resample", 2)
    if kind not in _RESAMPLE:
        log.warning("The preprocessor resizes by PIL's method %d; bicubic is used instead.", kind)
    mean = about.get("image_mean") or [0.5] * channels
    std = about.get("image_std") or [0.5] * channels
    if not about.get("do_normalize", True):
        mean, std = [0.0] * channels, [1.0] * channels
    scale = 255 * about.get("rescale_factor", 1 / 255) if about.get("do_rescale", True) else 255
    return Preprocessing(
        crop=crop,
        resize=resize or crop,
        interpolation=_RESAMPLE.get(kind, "bicubic"),
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        channels=channels,
    )


def _size(value: int | Mapping[str, int] | None) -> int | Size | None:
    """The shorter side, or (height, width), from any of the forms that files have."""
    if value is None:
        return None
    if isinstance(value, int):
        return value, value  # older files of ViT: resized to a square
    return value["shortest_edge"] if "shortest_edge" in value else (value["height"], value["width"])


def write_preprocessing(card: Card) -> Json | None:
    if (about := card.preprocessing) is None:
        return None
    resize, crop = about.resize or about.crop, about.crop
    return {
        "image_processor_type": "ViTImageProcessor" if resize == crop else "DeiTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": resize} if isinstance(resize, int) else _named(resize),
        "resample": 3 if about.interpolation == "bicubic" else 2,
        "do_center_crop": resize != crop,
        "crop_size": _named(crop),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(about.mean),
        "image_std": list(about.std),
    }


def _named(size: Size) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}


def write_config(family: str, model: VisionTransformer, card: Card) -> Json:
    return {"vit": _vit, "dinov2": _dinov2, "siglip": _siglip}[family](model, card)


def _vit(model: VisionTransformer, card: Card) -> Json:
    """ViT, or DeiT if the model is distilled; with a pooler if it has a representation layer."""
    kind, teacher = ("DeiT", "WithTeacher") if model.distilled else ("ViT", "")
    classifier = f"{kind}ForImageClassification{teacher}"
    config = {
        "architectures": [classifier if card.num_classes else f"{kind}Model"],
        "model_type": kind.lower(),
        "intermediate_size": encoder_fields(model)["mlp_dim"],
        **_common(model, card),
        **_labels(card),
    }
    if size := model.representation_size:
        config |= {"pooler_act": "tanh", "pooler_output_size": size}
    return config


def _dinov2(model: VisionTransformer, card: Card) -> Json:
    ratio = encoder_fields(model)["mlp_dim"] / model.hidden_size
    count = model.num_registers
    return {
        "architectures": ["Dinov2WithRegistersModel" if count else "Dinov2Model"],
        "model_type": "dinov2_with_registers" if count else "dinov2",
        "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
        "layerscale_value": model.layer_scale,
        **({} if count else {"use_mask_token": False}),
        **_common(model, card),
        **({"num_register_tokens": count} if count else {}),
    }


def _siglip(model: VisionTransformer, card: Card) -> Json:
    """Attention pooling is SigLIP's vision tower; averaging is its image classifier."""
    vision = {"intermediate_size": encoder_fields(model)["mlp_dim"], **_common(model, card)}
    del vision["qkv_bias"], vision["hidden_dropout_prob"]
    vision["attention_dropout"] = vision.pop("attention_probs_dropout_prob")
    tower = {"model_type": "siglip_vision_model"}
    if model.classifier == "map":
        return {"architectures": ["SiglipVisionModel"], **tower, **vision}
    return {
        "architectures": ["SiglipForImageClassification"],
        "model_type": "siglip",
        "vision_config": {**tower, "vision_use_head": False, **vision},
        **_labels(card),
    }


def _common(model: VisionTransformer, card: Card) -> Json:
    transformer, size = encoder_fields(model), card.image_size
    assert size is not None
    return {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": transformer["num_layers"],
        "num_attention_heads": transformer["num_heads"],
        "hidden_act": "gelu_pytorch_tanh" if model.gelu == "tanh" else "gelu",
        "layer_norm_eps": model.norm_eps,
        "image_size": _side(size),
        "patch_size": _side(model.patches["size"]),
        "num_channels": card.channels,
        "qkv_bias": model.qkv_bias,
        "hidden_dropout_prob": transformer["dropout_rate"],
        "attention_probs_dropout_prob": transformer["attention_dropout_rate"],
        "dtype": "float32",
    }


def _side(size: Sequence[int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _labels(card: Card) -> Json:
    if not card.num_classes:
        return {}
    names = card.class_names or [f"LABEL_{i}" for i in range(card.num_classes)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
