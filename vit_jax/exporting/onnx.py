"""A model as ONNX, converted by jax2onnx and checked with onnxruntime (the extra `onnx`)."""

import importlib.util
import logging
import os
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

TOLERANCE = 1e-4  # of the scores, as onnxruntime computes them


def check_installed() -> None:
    missing = [name for name in ("jax2onnx", "onnxruntime") if not importlib.util.find_spec(name)]
    if missing:
        raise ValueError(f"--onnx needs {' and '.join(missing)}: pip install 'vit_jax[onnx]'.")


def write(
    function: Callable[[Array], Array], shape: tuple[int, ...], path: os.PathLike[str]
) -> None:
    """The function of float32 images `b …shape`, any b, as a file.

    Raises ValueError if onnxruntime does not compute the same scores from it, on noise.
    """
    import jax2onnx  # pyright: ignore[reportMissingImports]
    import onnxruntime  # pyright: ignore[reportMissingImports]

    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of each shape it leaves out
    difference = 0.0
    try:
        jax2onnx.to_onnx(function, [("b", *shape)], return_mode="file", output_path=str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for batch in (1, 3):
            noise = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
            (theirs,) = session.run(None, {session.get_inputs()[0].name: noise})
            ours = np.asarray(function(jnp.asarray(noise)))
            difference = np.maximum(difference, np.abs(theirs - ours).max())
    except Exception as e:  # of many kinds, for operations that the converter gets wrong
        raise ValueError(
            f"jax2onnx cannot convert this model; leave --onnx out. It says: {e}"
        ) from e
    if not difference <= TOLERANCE:
        raise ValueError(
            f"jax2onnx does not convert this model faithfully; leave --onnx out. Its scores differ "
            f"by {difference:.1e}, more than {TOLERANCE:.0e}."
        )
