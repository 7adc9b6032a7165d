"""Writes a model that runs without vit_jax.

    python -m vit_jax.export CHECKPOINT OUT [--weights float32|bfloat16|int8] [--onnx]

OUT becomes a directory with

    model.jax       the network and its weights: StableHLO for CPU, CUDA and TPU, any batch size
    card.json       class names, preprocessing, image size
    run_model.py    runs model.jax with jax, flatbuffers and Pillow: python OUT/run_model.py cat.jpg
    model.onnx      with --onnx: the same network for other runtimes

--weights is how the weights are stored: bfloat16 (half the size, computed in bfloat16) or int8 (a
quarter, matrices only, with a scale for each output; computed in float32).
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("export")  # before slow imports

import argparse
import sys

from vit_jax import exporting
from vit_jax.cli.command import Command
from vit_jax.cli.model_options import add_model_arguments, load_model
from vit_jax.cli.options import out_path
from vit_jax.exporting import onnx
from vit_jax.exporting.quantize import WEIGHTS
from vit_jax.printable import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("out", metavar="OUT", type=out_path, help="directory to make")
    parser.add_argument("--weights", choices=WEIGHTS, default="float32")
    parser.add_argument("--onnx", action="store_true", help="needs pip install 'vit_jax[onnx]'")


def run(args: argparse.Namespace) -> None:
    if args.out.exists():
        raise ValueError(f"{args.out} exists already; give the name of a new directory.")
    if args.onnx and args.weights == "bfloat16":
        raise ValueError("--onnx goes with float32 or int8 weights: few runtimes know bfloat16.")
    if args.onnx:
        onnx.check_installed()
    classifier = load_model(args.checkpoint, args)
    difference = exporting.write(classifier, args.out, weights=args.weights, onnx=args.onnx)
    for file in sorted(args.out.iterdir()):
        print(printable(f"{file}  {file.stat().st_size:,} bytes"))
    print(
        f"On noise, the exported model's probabilities differ from the original's by at most "
        f"{difference:.1e} (weights: {args.weights}). "
        f"Try: python {printable(args.out / exporting.LOADER)} IMAGE"
    )


main = Command("export", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
