"""How the commands that use a model name its checkpoint: one argument, and a few options."""

import argparse

from vit_jax.classifier import Classifier, load
from vit_jax.cli.options import size, up_to
from vit_jax.preprocessing import INTERPOLATIONS


def add_model_arguments(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """The checkpoint, or as many as `nargs` says, and the options that `load_model` reads."""
    known = (
        "a workdir, one of its steps, an .npz, an Orbax, timm or Hugging Face folder, a "
        ".safetensors file, or a name from `python -m vit_jax.catalog list`"
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs=nargs, help=known)
    rescaled = "image size the model runs at; its position grid is rescaled"
    parser.add_argument("--resolution", type=size, metavar="N|H,W", help=rescaled)
    group = parser.add_argument_group("for a checkpoint that does not describe itself")
    group.add_argument("--model", metavar="NAME", help="which model it is: ViT-B_16, b16, …")
    group.add_argument("--labels", metavar="FILE", help="its class names, one per line")
    squeezed = "shorter side before a centre crop; 0 squeezes to the crop"
    group.add_argument("--resize", type=up_to(2**14, least=0), help=squeezed)
    group.add_argument("--interpolation", choices=INTERPOLATIONS, help="how images are resized")


def load_model(checkpoint: str, args: argparse.Namespace) -> Classifier:
    preprocessing = {} if args.resize is None else {"resize": args.resize or None}
    if args.interpolation:
        preprocessing["interpolation"] = args.interpolation
    return load(
        checkpoint,
        model=args.model,
        labels=args.labels,
        resolution=args.resolution,
        preprocessing=preprocessing,
    )
