"""How the commands that use a model name its checkpoint: one argument, and a few options."""

import argparse

from vit_jax.classifier import Classifier, load
from vit_jax.cli import command as commands
from vit_jax.preprocessing import INTERPOLATIONS

CHECKPOINT_HELP = (
    "a workdir, one of its steps, an .npz, an Orbax, timm or Hugging Face folder, a .safetensors "
    "file, or a name of `python -m vit_jax.checkpoints list`"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `load_checkpoint` reads, but for the checkpoint itself."""
    parser.add_argument(
        "--resolution",
        type=commands.size,
        metavar="N|H,W",
        help="image size the model runs at; its position grid is rescaled",
    )
    group = parser.add_argument_group("for a checkpoint that does not describe itself")
    group.add_argument("--model", metavar="NAME", help="the model it is of: ViT-B_16, b16, …")
    group.add_argument("--labels", metavar="FILE", help="its class names, one a line")
    group.add_argument(
        "--resize", type=int, help="shorter side before a centre crop; 0 squeezes to the crop"
    )
    group.add_argument("--interpolation", choices=INTERPOLATIONS, help="how images are resized")


def load_checkpoint(path: str, args: argparse.Namespace) -> Classifier:
    """The checkpoint as the options of `add_options` say."""
    preprocessing = {} if args.resize is None else {"resize": args.resize or None}
    if args.interpolation:
        preprocessing["interpolation"] = args.interpolation
    return load(
        path,
        model=args.model,
        labels=args.labels,
        resolution=args.resolution,
        preprocessing=preprocessing,
    )
