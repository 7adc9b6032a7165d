"""Schedules, masks, and the optax chain that a config describes."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax
from jax import Array
from jax.typing import ArrayLike

from vit_jax.aliases import Params

# What weight decay spares: biases, norms, and everything that is not a map between features.
_UNDECAYED = re.compile(
    r".*/(bias|scale)|cls|dist|.*pos_embedding(_[xy])?|.*/(registers|probe)"
    r"|.*relative_position_bias/.*"
)
DECAY_TYPES = ("cosine", "linear", "rsqrt", "constant")


def create_learning_rate_schedule(
    total_steps: int, base: float, decay_type: str, warmup_steps: int, linear_end: float = 1e-5
) -> optax.Schedule:
    """A linear warm-up times a decay: the reference's two kinds, and two more.

    `cosine` ends at 0, `linear` at `linear_end`; `rsqrt` falls with the root of the step after the
    warm-up (Zhai et al. 2022); `constant` stays.
    """
    assert decay_type in DECAY_TYPES, decay_type

    def schedule(step: ArrayLike) -> Array:
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        progress = jnp.clip(progress, 0.0, 1.0)
        if decay_type == "cosine":
            rate = base * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        elif decay_type == "linear":
            rate = linear_end + (base - linear_end) * (1.0 - progress)
        elif decay_type == "rsqrt":
            timescale = max(warmup_steps, 1)
            rate = base * jnp.sqrt(timescale / jnp.maximum(step, timescale))
        else:
            rate = base * jnp.ones_like(progress)
        if warmup_steps:
            rate = rate * jnp.minimum(1.0, step / warmup_steps)
        return jnp.asarray(rate, jnp.float32)

    return schedule


def learning_rate_schedule(c: ml_collections.ConfigDict) -> optax.Schedule:
    return create_learning_rate_schedule(
        c.total_steps, c.base_lr, c.decay_type, c.warmup_steps, c.linear_end
    )


def make_optimizer(
    config: ml_collections.ConfigDict, params: Params
) -> optax.GradientTransformation:
    """Clipping, momentum, decoupled weight decay, rates by layer and by step, frozen parameters."""
    chain = [optax.clip_by_global_norm(config.grad_norm_clip)] if config.grad_norm_clip else []
    chain.append(OPTIMIZERS[config.optimizer](config))
    if config.weight_decay:
        chain.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask(params)))
    if config.layer_decay != 1.0:
        chain.append(_scale_by_layer(params, config.layer_decay))
    chain.append(optax.scale_by_learning_rate(learning_rate_schedule(config)))
    optimizer = optax.chain(*chain)
    if config.trainable == ".*":
        return optimizer
    labels = jax.tree.map(
        lambda trains: "train" if trains else "freeze", trainable_mask(params, config.trainable)
    )
    return optax.partition({"train": optimizer, "freeze": optax.set_to_zero()}, labels)


OPTIMIZERS: dict[str, Callable[[ml_collections.ConfigDict], optax.GradientTransformation]] = {
    "sgd": lambda c: optax.trace(decay=c.momentum, accumulator_dtype=c.optim_dtype),
    "adam": lambda c: optax.scale_by_adam(c.beta1, c.beta2, mu_dtype=c.optim_dtype),
    "adamw": lambda c: optax.scale_by_adam(c.beta1, c.beta2, mu_dtype=c.optim_dtype),
    "lion": lambda c: optax.scale_by_lion(c.beta1, c.beta2, mu_dtype=c.optim_dtype),
    "adafactor": lambda c: optax.chain(
        optax.scale_by_factored_rms(),
        optax.ema(c.beta1, debias=False, accumulator_dtype=c.optim_dtype),
    ),
}


def decay_mask(params: Params) -> Params:
    """True for what weight decay applies to: kernels, and nothing else."""
    return _map_named(lambda name, _: not _UNDECAYED.fullmatch(name), params)


def trainable_mask(params: Params, pattern: str) -> Params:
    """True where the pattern matches part of a parameter's name; raises if it matches nothing."""
    compiled = re.compile(pattern)
    mask = _map_named(lambda name, _: bool(compiled.search(name)), params)
    if not any(jax.tree.leaves(mask)):
        modules = ", ".join(sorted(params))
        raise ValueError(
            f"config.trainable={pattern!r} matches no parameter; there are: {modules}."
        )
    return mask


def layer_index(name: str, depth: int) -> int:
    """How far from the input: 0 for the embedding, i + 1 for block i, depth + 1 for the head."""
    if match := re.match(r"Transformer/encoderblock_(\d+)/|MixerBlock_(\d+)/", name):
        return int(match[1] or match[2]) + 1
    below = ("embedding/", "stem/", "cls", "dist", "conv_root", "gn_root", "block")
    below += ("Transformer/posembed", "Transformer/registers")
    return 0 if name.startswith(below) else depth + 1


def layer_scales(params: Params, decay: float) -> Params:
    """decay ** (layers above), so that the head learns at the full rate."""
    names = jax.tree.leaves(_map_named(lambda name, _: name, params))
    if any("encoderblock/" in name for name in names):
        raise ValueError(
            "layer_decay needs blocks with names of their own, which model.scan does not have."
        )
    depth = max(layer_index(name, -1) for name in names)
    return _map_named(lambda name, _: decay ** (depth + 1 - layer_index(name, depth)), params)


def _scale_by_layer(params: Params, decay: float) -> optax.GradientTransformation:
    scales: dict[str, float] = {}
    _map_named(scales.__setitem__, layer_scales(params, decay))

    def scale(updates: optax.Updates, _: object) -> optax.Updates:
        # By name, because optax.partition leaves the frozen parameters out of `updates`.
        return _map_named(lambda name, value: value * scales[name], updates)

    return optax.stateless(scale)


def _map_named(function: Callable[[str, Any], object], tree: Params | optax.Updates) -> Params:
    """Each leaf replaced by `function` of its name and value."""
    return jax.tree.map_with_path(
        lambda path, leaf: function("/".join(str(key.key) for key in path), leaf), tree
    )
