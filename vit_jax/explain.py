"""Shows what a model looks at.

    python -m vit_jax.explain CHECKPOINT IMAGE … [--class NAME] [--out DIRECTORY]

An IMAGE is a file, a folder (all images below it), a quoted pattern ('photos/*.jpg'), or - for a
list on standard input, one path a line. For each: attention rollout, relevance for a class, the
attention maps of every head and layer, features as colours. Of the model: mean attention distance,
similarity of position embeddings, principal components of the filters. Each becomes a PNG in --out,
and index.html, a file that needs no other, has them all.

Exit codes: 0 all went well, 3 some files could not be read (each is named, and the rest are done),
1 an error, told in one line.
"""

import argparse
import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from vit_jax.classifier import Classifier
from vit_jax.cli import command as commands
from vit_jax.cli import options as checkpoint_options
from vit_jax.data.decode import decode
from vit_jax.data.files import find_images
from vit_jax.data.images import crop
from vit_jax.data.transforms import seen_box
from vit_jax.explanation import gallery, page
from vit_jax.explanation.drawing import as_png
from vit_jax.explanation.gallery import Explained, Named
from vit_jax.explanation.image import explain_image
from vit_jax.explanation.pictures import missing_pictures
from vit_jax.preprocessing import Preprocessing

EXIT_SOME_FAILED = 3
_PHOTO = 640  # pixels of the longer side, in pictures
_TOP = 5


def main(argv: list[str] | None = None) -> int:
    parser = commands.parser("explain", __doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=checkpoint_options.CHECKPOINT_HELP)
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="file, folder, pattern, or -")
    parser.add_argument(
        "--class",
        dest="class_name",
        metavar="NAME",
        help="whose relevance to show, by name or number; without it each image's likeliest",
    )
    parser.add_argument("--out", default="explanation", help="directory [explanation]")
    checkpoint_options.add_options(parser)
    args = parser.parse_args(argv)
    return commands.explained("explain", lambda: run(args))


def run(args: argparse.Namespace) -> int:
    out = Path(args.out).expanduser()
    commands.check_directory(out)
    paths = list(find_images(args.images, sys.stdin))
    commands.use_compilation_cache()
    classifier = checkpoint_options.load_checkpoint(args.checkpoint, args)
    class_index = None if args.class_name is None else find_class(args.class_name, classifier)

    explained = []
    with commands.progress("images", len(paths)) as advance:
        for path in paths:
            try:
                explained.append(explain(classifier, Path(path), class_index))
            except OSError as error:
                print(f"explain: {path}: {error.strerror or error}", file=sys.stderr)
            except ValueError as error:
                print(f"explain: {path}: {' '.join(str(error).split())}", file=sys.stderr)
            advance(1)
    if not explained:
        raise ValueError("None of the images could be read, so there is nothing to show.")
    write(out, args.checkpoint, classifier, explained)
    return EXIT_SOME_FAILED if len(explained) < len(paths) else 0


def find_class(name: str, classifier: Classifier) -> int:
    """The index of a class given by its name, one of its names, or its number."""
    num_classes = classifier.card["num_classes"]
    if not num_classes:
        raise ValueError(f"There is no class {name!r}: the model has no head, so no classes.")
    names = {
        one.strip().lower(): index
        for index, full in reversed(list(enumerate(classifier.class_names)))
        for one in (*full.split(","), full)  # ImageNet's have synonyms
    }
    known = {str(index): index for index in range(num_classes)} | names
    wanted = name.strip().lower()
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    number = f"Give a name, or a number from 0 to {num_classes - 1}."
    hint = f"Did you mean {' or '.join(near)}?" if near else number
    raise ValueError(f"The checkpoint has no class {name!r}. {hint}")


