"""The smallest run that has everything: dropout, mixing, averaging, evaluation, checkpoints."""

from vit_jax.config import default_config
from vit_jax.models import full_model_config


def get_config():
    config = default_config()
    config.model = full_model_config("testing")
    config.model.patches.size = (4, 4)
    config.model.hidden_size = 32
    config.dataset = "digits"
    config.pp.crop = 8
    config.pp.channels = 1
    config.augment.crop_area = (0.9, 1.0)
    config.augment.flip = False
    config.batch = 32
    config.batch_eval = 64
    config.total_steps = 30
    config.warmup_steps = 3
    config.optimizer = "adamw"
    config.base_lr = 0.01
    config.mixup = 0.1
    config.ema_decay = 0.9
    config.progress_every = 5
    config.eval_every = 10
    config.checkpoint_every = 5
    config.reader_threads = 1
    config.parallel.strategy = "jit"  # in a test, with its eight devices, as in a process of one
    return config
