"""The yardstick of benchmarks.model computes what our model computes, or the race is no race."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.baseline import PlainViT
from tests.reference import random_params
from vit_jax import models
from vit_jax.models import cpu, layers
from vit_jax.models.sharding import BATCH
from vit_jax.parallel.mesh import arrange
from vit_jax.planning.topology import find_devices


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


def test_kernels_as_a_cpu_learns_them_have_the_same_derivatives_both_ways(monkeypatch):
    block = layers.EncoderBlock(mlp_dim=48, num_heads=3)
    x = jax.random.normal(jax.random.key(1), (2, 5, 24))
    params = jax.jit(functools.partial(block.init, train=True))(jax.random.key(0), x)["params"]

    def derivatives():
        def loss(params):
            return (block.apply({"params": params}, x, train=True) ** 2).sum()

        return jax.grad(loss)(params), jax.jvp(loss, (params,), (params,))[1]

    on_cpu = derivatives()
    monkeypatch.setattr(cpu, "on_one_cpu", lambda: False)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-5), on_cpu, derivatives())
    )


@pytest.mark.tpu
def test_what_is_written_for_cpus_costs_a_tpu_no_bytes():
    """The TPU compiler's own count of what its program reads and writes, against plain linen's."""
    pytest.importorskip("libtpu", reason="no TPU compiler here: pip install 'jax[tpu]'")
    config = models.full_model_config("ViT-S_16")
    config.transformer.num_layers = 1
    sizes = {name: config.transformer[name] for name in ("num_layers", "mlp_dim", "num_heads")}
    ours = models.VisionTransformer(num_classes=1000, **config)
    plain = PlainViT(1000, (16, 16), hidden_size=384, **sizes)
    assert _bytes_on_tpu(ours) <= _bytes_on_tpu(plain)


def _bytes_on_tpu(model) -> float:
    """What one chip of four reads and writes in a forward pass of its 64 images."""
    mesh = arrange(find_devices("v5e:2x2"), 4, 1)
    sharding = NamedSharding(mesh, PartitionSpec(BATCH))
    images = jax.ShapeDtypeStruct((256, 64, 64, 3), jnp.bfloat16, sharding=sharding)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 64, 64, 3)))["params"]
    with jax.set_mesh(mesh):
        forward = jax.jit(lambda params, images: model.apply({"params": params}, images))
        return forward.lower(params, images).compile().cost_analysis()["bytes accessed"]


def test_patches_are_embedded_alike_on_every_platform(monkeypatch):
    embedding = layers.PatchEmbedding(features=24, patch_size=(8, 4))
    images = jax.random.normal(jax.random.key(0), (2, 32, 24, 3))
    params = random_params(embedding, images)
    on_cpu = embedding.apply({"params": params}, images)
    monkeypatch.setattr(layers, "target_platform", lambda: "tpu")
    np.testing.assert_allclose(embedding.apply({"params": params}, images), on_cpu, atol=1e-5)
