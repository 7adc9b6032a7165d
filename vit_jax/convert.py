"""Converts a checkpoint from any format we read to any we write.

    python -m vit_jax.convert IN OUT [--to npz|orbax|timm|hf|lucidrains] [--num_heads N]

IN is an official .npz, an Orbax directory, or timm, Hugging Face or vit-pytorch weights (a
.safetensors file or a folder with a config.json); which of them, the content tells. Prints what was
renamed, transposed, summed and dropped.
"""

import argparse
import sys

from vit_jax import checkpoint
from vit_jax.checkpoint.conversion import TARGETS
from vit_jax.cli import command as commands


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vit_jax.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="IN", help="the checkpoint to read: a file or a folder")
    parser.add_argument("target", metavar="OUT", help="the file or folder to write")
    parser.add_argument(
        "--to",
        choices=TARGETS,
        help="what to write; without it OUT's name tells: .npz, .safetensors (timm), else orbax",
    )
    parser.add_argument(
        "--num_heads",
        type=int,
        help="attention heads, for weights that do not tell and have no config.json beside them",
    )
    parser.add_argument(
        "--image_size",
        type=_size,
        metavar="H,W",
        help="height,width in pixels, for an .npz whose position grid is not square",
    )
    parser.add_argument("--quiet", action="store_true", help="print one line only")
    args = parser.parse_args(argv)
    return commands.explained("convert", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    report = checkpoint.convert(
        args.source,
        args.target,
        to=args.to,
        num_heads=args.num_heads,
        image_size=args.image_size,
    )
    if not args.quiet:
        print("\n".join(report.lines))
    print(
        f"{args.source} ({report.source_format}) -> {args.target} ({report.target_format}): "
        f"{report.num_parameters:,} parameters"
    )


def _size(text: str) -> tuple[int, int]:
    height, width = (int(part) for part in text.split(","))
    return height, width


if __name__ == "__main__":
    sys.exit(main())
