"""timm's MlpMixer, which holds Google's Mixer weights. Only read.

timm runs them with the erf GELU; ours is the tanh GELU they were trained with.
"""

from collections.abc import Collection
from pathlib import Path

from vit_jax.aliases import Json
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import rules
from vit_jax.checkpoint.foreign.description import Reading, recognise
from vit_jax.checkpoint.foreign.rules import Source, Table
from vit_jax.checkpoint.foreign.timm import CONFIG, PRETRAINED, with_preprocessing
from vit_jax.models import build_model
from vit_jax.untrusted import known_fields

_BLOCK: Table = {
    "norm1": "LayerNorm_0",
    "mlp_tokens.fc1": "token_mixing/Dense_0",
    "mlp_tokens.fc2": "token_mixing/Dense_1",
    "norm2": "LayerNorm_1",
    "mlp_channels.fc1": "channel_mixing/Dense_0",
    "mlp_channels.fc2": "channel_mixing/Dense_1",
}


def source_names(names: Collection[str]) -> dict[str, str] | None:
    ours = "stem.proj.weight" in names and "blocks.0.mlp_tokens.fc1.weight" in names
    return {name: name for name in names} if ours else None


def describe(source: Source, config: Json, num_heads: int | None) -> Reading:
    del num_heads  # a Mixer has none
    where = f"The configuration of {source.where}"
    config = known_fields(config, CONFIG, where=where)
    pretrained = known_fields(config.get("pretrained_cfg", {}), PRETRAINED, where=where)
    body = rules.follow(
        {
            "stem.proj": "stem",
            **rules.blocks("blocks", "MixerBlock", _BLOCK, source.count("blocks.")),
            "norm": "pre_head_layer_norm",
            "head": "head",
        }
    )
    width, *_ = source.shape("stem.proj.weight", 4)
    found, num_classes, _ = recognise(source, body, width=width, num_heads=1)
    origin = f"timm {config.get('architecture', 'MlpMixer')}, {Path(source.where).name}"
    model = build_model(found.fields, num_classes)
    card = Card(model, found.grid, found.channels, source=origin)
    card = with_preprocessing(card, {"crop_pct": 0.875, **pretrained})
    notes = ["note: timm runs these with the erf GELU, ours is the tanh GELU of their training"]
    return Reading(card, body, notes=notes)
