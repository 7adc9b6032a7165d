"""A training run at one moment: all that a resume needs, including the place in the data."""

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array

from vit_jax.aliases import Params


class TrainState(flax.struct.PyTreeNode):
    step: Array  # steps taken so far
    params: Params
    opt_state: optax.OptState
    ema: Params | None = None  # averaged parameters

    @classmethod
    def create(
        cls, params: Params, optimizer: optax.GradientTransformation, *, with_ema: bool
    ) -> "TrainState":
        ema = jax.tree.map(jnp.copy, params) if with_ema else None
        return cls(jnp.zeros((), jnp.int32), params, optimizer.init(params), ema)
