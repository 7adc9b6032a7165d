"""The ResNet in front of a hybrid: BiT's ResNet with weight standardisation and GroupNorm.

Parameter names are the published ones: conv_root, gn_root, block{s}/unit{u}/….
"""

from collections.abc import Sequence

import flax.linen as nn
from jax import Array, lax
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from vit_jax.models.sharding import BATCH, constrain


def resnet_stem(
    x: Array,
    *,
    num_layers: Sequence[int],
    width_factor: float = 1,
    norm_eps: float = 1e-6,
    variance_eps: float | None = None,
    dtype: DTypeLike,
) -> Array:  # b H W c -> b h w d
    """Root (stride 4), then stages; each but the first halves the grid and doubles the width.

    `norm_eps` is the epsilon of the GroupNorms. With `variance_eps`, kernels are standardised as
    timm does, with an epsilon added to the variance; the published weights have 1e-5 added to the
    standard deviation.

    A function and not a module: published files keep these parameters at the root of the tree, so
    they must land in the scope of whichever module calls this.
    """
    width = int(64 * width_factor)
    x = StdConv(width, (7, 7), 2, dtype, variance_eps, name="conv_root")(x.astype(dtype))
    x = nn.relu(nn.GroupNorm(epsilon=norm_eps, dtype=dtype, name="gn_root")(x))
    x = constrain(nn.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="SAME"), BATCH)
    for stage, num_units in enumerate(num_layers):
        stride = 1 if stage == 0 else 2
        name = f"block{stage + 1}"
        shape = (num_units, width * 2**stage, stride)
        x = ResNetStage(*shape, dtype, norm_eps, variance_eps, name=name)(x)
    return x


class ResNetStage(nn.Module):
    """Units of one width; the first has the stage's stride."""

    num_units: int
    features: int
    stride: int
    dtype: DTypeLike
    norm_eps: float = 1e-6
    variance_eps: float | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for unit in range(self.num_units):
            stride = self.stride if unit == 0 else 1
            x = BottleneckUnit(
                self.features,
                stride,
                self.dtype,
                self.norm_eps,
                self.variance_eps,
                name=f"unit{unit + 1}",
            )(x)
        return x


class BottleneckUnit(nn.Module):
    """1×1, 3×3 (strided), 1×1 to four times the width; projects the input if its shape changes."""

    features: int
    stride: int
    dtype: DTypeLike
    norm_eps: float = 1e-6
    variance_eps: float | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def conv(y: Array, features: int, size: int, name: str, stride: int = 1) -> Array:
            shape = (features, (size, size), stride)
            return StdConv(*shape, self.dtype, self.variance_eps, name=f"conv{name}")(y)

        def norm(y: Array, name: str, init: Initializer = nn.initializers.ones) -> Array:
            group_norm = nn.GroupNorm(
                epsilon=self.norm_eps, dtype=self.dtype, scale_init=init, name=f"gn{name}"
            )
            return group_norm(y)

        wide = 4 * self.features
        residual = x
        if x.shape[-1] != wide or self.stride != 1:
            residual = norm(conv(x, wide, 1, "_proj", self.stride), "_proj")
        y = nn.relu(norm(conv(x, self.features, 1, "1"), "1"))
        y = nn.relu(norm(conv(y, self.features, 3, "2", self.stride), "2"))
        y = norm(conv(y, wide, 1, "3"), "3", nn.initializers.zeros)
        return constrain(nn.relu(residual + y), BATCH)


class StdConv(nn.Module):
    """A convolution without bias; its kernel has zero mean, unit deviation per output channel."""

    features: int
    kernel_size: tuple[int, int]
    stride: int
    dtype: DTypeLike
    variance_eps: float | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        kernel = kernel - kernel.mean(axis=(0, 1, 2))
        if self.variance_eps is None:
            # eps is added to the deviation, not to the variance: the published weights expect it.
            deviation = kernel.std(axis=(0, 1, 2)) + 1e-5
        else:
            deviation = (kernel.var(axis=(0, 1, 2)) + self.variance_eps) ** 0.5
        kernel = (kernel / deviation).astype(self.dtype)
        return lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(self.stride, self.stride),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


def stem_stride(num_layers: Sequence[int]) -> int:
    """Pixels of the image per step on the stem's output grid."""
    return 4 * 2 ** max(0, len(num_layers) - 1)
