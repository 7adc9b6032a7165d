"""Models that run without vit_jax: StableHLO, ONNX, smaller weights, and the loader beside them."""

import json
from pathlib import Path

from vit_jax.atomic import replacing
from vit_jax.classifier import Classifier
from vit_jax.exporting import onnx as onnx_format
from vit_jax.exporting import stablehlo

LOADER = "run_model.py"


def write(classifier: Classifier, out: Path, *, weights: str, onnx: bool) -> float:
    """Makes the directory `out` with the model, its card and the loader, complete or not at all.

    Returns by how much a probability differs, at most, when the model is run from the file.
    """
    function = stablehlo.portable_function(classifier, weights)
    shape = stablehlo.image_shape(classifier)
    with replacing(out) as partial:
        partial.mkdir()
        (partial / "model.jax").write_bytes(stablehlo.serialize(function, shape))
        (partial / "card.json").write_text(json.dumps(classifier.card.to_json(), indent=1) + "\n")
        (partial / LOADER).write_bytes(Path(__file__).with_name(LOADER).read_bytes())
        if onnx:
            onnx_format.write(function, shape, partial / "model.onnx")
        return stablehlo.largest_difference(partial / "model.jax", classifier)
