"""The networks: flax.linen modules with the published names, and the table of published sizes."""

from vit_jax.models.intermediates import (
    AttentionGradients,
    Intermediates,
    capture,
    capture_with_gradients,
)
from vit_jax.models.kinds import (
    KINDS,
    Model,
    build_model,
    find_kind,
    model_fields,
    num_layers,
    parameter_shapes,
    patch_stride,
)
from vit_jax.models.mixer import MlpMixer
from vit_jax.models.stacking import stack_blocks, unstack_blocks
from vit_jax.models.vit import Encoder, VisionTransformer
from vit_jax.models.zoo import (
    AUGREG_CONFIGS,
    MODEL_CONFIGS,
    find_model,
    full_model_config,
    get_model,
    guess_model,
    model_config,
)

__all__ = [
    "AUGREG_CONFIGS",
    "KINDS",
    "MODEL_CONFIGS",
    "AttentionGradients",
    "Encoder",
    "Intermediates",
    "MlpMixer",
    "Model",
    "VisionTransformer",
    "build_model",
    "capture",
    "capture_with_gradients",
    "find_kind",
    "find_model",
    "full_model_config",
    "get_model",
    "guess_model",
    "model_config",
    "model_fields",
    "num_layers",
    "parameter_shapes",
    "patch_stride",
    "stack_blocks",
    "unstack_blocks",
]
