"""A model as ONNX, by jax2onnx, checked with onnxruntime (the extra `onnx`)."""

import logging
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

TOLERANCE = 1e-4  # of the scores, as onnxruntime computes them

try:
    import jax2onnx
    import onnxruntime
except ImportError as e:
    raise ValueError(
        f"--onnx needs {e.name}, which is not installed: pip install 'vit_jax[onnx]'."
    ) from e


def write(function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], path: Path) -> None:
    """The function of float32 images `b …shape`, any b, as a file; refused if it computes else."""
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it tells of each shape it leaves out
    try:
        jax2onnx.to_onnx(function, [("b", *shape)], return_mode="file", output_path=str(path))
        difference = max(_difference(function, shape, path, batch) for batch in (1, 3))
    except Exception as e:  # of many kinds, for operations that the converter gets wrong
        raise ValueError(
            f"jax2onnx cannot convert this model; leave --onnx out. It says: {e}"
        ) from e
    if not difference <= TOLERANCE:
        raise ValueError(
            f"jax2onnx does not convert this model faithfully; leave --onnx out. Its scores differ "
            f"by {difference:.1e}, more than {TOLERANCE:.0e}."
        )


def _difference(function, shape: tuple[int, ...], path: Path, batch: int) -> float:
    """The largest difference in a score, on a batch of noise."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    noise = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
    (theirs,) = session.run(None, {session.get_inputs()[0].name: noise})
    return float(np.abs(theirs - np.asarray(function(noise))).max())
