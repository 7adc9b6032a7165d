"""What a run compiles: the model, the optimizer, the step, and the shapes that go through it.

Training and planning build the same program; only training fills it with numbers.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import models
from vit_jax.training.optim import make_optimizer
from vit_jax.training.state import TrainState
from vit_jax.training.step import make_train_step


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    config: ml_collections.ConfigDict
    image_shape: tuple[int, int, int]  # height, width, channels
    num_classes: int
    multi_label: bool = False

    @functools.cached_property
    def model(self) -> nn.Module:
        return build_model(self.config, self.num_classes)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config, self._param_shapes)

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        return jax.eval_shape(self.new_state, self._param_shapes)

    @property
    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        size = self.config.batch
        labels = (size, self.num_classes) if self.multi_label else (size,)
        kind = jnp.float32 if self.multi_label else jnp.int32
        return {
            "image": jax.ShapeDtypeStruct((size, *self.image_shape), jnp.float32),
            "label": jax.ShapeDtypeStruct(labels, kind),
        }

    def unstacked_params(self) -> Any:
        """Random parameters under their published names."""
        images = jnp.zeros((1, *self.image_shape))
        return self.model.init(jax.random.key(self.config.seed), images)["params"]

    def new_params(self) -> Any:
        """Random parameters, in the layout of the state."""
        return self.stacked_if_scanned(self.unstacked_params())

    def new_state(self, params: Any) -> TrainState:
        return TrainState.create(params, self.optimizer, with_ema=self.config.ema_decay > 0)

    def stacked_if_scanned(self, params: Any) -> Any:
        """A scanned model's state holds the blocks stacked."""
        return models.stack_blocks(params) if self.config.model.get("scan") else params

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        return make_train_step(self.config, self.model, self.optimizer)(state, batch)

    @functools.cached_property
    def _param_shapes(self) -> Any:
        return jax.eval_shape(self.new_params)


def build_model(config: ml_collections.ConfigDict, num_classes: int) -> nn.Module:
    fields = config.model.to_dict()
    module = models.MlpMixer if "num_blocks" in fields else models.VisionTransformer
    return module(num_classes=num_classes, **fields)
