"""The yardstick of benchmarks.model computes what our model computes, or the race is no race."""

import jax
import numpy as np

from benchmarks.baseline import PlainViT
from tests.reference import random_params
from vit_jax import models


def test_plain_linen_vit_is_the_same_function_of_the_same_parameters():
    config = models.full_model_config("ViT-Ti_16")
    config.transformer.update(num_layers=2, mlp_dim=48, num_heads=3)
    config.hidden_size, config.patches.size = 24, (8, 8)
    ours = models.VisionTransformer(num_classes=5, **config)
    plain = PlainViT(5, (8, 8), hidden_size=24, num_layers=2, mlp_dim=48, num_heads=3)
    images = jax.random.normal(jax.random.key(1), (2, 32, 24, 3))
    params = random_params(ours, images)
    np.testing.assert_allclose(
        ours.apply({"params": params}, images),
        plain.apply({"params": params}, images),
        atol=1e-5,
    )
