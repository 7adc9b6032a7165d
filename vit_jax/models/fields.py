"""The values that the fields of a model may have, for models from recipes and from cards alike."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import ml_collections

from vit_jax import allowed
from vit_jax.allowed import Allowed, number, one_of, optional, several, switch, whole
from vit_jax.models import position
from vit_jax.models.attention import KERNELS
from vit_jax.models.layers import GELU
from vit_jax.models.vit import CLASSIFIERS, REMAT_POLICIES

DTYPES = ("float32", "bfloat16", "float16")
MAX_LAYERS = 1000  # published models have at most 64


def field_problems(
    module: type[nn.Module], fields: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """What is wrong with a module's fields, in words; their names get the prefix."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _NEEDED and isinstance(value, Mapping | ml_collections.ConfigDict):
            inner = {f"{name}.{key}": v for key, v in value.items()}
            flat |= dict.fromkeys(_NEEDED[name]) | inner
        else:
            flat[name] = value
    ours = {field.name for field in dataclasses.fields(module)}
    known = [name for name in FIELDS if name.partition(".")[0] in ours]
    problems: list[str] = []
    for name, value in flat.items():
        if name in known:
            problems += FIELDS[name].problem(f"{prefix}{name}", value)
        else:
            hint = allowed.did_you_mean(name, known)
            problems.append(f"a {module.__name__} has no field {prefix}{name}{hint}")
    heads, width = flat.get("transformer.num_heads"), flat.get("hidden_size")
    if not problems and heads and width % heads and not flat.get("transformer.head_dim"):
        problems.append(
            f"{prefix}transformer.num_heads is {heads} and must divide {prefix}hidden_size, {width}"
        )
    return problems


def _is_dtype(value: Any) -> bool:
    """A name, as in a recipe, or what jax has for it."""
    return value in DTYPES if isinstance(value, str) else value in map(jnp.dtype, DTYPES)


_size = whole(1, 2**20)
_rate = number(0, 1)
_group = Allowed("a group of fields", lambda _: False)  # which has a row for each of them

FIELDS: dict[str, Allowed] = {
    "num_classes": optional(whole(0, 2**24)),
    "model_name": optional(allowed.text),
    "patches": _group,
    "patches.size": several(whole(1, 4096), [2], "(height, width) in pixels"),
    "dtype": Allowed(one_of(*DTYPES).words, _is_dtype),
    # Vision Transformers
    **dict.fromkeys(("hidden_size", "transformer.mlp_dim"), _size),
    **dict.fromkeys(("patch_norm", "fc_norm", "distilled", "qkv_bias", "scan"), switch),
    "transformer": optional(_group),
    "transformer.num_layers": whole(1, MAX_LAYERS),
    "transformer.num_heads": whole(1, 1024),
    "transformer.head_dim": optional(_size),
    "transformer.dropout_rate": _rate,
    "transformer.attention_dropout_rate": _rate,
    "transformer.stochastic_depth_rate": number(0, below=1),
    "resnet": optional(_group),
    "resnet.num_layers": several(whole(1, 100), range(9), "the number of units in each stage"),
    "resnet.width_factor": number(0.5, 64),
    "resnet.norm_eps": number(above=0),
    "resnet.variance_eps": optional(number(above=0)),
    "representation_size": optional(_size),
    "classifier": one_of(*CLASSIFIERS),
    "head_bias_init": number(),
    "encoder": Allowed("a module", lambda value: isinstance(value, type)),
    "position": one_of(*position.KINDS),
    "num_registers": whole(0, 1024),
    "remat": optional(one_of(*REMAT_POLICIES)),
    "gelu": one_of(*GELU),
    "norm_eps": number(above=0),
    "layer_scale": optional(number()),
    "attention_kernel": one_of("auto", *KERNELS),
    # Mixers
    "num_blocks": whole(1, MAX_LAYERS),
    **dict.fromkeys(("hidden_dim", "tokens_mlp_dim", "channels_mlp_dim"), _size),
}
_NEEDED = {
    "patches": ["patches.size"],
    "transformer": [f"transformer.{name}" for name in ("num_layers", "mlp_dim", "num_heads")],
    "resnet": ["resnet.num_layers"],
}
