"""MLP-Mixer (Tolstikhin et al. 2021): tokens mixed by one MLP, channels by another."""

from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from vit_jax.aliases import Size
from vit_jax.models.layers import GELU, PatchEmbedding, freeze_fields, keep_latest, perturbed
from vit_jax.models.sharding import BATCH, TENSOR, constrain


class MlpBlock(nn.Module):
    """Dense, GELU, dense along the last axis."""

    mlp_dim: int
    gelu: str = "tanh"
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = GELU[self.gelu](nn.Dense(self.mlp_dim, dtype=self.dtype)(x))
        y = constrain(y, BATCH, None, TENSOR)
        return constrain(nn.Dense(x.shape[-1], dtype=self.dtype)(y), BATCH)


class MixerBlock(nn.Module):
    """Mixes across tokens, then across channels, each on normalised input and added to it."""

    tokens_mlp_dim: int
    channels_mlp_dim: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:  # x: b n d
        y = nn.LayerNorm(dtype=self.dtype)(x).swapaxes(1, 2)  # b d n
        y = MlpBlock(self.tokens_mlp_dim, dtype=self.dtype, name="token_mixing")(y)
        x = x + y.swapaxes(1, 2)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + MlpBlock(self.channels_mlp_dim, dtype=self.dtype, name="channel_mixing")(y)
        self.sow("intermediates", "block", x, reduce_fn=keep_latest)
        return x


class MlpMixer(nn.Module):
    """An image in, class scores out. Tied to its grid: token mixing has that size."""

    patches: Mapping[str, Size]
    num_classes: int | None
    num_blocks: int
    hidden_dim: int
    tokens_mlp_dim: int
    channels_mlp_dim: int
    model_name: str | None = None
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        freeze_fields(self, "patches")
        super().__post_init__()

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False) -> Array:  # b H W c -> b k
        del train  # a Mixer has no dropout; all models take the argument
        x = PatchEmbedding(self.hidden_dim, self.patches["size"], dtype=self.dtype, name="stem")(
            images
        )
        x = perturbed(self, "patch_embedding", x)
        self.sow("intermediates", "patch_embedding", x, reduce_fn=keep_latest)
        x = x.reshape(x.shape[0], -1, x.shape[-1])  # b n d
        for _ in range(self.num_blocks):
            x = MixerBlock(self.tokens_mlp_dim, self.channels_mlp_dim, dtype=self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype, name="pre_head_layer_norm")(x)
        x = x.mean(axis=1)
        self.sow("intermediates", "representation", x, reduce_fn=keep_latest)
        if self.num_classes:
            init = nn.initializers.zeros
            x = nn.Dense(self.num_classes, kernel_init=init, dtype=self.dtype, name="head")(x)
        return constrain(x.astype(jnp.float32), BATCH)
