"""A model as StableHLO: one program for CPU, CUDA and TPU and any batch size, weights inside."""

import math
from collections.abc import Callable
from typing import cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array

from vit_jax.classifier import Classifier
from vit_jax.exporting.quantize import dequantize, quantize
from vit_jax.models import VisionTransformer, patch_stride
from vit_jax.models.attention import LONG_SEQUENCE

PLATFORMS = ("cpu", "cuda", "tpu")
_LIMIT = 2**31  # bytes: what a flatbuffer can hold


def portable_function(classifier: Classifier, weights: str) -> Callable[[Array], Array]:
    """From images to scores, with the weights inside and no kernel made for a single backend."""
    stored = quantize(classifier.params, weights)
    model = classifier.model.clone(dtype="float32" if weights == "int8" else weights)
    if isinstance(model, VisionTransformer):
        is_long = math.prod(classifier.grid) >= LONG_SEQUENCE
        model = model.clone(attention_kernel="chunked" if is_long else "xla")

    def function(images: Array) -> Array:  # b h w c -> b k
        return cast(Array, model.apply({"params": dequantize(stored)}, images, train=False))

    return function


def serialize(function: Callable[[Array], Array], shape: tuple[int, ...]) -> bytes:
    """The function of float32 images `b …shape`, for every platform and any b."""
    (batch,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(images)
    if len(exported.mlir_module_serialized) > _LIMIT:
        raise ValueError(
            f"The model takes {len(exported.mlir_module_serialized) / 2**30:.1f} GiB, and a file "
            "of this kind holds 2; use --weights bfloat16 or int8."
        )
    return bytes(exported.serialize())


def largest_difference(file: epath.Path, classifier: Classifier) -> float:
    """By how much a probability differs, at most, between a file and its model, on noise."""
    exported = jax.export.deserialize(bytearray(file.read_bytes()))
    noise = np.random.default_rng(0).standard_normal((2, *image_shape(classifier)))
    images = noise.astype(np.float32)
    theirs, ours = exported.call(images), classifier.logits(images)
    return float(jnp.abs(jax.nn.softmax(theirs) - jax.nn.softmax(ours)).max())


def image_shape(classifier: Classifier) -> tuple[int, int, int]:  # h w c
    (rows, columns), (height, width) = classifier.grid, patch_stride(classifier.model)
    return rows * height, columns * width, classifier.card.channels
