"""Says what a recipe needs before anything is paid for: sizes, memory, time. Needs no accelerator.

    python -m vit_jax.plan --config configs/vit.py:l16,imagenet2012 [--config.key=value …]
    python -m vit_jax.plan --config … --topology v5e:16x16 [--topology v6e:16x16] [--slices N]

With a topology (v4, v5e, v5p, v6e; needs `pip install 'jax[tpu]'`) the train step is compiled for
that TPU pod, and what the compiler reports is printed: bytes per chip, collectives, whether it
fits, and if not, what would. Exit code 1 where something does not fit.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("plan")  # before slow imports

import argparse
import sys

import jax

from vit_jax import data
from vit_jax.cli import recipe
from vit_jax.cli.command import Command
from vit_jax.cli.options import fraction, up_to
from vit_jax.planning.report import plan
from vit_jax.training.program import Program, check_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topology",
        action="append",
        default=[],
        metavar="SLICE",
        help="a TPU slice such as v5e:16x16; may be repeated",
    )
    parser.add_argument("--slices", type=up_to(256), default=1, help="slices of that topology [1]")
    parser.add_argument(
        "--utilisation", type=fraction, default=0.4, help="share of the peak to assume [0.4]"
    )


def run(args: argparse.Namespace) -> int:
    if args.topology:  # the compiler's library would look for a TPU here, and complain
        jax.config.update("jax_platforms", "cpu")
    config = args.config
    for remark in check_recipe(config):
        print(f"plan: {remark}", file=sys.stderr)
    num_classes, multi_label = data.count_classes(config)
    image_shape = (*data.preprocessing(config).crop, config.pp.channels)
    program = Program(config, image_shape, num_classes, multi_label)
    return 0 if plan(program, args.topology, args.slices, args.utilisation) else 1


main = Command("plan", __doc__, add_arguments, run, default_recipe=recipe.quickstart).main

if __name__ == "__main__":
    sys.exit(main())
