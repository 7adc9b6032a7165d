"""Trains the small ViT that is bundled in checkpoints/, from scratch, on Fashion-MNIST.

R+ViT-tiny_4 has 0.27 M parameters: a ResNet root of 32 channels turns every 4×4 pixels into a
token, and 4 blocks of width 80 follow. With little data, the root learns faster than plain patches
(docs/experiments.md).

    python -m vit_jax.train --config configs/pretrain_fashion_mnist.py --workdir runs/fashion \\
        --config.tfds_data_dir=DIRECTORY_OF_PREPARED_TFDS_DATA_SETS

Expected: 90.14 % of the 10,000 test images, measured on two CPU cores (checkpoints/README.md).
"""

import ml_collections

from vit_jax.config import default_config
from vit_jax.models import full_model_config


def get_config() -> ml_collections.ConfigDict:
    config = default_config()
    config.model = full_model_config("R+ViT-tiny_4")
    config.dataset = "fashion_mnist"
    config.pp.crop = 28
    config.pp.channels = 1
    config.augment.crop_area = (1.0, 1.0)  # whole images; mirrored half of the time
    config.batch = 64
    config.batch_eval = 500
    config.total_steps = 9_600  # 10.2 epochs
    config.optimizer = "adamw"
    config.optim_dtype = "float32"
    config.base_lr = 2e-3
    config.beta2 = 0.95
    config.warmup_steps = 300
    config.weight_decay = 0.05
    config.eval_every = 1_000
    config.progress_every = 100
    return config
