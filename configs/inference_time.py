"""Measures how many images a second a model classifies, as the reference does.

    python -m vit_jax.train --config configs/inference_time.py:ViT-B_16 --workdir runs/speed

Tries batches of 1, 2, 4, … until config.batch_eval and prints the best; writes inference_time.csv.

Expected: it depends on the machine; benchmarks/ has comparisons that mean something.
"""

import ml_collections

from vit_jax.config import default_config
from vit_jax.models import find_model, full_model_config


def get_config(argument: str = "ViT-B_32") -> ml_collections.ConfigDict:
    config = default_config()
    config.trainer = "inference_time"
    config.model = full_model_config(find_model(argument))
    config.batch_eval = 16
    config.pp.crop = 224
    return config
