"""Shows a data set: `python -m vit_jax.data DATASET [--out=sheet.png] [--config.OPTION=VALUE …]`.

Prints classes, counts and sizes, and draws a contact sheet: each row one training image, first as
evaluation would see it, then as training does, several times over.
"""

import sys
from collections import Counter

import ml_collections
import numpy as np
from absl import flags, logging
from ml_collections import config_flags
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from vit_jax.cli import command as commands
from vit_jax.config import default_config
from vit_jax.data.decode import image_size
from vit_jax.data.sources import Source, open_source, split_sizes
from vit_jax.data.transforms import eval_transform, preprocessing, train_transform

_SAMPLED = 1000  # images looked at for counts and sizes, spread over the split
_CELL = 160
_MARGIN = 8
_CAPTION = 18


def define_flags() -> None:
    config_flags.DEFINE_config_dict("config", default_config())
    flags.DEFINE_string("out", "contact_sheet.png", "where to draw the contact sheet")
    flags.DEFINE_integer("rows", 6, "images on the contact sheet", lower_bound=1)
    flags.DEFINE_integer("views", 6, "times each image is augmented", lower_bound=1)


def main(argv: list[str]) -> None:
    given = flags.FLAGS
    config = given.config
    logging.set_verbosity(logging.WARNING)  # tfds tells every file it opens
    if len(argv) > 2:
        sys.exit(f"one data set at a time, please; got {' '.join(argv[1:])}")
    if len(argv) == 2:
        config.dataset = argv[1]
    try:
        source = open_source(config)
        show(config, source, split_sizes(config), Console())
        contact_sheet(config, source, given.rows, given.views).save(given.out)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"contact sheet: {given.out} (left: evaluation; right: {given.views} x training)")


def show(
    config: ml_collections.ConfigDict, source: Source, sizes: dict[str, int], console: Console
) -> None:
    """Splits, classes and image sizes, the latter two from a sample where the split is large."""
    splits = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    console.print(f"[bold]{source.name}[/bold]: {splits}", soft_wrap=True)
    kind = "multi-label, " if source.multi_label else ""
    console.print(
        f"{kind}{len(source.class_names)} classes; '{source.split}' has {len(source):,} images",
        soft_wrap=True,
    )

    rows = _spread(len(source), _SAMPLED)
    labels, shapes, unreadable = Counter(), [], 0
    for row in rows:
        try:
            example = source[row]
            shapes.append(image_size(example.image))
            labels.update(example.label if source.multi_label else [example.label])
        except (ValueError, OSError):
            unreadable += 1
    scope = "" if len(rows) == len(source) else f" (of {len(rows):,} sampled)"
    table = Table("class", "name", f"images{scope}")
    for index, name in enumerate(source.class_names[:20]):
        table.add_row(str(index), name, f"{labels[index]:,}")
    if len(source.class_names) > 20:
        table.add_row("…", f"{len(source.class_names) - 20} more", "")
    console.print(table)
    if shapes:
        heights, widths = np.sort(np.array(shapes).T)
        console.print(
            f"sizes{scope}: {widths[0]} x {heights[0]} to {widths[-1]} x {heights[-1]}, "
            f"median {int(np.median(widths))} x {int(np.median(heights))} (width x height)",
            soft_wrap=True,
        )
    if unreadable:
        console.print(f"[red]{unreadable} unreadable{scope}[/red]")


def contact_sheet(
    config: ml_collections.ConfigDict, source: Source, rows: int, views: int
) -> Image.Image:
    """Evaluation view and `views` training views of `rows` images from over the split."""
    config = config.copy_and_resolve_references()
    config.uint8_to_device = True  # pictures, not normalised numbers
    augment = train_transform(config)
    evaluate = eval_transform(preprocessing(config), uint8=True, max_pixels=config.pp.max_pixels)
    height, width = preprocessing(config).crop
    cell = (round(_CELL * width / max(height, width)), round(_CELL * height / max(height, width)))
    step_x, step_y = cell[0] + _MARGIN, cell[1] + _CAPTION + _MARGIN
    first = _MARGIN + step_x + _MARGIN  # where training begins
    size = (first + views * step_x, _CAPTION + rows * step_y + _MARGIN)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN), "evaluation", fill="gray")
    draw.text((first, _MARGIN), "training", fill="gray")
    shown = 0
    for index in _spread(len(source), 4 * rows):  # some may turn out unreadable
        if shown == rows:
            break
        try:
            example = source[index]
            images = [evaluate(example.image)]
            for epoch in range(views):  # the very crops that training draws
                rng = np.random.default_rng((config.seed, epoch, index))
                images.append(augment(example.image, rng))
        except (ValueError, OSError):
            continue
        y = _CAPTION + _MARGIN + shown * step_y
        draw.text((_MARGIN, y), _caption(source, example.label), fill="black")
        for column, image in enumerate(images):
            x = first + (column - 1) * step_x if column else _MARGIN
            sheet.paste(_thumbnail(image, cell), (x, y + _CAPTION))
        shown += 1
    if not shown:
        raise ValueError(f"no image of {source.name} could be read")
    return sheet


def _caption(source: Source, label: int | tuple[int, ...]) -> str:
    labels = label if source.multi_label else (label,)
    name = ", ".join(source.class_names[one] for one in labels) or "(no class)"
    return name.encode("latin-1", "replace").decode("latin-1")[:60]  # what the built-in font has


def _thumbnail(image: np.ndarray, size: tuple[int, int]) -> Image.Image:
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image[:, :, :3])
    return picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)


def _spread(length: int, count: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, length - 1, min(count, length))})


if __name__ == "__main__":
    commands.run(main, "data", define_flags)
