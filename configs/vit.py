"""Fine-tunes any published ViT or hybrid on any data set, by the reference's recipe.

    python -m vit_jax.train --config configs/vit.py:b16,cifar10 --workdir runs/b16-cifar10 \\
        --config.pretrained=B_16.npz

The argument is MODEL,DATASET. MODEL: b16, l32, ti16, r50l32, h14, … or a full name from the table
of models (models/zoo.py). DATASET: a tfds name, a folder of images, a CSV of path,label. CIFAR-10,
CIFAR-100 and ImageNet have the reference's presets (SGD, cosine, 384 px, batch 512 in 8 parts;
378 px where patches are 14 px wide); others get 2,500 steps on `train`, tested on `test`.

Expected: the reference's README reports 98.9 % for b16,cifar10 from the i21k weights. Not measured
here: it needs an accelerator and those weights. The step itself follows the reference's recorded
trajectory to 1e-4 (tests/training), and docs/experiments.md has a small real run.
"""

import ml_collections

from vit_jax.config import fine_tuning
from vit_jax.models import find_model, full_model_config


def get_config(argument: str = "b16,cifar10") -> ml_collections.ConfigDict:
    model, _, dataset = argument.partition(",")
    name = find_model(model)
    config = fine_tuning(dataset or "cifar10")
    config.model = full_model_config(name)
    config.pp.crop -= config.pp.crop % config.model.patches.size[0]  # 378 for patches of 14
    if (name, config.dataset) == ("ViT-B_16", "cifar10"):
        config.base_lr = 0.01
    return config