def explain(classifier: Classifier, path: Path, class_index: int | None) -> Explained:
    data = path.read_bytes()
    image = classifier.transform(data)
    top, chosen = [], None
    if classifier.card["num_classes"]:
        probabilities = classifier.predict(image[None])[0]
        probabilities = probabilities.reshape(-1, probabilities.shape[-1]).mean(0)  # not pooled
        named = list(zip(classifier.class_names, probabilities.tolist(), strict=True))
        best = np.argsort(-probabilities, kind="stable")[:_TOP]
        top = [named[index] for index in best]
        class_index = int(best[0]) if class_index is None else class_index
        chosen = named[class_index]
    explanation = explain_image(classifier.model, classifier.params, image, class_index)
    photo = as_photo(data, Preprocessing.from_json(classifier.card["preprocessing"]))
    return Explained(path.name, photo, top, chosen, explanation)


def as_photo(data: bytes, preprocessing: Preprocessing) -> np.ndarray:
    """What the model sees of an image file, `h w 3`, in the file's own shape and, as far as it
    goes, resolution: the longer side has _PHOTO pixels at most and half of them at least.
    """
    image = decode(data, channels=preprocessing.channels, exif=preprocessing.exif)
    image = crop(image, seen_box(preprocessing, image.shape[:2]))
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    photo = Image.fromarray(np.ascontiguousarray(image[:, :, :3]))
    photo.thumbnail((_PHOTO, _PHOTO))
    times = math.ceil(_PHOTO / 2 / max(photo.size))
    return np.asarray(photo).repeat(times, axis=0).repeat(times, axis=1)


def write(
    out: Path, checkpoint: str, classifier: Classifier, explained: Sequence[Explained]
) -> None:
    """Draws and writes one picture after another, and the page in the end."""
    model, size, grid = classifier.model, classifier.card["image_size"], classifier.grid
    out.mkdir(parents=True, exist_ok=True)
    missing = missing_pictures(model, grid)
    for line in missing.values():
        print(line)

    def save(figures: Iterable[Named], prefix: str = "") -> dict[str, bytes]:
        pngs = {}
        for name, figure in figures:
            pngs[name] = as_png(figure)
            _write(out / f"{prefix}{name}.png", pngs[name])
        return pngs

    stems = unique_stems([one.name for one in explained])
    colors = [[]] * len(explained) if "features" in missing else gallery.feature_colors(explained)
    sections = []
    for one, stem, of_one in zip(explained, stems, colors, strict=True):
        pngs = save(gallery.draw_image(model, one, of_one, missing), f"{stem}_")
        sections.append(page.ImageSection(one.name, one.top, pngs))
    of_model = gallery.draw_model(model, classifier.params, size, grid, explained, missing)
    text = page.render(
        title=f"What {Path(checkpoint).name or checkpoint} looks at",
        facts=facts(classifier),
        missing=list(missing.values()),
        model_pngs=save(of_model),
        images=sections,
    )
    _write(out / "index.html", text.encode())


def _write(path: Path, content: bytes) -> None:
    with commands.replacing(path) as partial:
        partial.write_bytes(content)
    print(path)


def unique_stems(names: Sequence[str]) -> list[str]:
    """File names without their endings, numbered where two would be the same."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems


def facts(classifier: Classifier) -> dict[str, str]:
    card = classifier.card
    (height, width), (rows, columns) = card["image_size"], card["grid"]
    count = sum(leaf.size for leaf in jax.tree.leaves(classifier.params))
    model = card["model"]
    shape = {"layers": model.get("num_blocks")}
    if transformer := model.get("transformer"):
        shape = {"layers": transformer["num_layers"], "heads": transformer["num_heads"]}
    known = {
        "model": model.get("model_name"),
        "parameters": f"{count:,}",
        "image": f"{height} × {width}",
        "patches": f"{rows} × {columns}",
        **shape,
        "read from": model.get("classifier"),
        "classes": card["num_classes"],
    }
    return {name: str(value) for name, value in known.items() if value}


if __name__ == "__main__":
    sys.exit(main())
