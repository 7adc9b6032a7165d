"""Converts a checkpoint from any format we read to any we write.

    python -m vit_jax.convert IN OUT [--to npz|orbax|timm|hf|lucidrains] [--num_heads N]

IN is what every command takes: an official .npz, an Orbax directory, a workdir, timm, Hugging Face
or vit-pytorch weights (a .safetensors file or a folder with a config.json), or a name in the
catalog. Prints what was renamed, transposed, summed and dropped.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("convert")  # before slow imports

import argparse
import sys

from vit_jax import checkpoint
from vit_jax.checkpoint.conversion import TARGETS
from vit_jax.cli.command import Command
from vit_jax.cli.options import size, up_to
from vit_jax.printable import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="the checkpoint to read: a file or a folder")
    parser.add_argument("target", metavar="OUT", help="the file or folder to write")
    to = "what to write; by default OUT's name decides: .npz, .safetensors (timm), else orbax"
    parser.add_argument("--to", choices=TARGETS, help=to)
    heads = "attention heads, for weights without a config.json beside them"
    parser.add_argument("--num_heads", type=up_to(1024), help=heads)
    pixels = "in pixels, for an .npz whose position grid is not square"
    parser.add_argument("--image_size", type=size, metavar="N|H,W", help=pixels)
    parser.add_argument("--quiet", action="store_true", help="print one line only")


def run(args: argparse.Namespace) -> None:
    options = {"to": args.to, "num_heads": args.num_heads, "image_size": args.image_size}
    report = checkpoint.convert(args.source, args.target, **options)
    if not args.quiet:
        print("\n".join(map(printable, report.lines)))  # they have a stranger's names
    line = f"{args.source} ({report.source_format}) -> {args.target} ({report.target_format})"
    print(printable(f"{line}: {report.num_parameters:,} parameters"))


main = Command("convert", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
