"""Trains a ViT from random weights, with the regularisation this needs (AugReg's middle setting).

    python -m vit_jax.train --config configs/scratch.py:s16,imagenet2012 --workdir runs/scratch

The argument is MODEL,DATASET as in vit.py. AdamW, RandAugment, MixUp, stochastic depth, 300 epochs'
worth of ImageNet steps at a batch of 1,024; set total_steps and batch for other data sets.

Expected: not measured here at this size; docs/experiments.md has a small run on CIFAR-10.
"""

import ml_collections

from vit_jax.config import default_config
from vit_jax.models import find_model, full_model_config


def get_config(argument: str = "s16,imagenet2012") -> ml_collections.ConfigDict:
    model, _, dataset = argument.partition(",")
    config = default_config()
    config.model = full_model_config(find_model(model))
    config.model.transformer.stochastic_depth_rate = 0.1
    config.model.dtype = "bfloat16"
    config.dataset = dataset or "imagenet2012"
    config.pp.test = "validation" if config.dataset == "imagenet2012" else "test"
    config.pp.crop = 224
    config.pp.resize = 256
    config.augment.randaugment_layers = 2
    config.batch = config.batch_eval = 1_024
    config.total_steps = 375_000
    config.warmup_steps = 10_000
    config.optimizer = "adamw"
    config.base_lr = 1e-3
    config.beta2 = 0.95
    config.weight_decay = 0.1
    config.mixup = 0.2
    config.eval_every = 5_000
    config.progress_every = 100
    config.checkpoint_every = 5_000
    config.uint8_to_device = True
    return config
