"""What a training run is at one moment: all that a resume needs, the place in the data included."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array


class TrainState(flax.struct.PyTreeNode):
    step: Array  # steps taken so far
    params: Any
    opt_state: optax.OptState
    ema: Any = None  # averaged parameters, or None

    @classmethod
    def create(
        cls, params: Any, optimizer: optax.GradientTransformation, *, with_ema: bool
    ) -> "TrainState":
        ema = jax.tree.map(jnp.copy, params) if with_ema else None
        return cls(jnp.zeros((), jnp.int32), params, optimizer.init(params), ema)
