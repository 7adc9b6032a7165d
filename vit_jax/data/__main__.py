"""Shows a data set: classes, counts, sizes and a contact sheet.

    python -m vit_jax.data [DATASET] [--out sheet.png] [--config.NAME=VALUE …]

Each row of the contact sheet is one training image: first as evaluation would see it, then as
training does, several times.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("data")  # before slow imports

import argparse
import contextlib
import sys
from collections import Counter

import ml_collections
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vit_jax.cli.command import Command
from vit_jax.cli.contact_sheet import Cell, draw, save
from vit_jax.cli.options import out_file, up_to
from vit_jax.config import check, default_config
from vit_jax.data.decode import image_size
from vit_jax.data.sources import Label, Source, open_source, split_sizes
from vit_jax.data.transforms import eval_transform, preprocessing, train_transform
from vit_jax.printable import printable

_SAMPLED = 1000  # images looked at for counts and sizes, spread over the split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="for --config.dataset")
    sheet = "contact_sheet.png"
    parser.add_argument("--out", type=out_file, default=sheet, help=f"file [{sheet}]")
    parser.add_argument("--rows", type=up_to(100), default=6, help="images on the sheet [6]")
    parser.add_argument("--views", type=up_to(100), default=6, help="times each is augmented [6]")


def run(args: argparse.Namespace) -> None:
    config = args.config
    if args.dataset is not None:
        config.dataset = args.dataset
    check(config)
    source = open_source(config)
    show(source, split_sizes(config), Console(soft_wrap=True))
    save(contact_sheet(config, source, args.rows, args.views), args.out)
    about = f"(left: evaluation; right: {args.views} x training)"
    print(printable(f"contact sheet: {args.out} {about}"))


def show(source: Source, sizes: dict[str, int], console: Console) -> None:
    """Splits, classes and image sizes, the latter two from a sample where the split is large."""
    splits = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    console.print(Text.assemble((printable(source.name), "bold"), printable(f": {splits}")))
    classes = f"{'multi-label, ' if source.multi_label else ''}{len(source.class_names)} classes"
    console.print(Text(printable(f"{classes}; '{source.split}' has {len(source):,} images")))

    rows = _spread(len(source), _SAMPLED)
    labels, shapes, unreadable = Counter(), [], 0
    for row in rows:
        try:
            example = source[row]
            shapes.append(image_size(example.image))
            labels.update(_ids(example.label))
        except (ValueError, OSError):
            unreadable += 1
    scope = "" if len(rows) == len(source) else f" (of {len(rows):,} sampled)"
    table = Table("class", "name", f"images{scope}")
    for index, name in enumerate(source.class_names[:20]):
        table.add_row(str(index), Text(printable(name)), f"{labels[index]:,}")
    if len(source.class_names) > 20:
        table.add_row("…", f"{len(source.class_names) - 20} more", "")
    console.print(table, soft_wrap=False)
    if shapes:
        heights, widths = np.sort(np.array(shapes).T)
        console.print(
            f"sizes{scope}: {widths[0]} x {heights[0]} to {widths[-1]} x {heights[-1]}, "
            f"median {int(np.median(widths))} x {int(np.median(heights))} (width x height)"
        )
    if unreadable:
        console.print(f"[red]{unreadable} unreadable{scope}[/red]")


def contact_sheet(
    config: ml_collections.ConfigDict, source: Source, rows: int, views: int
) -> Image.Image:
    """Evaluation view and `views` training views of `rows` images from all over the split."""
    config = config.copy_and_resolve_references()
    config.uint8_to_device = True  # pictures, not normalised numbers
    augment = train_transform(config)
    evaluate = eval_transform(preprocessing(config), uint8=True, max_pixels=config.pp.max_pixels)
    shown: list[list[Cell]] = []
    spares = _spread(len(source), 4 * rows)  # some images may turn out unreadable
    for index in dict.fromkeys([*_spread(len(source), rows), *spares]):
        with contextlib.suppress(ValueError, OSError):
            example = source[index]
            names = ", ".join(source.class_names[one] for one in _ids(example.label))
            row = [Cell(evaluate(example.image), lines=[names or "(no class)"])]
            for epoch in range(views):  # the very crops that training draws
                rng = np.random.default_rng((config.seed, epoch, index))
                row.append(Cell(augment(example.image, rng)))
            shown.append(row)
        if len(shown) == rows:
            break
    if not shown:
        raise ValueError(f"no image of {source.name} could be read")
    return draw(shown, headings={0: "evaluation", 1: "training"})


def _ids(label: Label) -> tuple[int, ...]:
    return label if isinstance(label, tuple) else (label,)


def _spread(length: int, count: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, length - 1, min(count, length))})


main = Command("data", __doc__, add_arguments, run, default_recipe=default_config).main

if __name__ == "__main__":
    sys.exit(main())
