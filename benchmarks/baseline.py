"""A ViT as the reference writes it: plain linen modules, nothing chosen for speed.

The yardstick for benchmarks.model. Parameter names are the published ones, so it computes the same
function as ours from the same parameters (tests/models/test_baseline.py).
"""

import flax.linen as nn
import jax.numpy as jnp


class Block(nn.Module):
    mlp_dim: int
    num_heads: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.MultiHeadDotProductAttention(
            num_heads=self.num_heads,
            dtype=self.dtype,
            kernel_init=nn.initializers.xavier_uniform(),
            broadcast_dropout=False,
            deterministic=True,
        )(y, y)
        x = x + y
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = MlpBlock(self.mlp_dim, self.dtype)(y)
        return x + y


class MlpBlock(nn.Module):
    mlp_dim: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        y = nn.gelu(nn.Dense(self.mlp_dim, dtype=self.dtype)(x))
        return nn.Dense(x.shape[-1], dtype=self.dtype)(y)


class Encoder(nn.Module):
    num_layers: int
    mlp_dim: int
    num_heads: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.normal(stddev=0.02)
        x = x + AddPosition(init, name="posembed_input")(x)
        for i in range(self.num_layers):
            x = Block(self.mlp_dim, self.num_heads, self.dtype, name=f"encoderblock_{i}")(x)
        return nn.LayerNorm(dtype=self.dtype, name="encoder_norm")(x)


class AddPosition(nn.Module):
    init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x):
        return self.param("pos_embedding", self.init, (1, *x.shape[1:]))


class PlainViT(nn.Module):
    """The fields of `models.VisionTransformer` that published models without a stem use."""

    num_classes: int
    patch_size: tuple[int, int]
    hidden_size: int
    num_layers: int
    mlp_dim: int
    num_heads: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, images, *, train=False):
        x = nn.Conv(
            self.hidden_size,
            self.patch_size,
            strides=self.patch_size,
            padding="VALID",
            dtype=self.dtype,
            name="embedding",
        )(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        cls = self.param("cls", nn.initializers.zeros, (1, 1, self.hidden_size))
        x = jnp.concatenate([jnp.tile(cls, (x.shape[0], 1, 1)).astype(x.dtype), x], axis=1)
        x = Encoder(self.num_layers, self.mlp_dim, self.num_heads, self.dtype, name="Transformer")(
            x
        )
        return nn.Dense(self.num_classes, name="head", kernel_init=nn.initializers.zeros)(x[:, 0])
