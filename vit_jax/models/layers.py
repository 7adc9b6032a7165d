"""The parts of a Vision Transformer: patch embedding, attention, MLP, encoder block, pooling head.

Module and parameter names are the published ones, so loading a checkpoint needs no renaming here.
Parameters are float32; `dtype` is what the arithmetic runs in. LayerNorm statistics and softmax
stay in float32 whatever `dtype` is.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
from jax import Array
from jax.typing import DTypeLike
from ml_collections.config_dict import FrozenConfigDict

from vit_jax.models import attention
from vit_jax.models.cpu import patches_as_rows, with_fast_gradient
from vit_jax.models.position import RelativePositionBias
from vit_jax.models.sharding import BATCH, TENSOR, constrain, splits_heads, target_platform

ATTENTION = "MultiHeadDotProductAttention_0"  # its name in blocks and pooling heads

GELU: dict[str, Callable[[Array], Array]] = {
    "tanh": lambda x: nn.gelu(x, approximate=True),
    "erf": lambda x: nn.gelu(x, approximate=False),
}


@dataclasses.dataclass(kw_only=True)
class BlockFields:
    """The options of a block, each declared once, here, and off by default.

    `VisionTransformer`, `Encoder` and `EncoderBlock` inherit these fields, and each passes all of
    them on with `shared_fields`. A new option costs its line here and the line that uses it.
    """

    qkv_bias: bool = True
    gelu: str = "tanh"  # or erf (timm, Hugging Face)
    norm_eps: float = 1e-6
    layer_scale: float | None = None  # initial LayerScale of each block (DINOv2)
    dtype: DTypeLike = jnp.float32  # of the arithmetic; parameters and outputs are float32
    attention_kernel: str = "auto"  # or a name in attention.KERNELS


def shared_fields(group: type[BlockFields], module: BlockFields) -> dict[str, Any]:
    """A module's values for the fields that it inherits from `group`."""
    return {field.name: getattr(module, field.name) for field in dataclasses.fields(group)}


def freeze_fields(module: nn.Module, *names: str) -> None:
    """Makes fields that are mappings immutable, so that jit can hash and compare a model. Lists
    become tuples: a model from JSON equals the same model from Python.
    """
    for name in names:
        value = getattr(module, name)
        if isinstance(value, Mapping | ml_collections.ConfigDict):
            plain = {key: tuple(v) if isinstance(v, list) else v for key, v in value.items()}
            object.__setattr__(module, name, FrozenConfigDict(plain))


class EncoderBlock(nn.Module, BlockFields):
    """Attention, then MLP, each on normalised tokens and added to its input.

    `relative_position` is (grid, leading, trailing) where attention has a relative position bias.
    """

    mlp_dim: int
    num_heads: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    head_dim: int | None = None
    relative_position: tuple[tuple[int, int], int, int] | None = None

    @nn.compact
    def __call__(self, x: Array, *, train: bool, drop_path_rate: float | Array = 0.0) -> Array:
        """`drop_path_rate` is the chance that an example skips each half of the block."""
        if x.ndim != 3:
            raise ValueError(f"An encoder block takes tokens of shape (b, n, d), not {x.shape}.")
        bias = None
        if self.relative_position is not None:
            grid, leading, trailing = self.relative_position
            bias = RelativePositionBias(
                grid, self.num_heads, leading, trailing, name="relative_position_bias"
            )()

        y = constrain(nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)(x), BATCH)
        y = MultiHeadDotProductAttention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            dropout_rate=self.attention_dropout_rate,
            qkv_bias=self.qkv_bias,
            dtype=self.dtype,
            kernel=self.attention_kernel,
        )(y, bias=bias, train=train)
        y = Dropout(self.dropout_rate)(y, train=train)
        if self.layer_scale is not None:
            y = LayerScale(self.layer_scale, dtype=self.dtype)(y)
        x = x + self._drop_path(y, drop_path_rate, train)

        y = constrain(nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)(x), BATCH)
        y = MlpBlock(
            mlp_dim=self.mlp_dim, dropout_rate=self.dropout_rate, gelu=self.gelu, dtype=self.dtype
        )(y, train=train)
        if self.layer_scale is not None:
            y = LayerScale(self.layer_scale, dtype=self.dtype)(y)
        x = constrain(x + self._drop_path(y, drop_path_rate, train), BATCH)
        self.sow("intermediates", "block", x, reduce_fn=keep_latest)
        return x

    def _drop_path(self, y: Array, rate: float | Array, train: bool) -> Array:
        if not train or (isinstance(rate, float) and rate == 0.0):
            return y
        keep = 1.0 - rate
        kept = jax.random.bernoulli(self.make_rng("dropout"), keep, (y.shape[0], 1, 1))
        return jnp.where(kept, y / jnp.asarray(keep, y.dtype), 0)


