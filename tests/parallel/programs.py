"""A small program with everything random that a recipe can have, and data for it."""

import numpy as np

from vit_jax.config import default_config
from vit_jax.models import full_model_config
from vit_jax.training.program import Program

IMAGE, CLASSES = (16, 16, 3), 8


def make_program(**changes) -> Program:
    """Mixing, dropout, stochastic depth, accumulation, averages; `changes` are dotted options."""
    config = default_config()
    config.model = full_model_config("testing")
    config.model.patches.size = (4, 4)
    config.model.hidden_size = 64
    transformer = {"num_layers": 2, "num_heads": 4, "mlp_dim": 128, "dropout_rate": 0.1}
    config.model.transformer.update(transformer)
    config.model.transformer.stochastic_depth_rate = 0.1
    config.model.scan = True
    config.batch = 64
    config.accum_steps = 2
    config.total_steps = 20
    config.warmup_steps = 2
    config.base_lr = 0.1
    config.optim_dtype = "float32"
    config.mixup = 0.5
    config.ema_decay = 0.9
    config.update_from_flattened_dict(changes)
    return Program(config, IMAGE, CLASSES)


def batch_of(step: int, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    label = rng.integers(0, CLASSES, size).astype(np.int32)
    image = rng.standard_normal((size, *IMAGE)).astype(np.float32) + label[:, None, None, None]
    return {"image": image, "label": label}
