"""The Vision Transformer (Dosovitskiy et al. 2021), the whole network on one screen.

Fields, call and parameter names are those of google-research/vision_transformer. Fields after
`model_name`, and those inherited from `EncoderFields`, go beyond it and are off by default.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.aliases import Size
from vit_jax.models.hybrid import resnet_stem
from vit_jax.models.layers import (
    BlockFields,
    Dropout,
    EncoderBlock,
    MAPHead,
    PatchEmbedding,
    freeze_fields,
    keep_latest,
    perturbed,
    shared_fields,
)
from vit_jax.models.position import PositionEmbedding
from vit_jax.models.sharding import BATCH, constrain
from vit_jax.models.stacking import stack_blocks, unstack_blocks

# What the head sees: the class token, the mean of the patches, the mean of class token and patches
# (vit-pytorch), the result of attention pooling, or every token on its own.
CLASSIFIERS = ("token", "gap", "mean", "map", "unpooled", "token_unpooled")
WITH_CLASS_TOKEN = ("token", "mean", "token_unpooled")

# What the backward pass keeps of each block; the rest it computes again.
REMAT_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(kw_only=True)
class EncoderFields(BlockFields):
    """What `VisionTransformer` passes to its encoder, including the options of a block."""

    position: str = "learned"  # or another of position.KINDS
    num_registers: int = 0
    scan: bool = False  # one compiled block for all layers; takes the same parameters
    remat: str | None = None  # a name in REMAT_POLICIES


class Encoder(nn.Module, EncoderFields):
    """Position embedding, the stack of blocks, and a last LayerNorm.

    Register tokens (Darcet et al. 2024) stay inside the encoder: appended after the positions,
    dropped before it returns. Stochastic depth rises linearly from 0 at the first block to its rate
    at the last.
    """

    num_layers: int
    mlp_dim: int
    num_heads: int
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    stochastic_depth_rate: float = 0.0
    head_dim: int | None = None
    grid: Size = (1, 1)
    final_norm: bool = True

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:  # x: b n d
        n = x.shape[1]
        x = PositionEmbedding(self.position, self.grid, name="posembed_input")(x)
        x = Dropout(self.dropout_rate)(x, train=train)
        if self.num_registers:
            shape = (1, self.num_registers, x.shape[-1])
            registers = self.param("registers", nn.initializers.normal(stddev=0.02), shape)
            registers = jnp.broadcast_to(registers, (x.shape[0], *shape[1:])).astype(x.dtype)
            x = jnp.concatenate([x, registers], axis=1)
        x = self._blocks(x, num_leading=n - self.grid[0] * self.grid[1], train=train)
        if not self.final_norm:
            return x[:, :n]
        norm = nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="encoder_norm")
        return constrain(norm(x[:, :n]), BATCH)

    def _blocks(self, x: Array, *, num_leading: int, train: bool) -> Array:
        relative = (self.grid, num_leading, self.num_registers)
        make_block = partial(
            EncoderBlock,
            mlp_dim=self.mlp_dim,
            num_heads=self.num_heads,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            head_dim=self.head_dim,
            relative_position=relative if self.position == "relative" else None,
            **shared_fields(BlockFields, self),
        )
        rates = np.linspace(0.0, self.stochastic_depth_rate, self.num_layers).tolist()

        if not self.scan:
            for i, rate in enumerate(rates):
                run = self._rematerialised(partial(_run_block, train=train, drop_path_rate=rate))
                x = run(make_block(name=f"encoderblock_{i}"), x)
            return x

        def scan_body(block: EncoderBlock, x: Array, rate: Array) -> tuple[Array, None]:
            drop_path_rate = rate if self.stochastic_depth_rate else 0.0
            return _run_block(block, x, train=train, drop_path_rate=drop_path_rate), None

        scan = nn.scan(
            self._rematerialised(scan_body, prevent_cse=False),
            variable_axes={"params": 0, "intermediates": 0, "perturbations": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.num_layers,
        )
        return scan(make_block(name="encoderblock"), x, jnp.array(rates, x.dtype))[0]

    def _rematerialised(self, function: Callable[..., Any], **options: bool) -> Callable[..., Any]:
        if not self.remat:
            return function
        return nn.remat(function, policy=REMAT_POLICIES[self.remat], **options)


class VisionTransformer(nn.Module, EncoderFields):
    """An image in, class scores out (or features, where `num_classes` is 0).

    `patches.size` is (height, width). `transformer` holds the fields of `Encoder`: num_layers,
    mlp_dim, num_heads, dropout_rate, attention_dropout_rate, and ours, stochastic_depth_rate and
    head_dim. `resnet.{num_layers,width_factor}` puts a ResNet before the patches (a hybrid).
    """

    num_classes: int | None
    patches: Mapping[str, Size]
    transformer: Mapping[str, Any] | None
    hidden_size: int
    resnet: Mapping[str, Any] | None = None
    representation_size: int | None = None
    classifier: str = "token"
    head_bias_init: float = 0.0
    encoder: type[nn.Module] = Encoder
    model_name: str | None = None
    # Beyond the reference, like all of EncoderFields:
    patch_norm: bool = False  # LayerNorm before and after the patch embedding (lucidrains)
    fc_norm: bool = False  # LayerNorm after pooling in place of before it (timm)
    distilled: bool = False  # DeiT's second token and head; the two heads are averaged

    def __post_init__(self):
        freeze_fields(self, "patches", "transformer", "resnet")
        if self.classifier not in CLASSIFIERS:
            raise ValueError(f"No classifier {self.classifier!r}; choose {', '.join(CLASSIFIERS)}.")
        if self.distilled and (self.classifier != "token" or self.representation_size is not None):
            raise ValueError(
                "A distilled model classifies by its tokens: it needs classifier='token' and no "
                f"representation_size, not {self.classifier!r} and {self.representation_size}."
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False) -> Array:  # b H W c -> b k
        x = images
        if self.resnet is not None:
            x = resnet_stem(x, **self.resnet, dtype=self.dtype)
        x = PatchEmbedding(
            self.hidden_size,
            self.patches["size"],
            norm=self.patch_norm,
            norm_eps=self.norm_eps,
            dtype=self.dtype,
            name="embedding",
        )(x)  # b h w d
        x = perturbed(self, "patch_embedding", x)
        self.sow("intermediates", "patch_embedding", x, reduce_fn=keep_latest)

        if self.transformer is not None:
            b, h, w, d = x.shape
            x = x.reshape(b, h * w, d)
            if self.classifier in WITH_CLASS_TOKEN:
                names = ("cls", "dist") if self.distilled else ("cls",)
                tokens = [self.param(name, nn.initializers.zeros, (1, 1, d)) for name in names]
                tokens = [jnp.broadcast_to(token, (b, 1, d)).astype(x.dtype) for token in tokens]
                x = jnp.concatenate([*tokens, x], axis=1)
            x = self._encoder(grid=(h, w))(x, train=train)  # b n d

        distilled = x[:, 1] if self.distilled else None
        if self.classifier == "token":
            x = x[:, 0]
        elif self.classifier in ("gap", "mean"):
            x = x.mean(axis=range(1, x.ndim - 1))
        elif self.classifier == "map":
            assert self.transformer is not None
            x = MAPHead(
                mlp_dim=self.transformer["mlp_dim"],
                num_heads=self.transformer["num_heads"],
                gelu=self.gelu,
                norm_eps=self.norm_eps,
                dtype=self.dtype,
                name="MAPHead_0",
            )(x)

        if self.fc_norm:
            norm = nn.LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="fc_norm")
            x = norm(x)
            distilled = norm(distilled) if distilled is not None else None
        if self.representation_size is not None:
            x = nn.tanh(nn.Dense(self.representation_size, dtype=self.dtype, name="pre_logits")(x))
        self.sow("intermediates", "representation", x, reduce_fn=keep_latest)
        if self.num_classes:
            x = self._head(self.num_classes, "head")(x)
        if distilled is not None:
            if self.num_classes:
                distilled = self._head(self.num_classes, "head_dist")(distilled)
            x = (x + distilled) / 2
        return constrain(x.astype(jnp.float32), BATCH)

    def _head(self, num_classes: int, name: str) -> nn.Dense:
        return nn.Dense(
            num_classes,
            kernel_init=nn.initializers.zeros,
            bias_init=nn.initializers.constant(self.head_bias_init),
            dtype=self.dtype,
            name=name,
        )

    def _encoder(self, grid: Size) -> nn.Module:
        assert self.transformer is not None
        encoder = self.encoder
        if self.scan:
            # The scan sees stacked blocks; the model's own parameters have the published names.
            encoder = nn.map_variables(
                encoder,
                "params",
                trans_in_fn=stack_blocks,
                trans_out_fn=unstack_blocks,
                init=self.is_initializing(),
                mutable=self.is_initializing(),
            )
        return encoder(
            **self.transformer,
            grid=grid,
            final_norm=not self.fc_norm,
            **shared_fields(EncoderFields, self),
            name="Transformer",
        )


def _run_block(
    block: EncoderBlock, x: Array, *, train: bool, drop_path_rate: float | Array
) -> Array:
    return block(x, train=train, drop_path_rate=drop_path_rate)
