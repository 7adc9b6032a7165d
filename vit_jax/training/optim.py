"""Schedules, masks, and the optax chain that a config describes."""

import re
from typing import Any

import jax
import ml_collections
import optax

# Parameters that weight decay leaves alone: biases, norms, and what is not a map between features.
_UNDECAYED = re.compile(
    r".*/(bias|scale)|cls|dist|.*pos_embedding(_[xy])?|.*/(registers|probe)"
    r"|.*relative_position_bias/.*"
)
DECAY_TYPES = ("cosine", "linear", "rsqrt", "constant")


def create_learning_rate_schedule(
    total_steps: int, base: float, decay_type: str, warmup_steps: int, linear_end: float = 1e-5
) -> optax.Schedule:
    """The reference's schedules, and two more: a linear warm-up times a decay.

    `cosine` ends at 0, `linear` at `linear_end`; `rsqrt` falls with the root of the step from the
    end of the warm-up on (Zhai et al. 2022), `constant` does not fall.
    """
    if decay_type not in DECAY_TYPES:
        raise ValueError(f"No decay_type {decay_type!r}; choose {', '.join(DECAY_TYPES)}.")
    jnp = jax.numpy

    def schedule(step):
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


def schedule_of(config: ml_collections.ConfigDict) -> optax.Schedule:
    return create_learning_rate_schedule(
        config.total_steps,
        config.base_lr,
        config.decay_type,
        config.warmup_steps,
        config.linear_end,
    )


def make_optimizer(config: ml_collections.ConfigDict, params: Any) -> optax.GradientTransformation:
    """Clip, momentum, decoupled weight decay, layer-wise and global learning rate, frozen parts."""
    if config.optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise ValueError(f"No optimizer {config.optimizer!r}; choose {known}.")
    chain = [optax.clip_by_global_norm(config.grad_norm_clip)] if config.grad_norm_clip else []
    chain.append(OPTIMIZERS[config.optimizer](config))
    if config.weight_decay:
        chain.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask(params)))
    if config.layer_decay != 1.0:
        chain.append(_scale_by_layer(params, config.layer_decay))
    chain.append(optax.scale_by_learning_rate(schedule_of(config)))
    optimizer = optax.chain(*chain)
    if config.trainable == ".*":
        return optimizer
    labels = jax.tree.map(
        lambda trains: "train" if trains else "freeze", trainable_mask(params, config.trainable)
    )
    return optax.partition({"train": optimizer, "freeze": optax.set_to_zero()}, labels)


OPTIMIZERS = {
    "sgd": lambda c: optax.trace(decay=c.momentum, accumulator_dtype=c.optim_dtype),
    "adam": lambda c: optax.scale_by_adam(c.beta1, c.beta2, mu_dtype=c.optim_dtype),
    "adamw": lambda c: optax.scale_by_adam(c.beta1, c.beta2, mu_dtype=c.optim_dtype),
    "lion": lambda c: optax.scale_by_lion(c.beta1, c.beta2, mu_dtype=c.optim_dtype),
    "adafactor": lambda c: optax.chain(
        optax.scale_by_factored_rms(),
        optax.ema(c.beta1, debias=False, accumulator_dtype=c.optim_dtype),
    ),
}


def decay_mask(params: Any) -> Any:
    """True for what weight decay shrinks: kernels, and nothing else."""
    return _by_name(params, lambda name: not _UNDECAYED.fullmatch(name))


def trainable_mask(params: Any, pattern: str) -> Any:
    """True for parameters whose name the pattern matches somewhere; some must be, and not none."""
    try:
        compiled = re.compile(pattern)
    except re.error as e:
        raise ValueError(f"config.trainable={pattern!r} is not a regular expression: {e}.") from e
    mask = _by_name(params, lambda name: bool(compiled.search(name)))
    if not any(jax.tree.leaves(mask)):
        modules = ", ".join(sorted(params))
        raise ValueError(
            f"config.trainable={pattern!r} matches no parameter; there are: {modules}."
        )
    return mask


def layer_of(name: str, depth: int) -> int:
    """How far from the input: 0 for the embedding, i + 1 for block i, depth + 1 for the head."""
    if match := re.match(r"Transformer/encoderblock_(\d+)/|MixerBlock_(\d+)/", name):
        return int(match[1] or match[2]) + 1
    if name.startswith(("embedding/", "stem/", "cls", "dist", "Transformer/posembed")):
        return 0
    if name.startswith(("conv_root", "gn_root", "block", "Transformer/registers")):
        return 0
    return depth + 1


def layer_scales(params: Any, decay: float) -> Any:
    """decay ** (layers above), so that the head learns at the full rate."""
    names = jax.tree.leaves(_by_name(params, lambda name: name))
    if any("encoderblock/" in name for name in names):
        raise ValueError(
            "layer_decay needs blocks with names of their own; it does not go with model.scan."
        )
    depth = max(layer_of(name, -1) for name in names)
    return _by_name(params, lambda name: decay ** (depth + 1 - layer_of(name, depth)))


def _scale_by_layer(params: Any, decay: float) -> optax.GradientTransformation:
    scales = layer_scales(params, decay)

    def update(updates, state, params=None):
        del params
        return jax.tree.map(lambda u, s: u * s, updates, scales), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _by_name(params: Any, function) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: function("/".join(str(key.key) for key in path)), params
    )
