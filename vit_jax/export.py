"""Writes a model that runs without vit_jax.

    python -m vit_jax.export CHECKPOINT OUT [--weights float32|bfloat16|int8] [--onnx]

OUT becomes a directory with

    model.jax       the network and its weights: StableHLO for CPU, CUDA and TPU, any batch size
    card.json       class names, preprocessing, image size
    run_model.py    runs model.jax with jax and flatbuffers alone: python OUT/run_model.py cat.jpg
    model.onnx      with --onnx: the same network for other runtimes

--weights is how the weights are stored: bfloat16 (half the size, computed in bfloat16) or int8 (a
quarter, matrices only, with a scale for each output; computed in float32).
"""

import argparse
import importlib.resources
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from vit_jax.classifier import Classifier
from vit_jax.cli import command as commands
from vit_jax.cli import options as checkpoint_options
from vit_jax.exporting.quantize import WEIGHTS
from vit_jax.models.attention import LONG_SEQUENCE

PLATFORMS = ("cpu", "cuda", "tpu")
_LOADER = "run_model.py"
_LIMIT = 2**31  # bytes: what a flatbuffer can hold


def main(argv: list[str] | None = None) -> int:
    parser = commands.parser("export", __doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=checkpoint_options.CHECKPOINT_HELP)
    parser.add_argument("out", metavar="OUT", help="directory to make")
    parser.add_argument("--weights", choices=WEIGHTS, default="float32")
    parser.add_argument("--onnx", action="store_true", help="needs pip install 'vit_jax[onnx]'")
    checkpoint_options.add_options(parser)
    args = parser.parse_args(argv)
    return commands.explained("export", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    out = Path(args.out).expanduser()
    if out.exists():
        raise ValueError(f"{out} exists already; give the name of a new directory.")
    commands.check_writable(out)
    if args.onnx and args.weights == "bfloat16":
        raise ValueError("--onnx goes with float32 or int8 weights: few runtimes know bfloat16.")
    if args.onnx:
        from vit_jax.exporting import onnx  # says at once if the converter is missing
    classifier = checkpoint_options.load_checkpoint(args.checkpoint, args)
    function = portable_function(classifier, args.weights)
    partial = out.parent / f".{out.name}.{os.getpid()}.partial"
    partial.mkdir()
    try:
        (partial / "model.jax").write_bytes(serialize(function, image_shape(classifier)))
        (partial / "card.json").write_text(json.dumps(classifier.card, indent=1) + "\n")
        loader = importlib.resources.files("vit_jax.exporting").joinpath(_LOADER)
        (partial / _LOADER).write_bytes(loader.read_bytes())
        if args.onnx:
            onnx.write(function, image_shape(classifier), partial / "model.onnx")
        difference = check(partial, classifier)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for file in sorted(out.iterdir()):
        print(f"{file}  {file.stat().st_size:,} bytes")
    print(
        f"Run again from the file, on noise, it differs from the model by {difference:.1e} at most "
        f"in a probability (weights: {args.weights}). Try: python {out / _LOADER} IMAGE"
    )


def image_shape(classifier: Classifier) -> tuple[int, ...]:
    return *classifier.card["image_size"], classifier.card["channels"]


def portable_function(classifier: Classifier, weights: str) -> Callable[[jax.Array], jax.Array]:
    """Images to scores, with the weights inside, and nothing that one backend alone can compute."""
    fields: dict[str, Any] = {}
    if "transformer" in classifier.card["model"]:
        is_long = np.prod(classifier.grid) >= LONG_SEQUENCE
        fields["attention_kernel"] = "chunked" if is_long else "xla"
    dtype, store, restore = WEIGHTS[weights]
    model = classifier.model.clone(dtype=dtype, **fields)
    stored = store(classifier.params)

    def function(images: jax.Array) -> jax.Array:  # b h w c -> b k
        return model.apply({"params": restore(stored)}, images, train=False)

    return function


def serialize(function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> bytes:
    """The function of float32 images `b …shape` for every platform and any b."""
    (batch,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(images)
    if len(exported.mlir_module_serialized) > _LIMIT:
        raise ValueError(
            f"The model takes {len(exported.mlir_module_serialized) / 2**30:.1f} GiB, and a file "
            "of this kind holds 2; use --weights bfloat16 or int8."
        )
    return bytes(exported.serialize())


def check(folder: Path, classifier: Classifier) -> float:
    """The largest difference in a probability between the files and the model they were made of."""
    exported = jax.export.deserialize((folder / "model.jax").read_bytes())
    noise = np.random.default_rng(0).standard_normal((2, *image_shape(classifier)))
    images = noise.astype(np.float32)
    theirs, ours = exported.call(images), classifier.logits(images)
    return float(jnp.abs(jax.nn.softmax(theirs) - jax.nn.softmax(ours)).max())


if __name__ == "__main__":
    sys.exit(main())
