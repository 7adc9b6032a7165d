"""Trains the small ViT that is bundled in checkpoints/, from scratch, on Fashion-MNIST.

    python -m vit_jax.train --config configs/pretrain_fashion_mnist.py --workdir runs/fashion \\
        --config.tfds_data_dir=DIRECTORY_OF_PREPARED_TFDS_DATA_SETS

Expected: at least 90 % of the 10,000 test images.
"""

import ml_collections

from vit_jax.config import default_config
from vit_jax.models import full_model_config


def model_config() -> ml_collections.ConfigDict:
    """0.3 M parameters: 4×4 patches of gray images, 4 blocks of width 80."""
    config = full_model_config("testing")
    config.model_name = "ViT-tiny_4"
    config.patches.size = (4, 4)
    config.hidden_size = 80
    config.classifier = "gap"
    config.transformer.update(num_layers=4, mlp_dim=240, num_heads=4, dropout_rate=0.0)
    return config


def get_config() -> ml_collections.ConfigDict:
    config = default_config()
    config.model = model_config()
    config.dataset = "fashion_mnist"
    config.pp.crop = 28
    config.pp.channels = 1
    config.augment.crop_area = (0.85, 1.0)
    config.batch = 64
    config.batch_eval = 500
    config.total_steps = 9_400  # 10 epochs
    config.optimizer = "adamw"
    config.optim_dtype = "float32"
    config.base_lr = 1e-3
    config.warmup_steps = 500
    config.weight_decay = 0.05
    config.eval_every = 1_000
    config.progress_every = 100
    return config
