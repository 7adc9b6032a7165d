"""A model as ONNX, by jax2onnx (the extra `onnx`)."""

from collections.abc import Callable
from pathlib import Path

import jax

try:
    import jax2onnx
except ImportError as e:
    raise ValueError("--onnx needs the converter: pip install 'vit_jax[onnx]'.") from e


def write(function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], path: Path) -> None:
    """The function of float32 images `b …shape`, any b, as an .onnx file."""
    jax2onnx.to_onnx(function, [("b", *shape)], return_mode="file", output_path=str(path))