class Dropout(nn.Module):
    """linen's dropout, number for number, with the mask computed apart.

    Otherwise the TPU compiler fuses the random numbers into the neighbouring matrix product, which
    takes it minutes.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:
        if not train or self.rate == 0.0:
            return x
        if self.rate == 1.0:  # avoids the division by zero
            return jnp.zeros_like(x)
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(self.make_rng("dropout"), keep, x.shape)
        return jnp.where(jax.lax.optimization_barrier(kept), x / keep, 0)


class LayerScale(nn.Module):
    """A learned factor per channel on each half of a block (Touvron et al. 2021; in DINOv2)."""

    init_value: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, y: Array) -> Array:
        scale = self.param("scale", nn.initializers.constant(self.init_value), y.shape[-1:])
        return y * scale.astype(self.dtype)


class MultiHeadDotProductAttention(nn.Module):
    """Attention of `x` over itself, or over `context` if one is given.

    Parameters as in linen's module of this name: `query`, `key`, `value` with kernels (d, heads,
    head), `out` with (heads, head, d). `head_dim` is d / num_heads unless set. `qkv_bias` does not
    affect the bias of `out`. `capture` gets the weights whichever kernel computes the result.
    """

    num_heads: int
    head_dim: int | None = None
    dropout_rate: float = 0.0
    qkv_bias: bool = True
    dtype: DTypeLike = jnp.float32
    kernel: str = "auto"

    @nn.compact
    def __call__(
        self, x: Array, context: Array | None = None, *, bias: Array | None = None, train: bool
    ) -> Array:  # x: b n d
        width = x.shape[-1]
        if self.head_dim is None and width % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide a width of {width}.")
        head_dim = self.head_dim or width // self.num_heads

        query, key, value = (
            constrain(y, BATCH, None, TENSOR, None)
            for y in self._project(x, x if context is None else context, head_dim, train)
        )  # b n h e
        drops = train and self.dropout_rate > 0
        y = attention.dot_product_attention(
            query,
            key,
            value,
            bias=bias,
            dropout_rate=self.dropout_rate,
            dropout_rng=self.make_rng("dropout") if drops else None,
            kernel=self.kernel,
        )  # b n h e
        if self.has_variable("perturbations", "attention"):
            # Zeros whose gradient is that of the weights, which no kernel has to keep for it.
            added = self.get_variable("perturbations", "attention").astype(value.dtype)
            y = y + jnp.einsum("bhqk,bkhe->bqhe", added, value)
        if self.is_mutable_collection("intermediates"):
            weights = attention.attention_weights(query, key, bias)
            self.sow("intermediates", "attention", weights, reduce_fn=keep_latest)

        kernel, out_bias = Projection((self.num_heads, head_dim), (width,), True, name="out")()
        assert out_bias is not None
        kernel = with_fast_gradient(kernel, train, num_inputs=2).astype(self.dtype)
        y = jnp.tensordot(y, kernel, 2) + out_bias.astype(self.dtype)
        return constrain(y, BATCH)

    def _project(
        self, x: Array, context: Array, head_dim: int, train: bool
    ) -> tuple[Array, Array, Array]:
        heads = (self.num_heads, head_dim)
        parameters = {
            name: Projection(x.shape[-1:], heads, self.qkv_bias, name=name)()
            for name in ("query", "key", "value")
        }
        if context is x and target_platform() == "cpu" and not splits_heads():
            # One matmul three times as wide uses a CPU's cores better than three.
            kernels, biases = zip(*parameters.values(), strict=True)
            bias = jnp.stack(biases) if self.qkv_bias else None
            kernel = with_fast_gradient(jnp.stack(kernels, axis=1), train)
            y = self._dense(x, kernel, bias)  # b n 3 h e
            return y[:, :, 0], y[:, :, 1], y[:, :, 2]
        query = self._dense(x, *parameters["query"])
        key, value = (self._dense(context, *parameters[name]) for name in ("key", "value"))
        return query, key, value

    def _dense(self, x: Array, kernel: Array, bias: Array | None) -> Array:
        """x · kernel over the kernel's first axis; the others stay as they are."""
        # With the heads' axes in the product, a TPU writes them in the order attention reads.
        y = jnp.tensordot(x, kernel.astype(self.dtype), 1)
        return y if bias is None else y + bias.astype(self.dtype)


