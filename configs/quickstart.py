"""Fine-tunes the bundled small ViT on handwritten digits: offline, under a minute on two CPU cores.

    python -m vit_jax.train --workdir runs/quickstart

The checkpoint was trained on 28×28 pictures of clothes (pretrain_fashion_mnist.py). Here it sees
digits at 24×24: its 7×7 position grid is rescaled to 6×6 and its head replaced.

Expected: at least 97 % of the 179 held-out digits (tests/run/test_quickstart.py runs it).
"""

from pathlib import Path

import ml_collections

from vit_jax.config import default_config
from vit_jax.models import full_model_config

CHECKPOINT = Path(__file__).resolve().parent.parent / "checkpoints" / "fashion_mnist_vit.npz"


def get_config() -> ml_collections.ConfigDict:
    config = default_config()
    config.model = full_model_config("R+ViT-tiny_4")
    config.pretrained = str(CHECKPOINT)
    config.dataset = "digits"
    config.pp.crop = 24
    config.pp.channels = 1
    config.augment.crop_area = (0.7, 1.0)
    config.augment.flip = False  # a mirrored digit is another digit
    config.batch = 64
    config.batch_eval = 179
    config.total_steps = 300
    config.warmup_steps = 25
    config.optimizer = "adamw"
    config.optim_dtype = "float32"
    config.base_lr = 2e-3
    config.eval_every = 50
    config.checkpoint_every = 100
    return config
