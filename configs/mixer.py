"""Fine-tunes an MLP-Mixer (Tolstikhin et al. 2021) by the reference's recipe.

    python -m vit_jax.train --config configs/mixer.py:b16,cifar10 --workdir runs/mixer \\
        --config.pretrained=Mixer-B_16.npz

The argument is MODEL,DATASET, with MODEL b16, b32 or l16. A Mixer runs at the resolution it was
trained at, 224 px.

Expected: not measured here, because the weights were not available.
"""

import ml_collections

from vit_jax.config import fine_tuning
from vit_jax.models import find_model, full_model_config


def get_config(argument: str = "b16,cifar10") -> ml_collections.ConfigDict:
    model, _, dataset = argument.partition(",")
    config = fine_tuning(dataset or "cifar10")
    config.model = full_model_config(find_model(f"Mixer-{model.removeprefix('Mixer-')}"))
    config.pp.crop = 224
    return config
