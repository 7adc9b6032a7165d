"""Fine-tunes an AugReg checkpoint (Steiner et al. 2021) as its colab does: short, no dropout.

    python -m vit_jax.train --config configs/augreg.py:R_Ti_16 --workdir runs/augreg \\
        --config.pretrained_dir=DIRECTORY_OF_NPZ_FILES

The argument is NAME[,DATASET]: an AugReg model name (Ti_16, S_32, R26_S_32, B_16, …) and a data
set, oxford_iiit_pet unless given. Weights are read from <pretrained_dir>/<model_or_filename>.npz,
which is NAME.npz unless config.model_or_filename says otherwise, or from config.pretrained.

Expected: not measured here, because the weights were not available.
"""

import ml_collections

from vit_jax.config import fine_tuning
from vit_jax.models import AUGREG_CONFIGS, find_model, full_model_config


def get_config(argument: str = "R_Ti_16") -> ml_collections.ConfigDict:
    model, _, dataset = argument.partition(",")
    config = fine_tuning(dataset or "oxford_iiit_pet")
    config.model = full_model_config(model if model in AUGREG_CONFIGS else find_model(model))
    config.model.transformer.dropout_rate = 0.0
    config.model_or_filename = model
    config.total_steps = 500
    config.warmup_steps = 100
    config.base_lr = 0.03
    return config