class Projection(nn.Module):
    """The kernel and bias of a dense layer between two groups of axes; the caller multiplies."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    use_bias: bool

    @nn.compact
    def __call__(self) -> tuple[Array, Array | None]:
        kernel = self.param("kernel", _flat_xavier(len(self.inputs)), (*self.inputs, *self.outputs))
        bias = self.param("bias", nn.initializers.zeros, self.outputs) if self.use_bias else None
        return kernel, bias


class MlpBlock(nn.Module):
    """Dense, GELU, dense, applied to every token on its own.

    Published Google weights were trained with the tanh GELU; erf would shift their logits by 7e-4.
    """

    mlp_dim: int
    dropout_rate: float = 0.0
    gelu: str = "tanh"
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:  # x: b n d
        drop = partial(Dropout(self.dropout_rate), train=train)
        y = GELU[self.gelu](self._dense(self.mlp_dim, train, "Dense_0")(x))  # b n m
        y = drop(constrain(y, BATCH, None, TENSOR))
        return drop(constrain(self._dense(x.shape[-1], train, "Dense_1")(y), BATCH))

    def _dense(self, features: int, train: bool, name: str) -> nn.Dense:
        return nn.Dense(
            features,
            dot_general=lambda x, kernel, *args, **kwargs: jax.lax.dot_general(
                x, with_fast_gradient(kernel, train), *args, **kwargs
            ),
            kernel_init=nn.initializers.xavier_uniform(),
            bias_init=nn.initializers.normal(stddev=1e-6),
            dtype=self.dtype,
            name=name,
        )


class PatchEmbedding(nn.Module):
    """Cuts images into patches and maps each to a vector: a convolution with stride = kernel size.

    On a CPU it is computed as a reshape and a matmul, which is faster there. `norm` adds a
    LayerNorm to the raw patches and another to their vectors (lucidrains' ViT).
    """

    features: int
    patch_size: tuple[int, int]
    norm: bool = False
    norm_eps: float = 1e-6
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Array) -> Array:  # b H W c -> b h w d
        if images.ndim != 4:
            raise ValueError(
                f"Images must have shape (batch, height, width, channels), not {images.shape}."
            )
        _, height, width, c = images.shape
        ph, pw = self.patch_size
        if height % ph or width % pw:
            near = [max(p, round(size / p) * p) for size, p in ((height, ph), (width, pw))]
            raise ValueError(
                f"A {height}×{width} input cannot be cut into {ph}×{pw} patches; "
                f"resize the images, for example to {near[0]}×{near[1]}."
            )
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (ph, pw, c, self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))

        if target_platform() != "cpu" and not self.norm:
            # Laying patches out as rows would copy the images once more.
            x = jax.lax.conv_general_dilated(
                images.astype(self.dtype),
                kernel.astype(self.dtype),
                window_strides=self.patch_size,
                padding="VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            return constrain(x + bias.astype(self.dtype), BATCH)

        x = patches_as_rows(images.astype(self.dtype), self.patch_size)
        if self.norm:
            x = nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="LayerNorm_0")(x)
        x = x @ kernel.reshape(-1, self.features).astype(self.dtype) + bias.astype(self.dtype)
        if self.norm:
            x = nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="LayerNorm_1")(x)
        return constrain(x, BATCH)


class MAPHead(nn.Module):
    """Attention pooling: one learned probe attends to all tokens. Names as in big_vision."""

    mlp_dim: int
    num_heads: int
    gelu: str = "tanh"
    norm_eps: float = 1e-6
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:  # b n d -> b d
        b, _, d = x.shape
        probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, d))
        probe = jnp.broadcast_to(probe, (b, 1, d)).astype(self.dtype)
        x = MultiHeadDotProductAttention(num_heads=self.num_heads, dtype=self.dtype)(
            probe, x, train=False
        )
        y = nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)(x)
        y = MlpBlock(mlp_dim=self.mlp_dim, gelu=self.gelu, dtype=self.dtype)(y, train=False)
        return (x + y)[:, 0]


def _flat_xavier(num_inputs: int) -> Callable[[Array, tuple[int, ...]], Array]:
    """Xavier-uniform as if the kernel were the matrix it stands for."""
    init = nn.initializers.xavier_uniform()

    def flat_init(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        matrix = (math.prod(shape[:num_inputs]), math.prod(shape[num_inputs:]))
        return init(key, matrix, dtype).reshape(shape)

    return flat_init


def perturbed(module: nn.Module, name: str, value: Array) -> Array:
    """The value plus what the caller put into `perturbations` for it, if anything: a gradient can
    be taken by it, or another value put in its place.
    """
    if not module.has_variable("perturbations", name):
        return value
    return value + module.get_variable("perturbations", name).astype(value.dtype)


def keep_latest(_: object, value: Array) -> Array:
    """For `sow`: a captured value is the value itself, not a tuple of all values so far."""
    return value
