"""What a run compiles: the model, the optimizer, the step, and the shapes that go through it.

Training and planning build the same program; only training fills it with numbers.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import models
from vit_jax.aliases import Params, Size
from vit_jax.config import problems as option_problems
from vit_jax.models.fields import field_problems
from vit_jax.models.kinds import grid_at, module_with
from vit_jax.training.optim import make_optimizer
from vit_jax.training.state import TrainState
from vit_jax.training.step import Batch, Metrics, make_train_step

AbstractBatch = dict[str, jax.ShapeDtypeStruct]


def check_recipe(config: ml_collections.ConfigDict) -> list[str]:
    """Raises one ValueError with everything that is wrong with the options and the model, and
    returns remarks on what is allowed but odd.

    It comes first, before anything is opened or made. What it leaves depends on the data, on the
    weights or on the devices.
    """
    problems = [*option_problems(config), *_model_problems(config)] or _crop_problems(config)
    if problems:
        raise ValueError(f"{'; '.join(problems)}.")
    warmup, total = config.warmup_steps, config.total_steps
    remark = f"config.warmup_steps={warmup} is more than config.total_steps={total}: the learning "
    return [f"{remark}rate will not reach config.base_lr."] if warmup > total else []


def _model_problems(config: ml_collections.ConfigDict) -> list[str]:
    fields = config.get("model")
    if not isinstance(fields, ml_collections.ConfigDict):
        return ["config.model is missing (vit_jax.models.full_model_config(NAME) makes one)"]
    try:
        return field_problems(module_with(fields), fields.to_dict(), "config.model.")
    except ValueError as e:
        return [f"config.model: {e}"]


def _crop_problems(config: ml_collections.ConfigDict) -> list[str]:
    crop = config.pp.crop
    try:
        model = models.build_model(config.model.to_dict(), num_classes=1)
        grid_at((crop, crop) if isinstance(crop, int) else crop, model)
    except ValueError as e:
        return [f"config.pp.crop={crop} and config.model: {str(e).removesuffix('.')}"]
    return []


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    config: ml_collections.ConfigDict
    image_shape: tuple[int, int, int]  # height, width, channels
    num_classes: int
    multi_label: bool = False

    @functools.cached_property
    def model(self) -> models.Model:
        return models.build_model(self.config.model.to_dict(), self.num_classes)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config, self.abstract_params)

    @functools.cached_property
    def abstract_params(self) -> Params:
        return jax.eval_shape(self.init_params)

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        return jax.eval_shape(self.init_state, self.abstract_params)

    @property
    def abstract_batch(self) -> AbstractBatch:
        size = self.config.batch
        labels = (size, self.num_classes) if self.multi_label else (size,)
        kind = jnp.float32 if self.multi_label else jnp.int32
        return {
            "image": jax.ShapeDtypeStruct((size, *self.image_shape), jnp.float32),
            "label": jax.ShapeDtypeStruct(labels, kind),
        }

    @property
    def grid(self) -> Size:
        """The patches, (height, width), that an image is cut into."""
        return grid_at(self.image_shape[:2], self.model)

    def init_params(self) -> Params:
        """Random parameters; a scanned model's state holds the blocks stacked."""
        images = jnp.zeros((1, *self.image_shape))
        params = self.model.init(jax.random.key(self.config.seed), images)["params"]
        return models.stack_blocks(params) if self.config.model.get("scan") else params

    def init_state(self, params: Params) -> TrainState:
        """The state before the first step."""
        return TrainState.create(params, self.optimizer, with_ema=self.config.ema_decay > 0)

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return make_train_step(self.config, self.model, self.optimizer)(state, batch)
