"""timm's MlpMixer, which holds Google's Mixer weights. Only read.

timm runs them with the erf GELU; ours is the tanh GELU they were trained with.
"""

from collections.abc import Collection
from pathlib import Path

from vit_jax.aliases import Json
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign.description import Reading
from vit_jax.checkpoint.foreign.rules import Source, conv, dense, norm
from vit_jax.checkpoint.foreign.timm import with_preprocessing
from vit_jax.models import MlpMixer
from vit_jax.models.kinds import square


def recognises(names: Collection[str]) -> bool:
    return "stem.proj.weight" in names and "blocks.0.mlp_tokens.fc1.weight" in names


def source_names(names: Collection[str]) -> dict[str, str]:
    return {name: name for name in names}


def describe(source: Source, config: Json, *, num_heads: int | None, where: str) -> Reading:
    del num_heads  # a Mixer has none
    width, channels, height, patch_width = source.shape("stem.proj.weight", 4)
    tokens_mlp_dim, num_tokens = source.shape("blocks.0.mlp_tokens.fc1.weight")
    num_classes = source.shape("head.weight")[0] if "head.weight" in source else 0
    model = MlpMixer(
        num_classes=num_classes,
        patches={"size": (height, patch_width)},
        num_blocks=source.count("blocks."),
        hidden_dim=width,
        tokens_mlp_dim=tokens_mlp_dim,
        channels_mlp_dim=source.shape("blocks.0.mlp_channels.fc1.weight")[0],
    )
    origin = f"timm {config.get('architecture', 'MlpMixer')}, {Path(where).name}"
    card = Card(model, square(num_tokens), channels, source=origin)
    card = with_preprocessing(card, {"crop_pct": 0.875, **config.get("pretrained_cfg", {})})

    body = conv("stem.proj", "stem")
    for i in range(model.num_blocks):
        theirs, ours = f"blocks.{i}", f"MixerBlock_{i}"
        for k, part in enumerate(("token", "channel")):
            body += norm(f"{theirs}.norm{k + 1}", f"{ours}/LayerNorm_{k}")
            for layer in (0, 1):
                name = f"{theirs}.mlp_{part}s.fc{layer + 1}"
                body += dense(name, f"{ours}/{part}_mixing/Dense_{layer}")
    body += norm("norm", "pre_head_layer_norm")
    body += dense("head", "head") if num_classes else []
    notes = ["note: timm runs these with the erf GELU, ours is the tanh GELU of their training"]
    return Reading(card, body, notes=notes)
