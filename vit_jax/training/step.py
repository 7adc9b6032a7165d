"""The train step: one pure function from (state, batch) to (state, metrics), written once."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax
from jax import Array

from vit_jax.aliases import Params
from vit_jax.models import Model
from vit_jax.models.sharding import BATCH, constrain
from vit_jax.training.losses import LOSSES, as_targets
from vit_jax.training.mixing import mix
from vit_jax.training.optim import learning_rate_schedule
from vit_jax.training.state import TrainState

Batch = Mapping[str, Array]
Metrics = dict[str, Array]
LossAndGradient = tuple[Array, Params]


def make_train_step(
    config: ml_collections.ConfigDict, model: Model, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """The step that a config describes. All randomness is a function of (seed, step)."""
    assert model.num_classes is not None
    num_classes = model.num_classes
    loss_function, schedule = LOSSES[config.loss], learning_rate_schedule(config)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        mix_key, dropout_key = jax.random.split(key)
        targets = as_targets(batch["label"], num_classes, config.label_smoothing)
        images, targets = mix(
            mix_key, batch["image"], targets, mixup=config.mixup, cutmix=config.cutmix
        )

        def loss_fn(params: Params, images: Array, targets: Array, key: Array) -> Array:
            rngs = {"dropout": key}
            logits: Any = model.apply({"params": params}, images, train=True, rngs=rngs)
            return loss_function(logits, targets).mean()

        loss_and_grad_fn, parts = jax.value_and_grad(loss_fn), config.accum_steps
        loss, grads = accumulate_gradient(
            loss_and_grad_fn, state.params, images, targets, parts, key=dropout_key
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:
            ema = optax.incremental_update(params, ema, 1.0 - config.ema_decay)
        metrics = {
            "loss": loss,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(schedule(state.step)),
        }
        step = state.step + 1
        return state.replace(step=step, params=params, opt_state=opt_state, ema=ema), metrics

    return train_step


def accumulate_gradient(
    loss_and_grad_fn: Callable[..., LossAndGradient],
    params: Params,
    images: Array,
    labels: Array,
    accum_steps: int,
    *,
    key: Array,
) -> LossAndGradient:
    """Loss and gradient of the batch, computed in `accum_steps` equal parts to save memory.

    The mean over the parts is the mean over the batch. Each part has its own dropout key. A part
    takes every `accum_steps`-th example, so that each of several devices has its share of every
    part and no example moves.
    """
    if accum_steps <= 1:
        return loss_and_grad_fn(params, images, labels, key)
    size = images.shape[0]
    if size % accum_steps:
        raise ValueError(
            f"A batch of {size} does not divide into accum_steps={accum_steps} parts; "
            f"{max(1, round(size / accum_steps)) * accum_steps} would."
        )

    def split(x: Array) -> Array:
        parts = x.reshape(-1, accum_steps, *x.shape[1:]).swapaxes(0, 1)
        return constrain(parts, None, BATCH)

    images, labels = split(images), split(labels)

    def add(
        total: LossAndGradient, part: tuple[Array, Array, Array]
    ) -> tuple[LossAndGradient, None]:
        return jax.tree.map(jnp.add, total, loss_and_grad_fn(params, *part)), None

    shapes = jax.eval_shape(loss_and_grad_fn, params, images[0], labels[0], key)
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    total, _ = jax.lax.scan(add, zeros, (images, labels, jax.random.split(key, accum_steps)))
    return jax.tree.map(lambda x: x / accum_steps, total)
