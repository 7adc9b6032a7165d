"""Shows what a model looks at.

    python -m vit_jax.explain CHECKPOINT IMAGE … [--class NAME] [--out DIRECTORY]

An IMAGE is a file, a folder (all images below it), a quoted pattern ('photos/*.jpg'), or - for a
list on standard input, one path per line. For each: attention rollout, relevance for a class, the
attention maps of every head and layer, features as colours. Of the model: mean attention distance,
similarity of position embeddings, principal components of the filters. Each becomes a PNG in --out,
and index.html, a file that needs no other, has them all.

Exit codes: 0 success, 3 some files could not be read (each is named, and the rest are done), 1 an
error, explained in one line.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("explain")  # before slow imports

import argparse
import sys
from pathlib import Path

from vit_jax.classifier import Classifier
from vit_jax.cli import compilation_cache
from vit_jax.cli.command import Command
from vit_jax.cli.model_options import add_model_arguments, load_model
from vit_jax.cli.options import out_dir
from vit_jax.cli.progress import progress
from vit_jax.data.decode import decode, read_image
from vit_jax.data.files import find_images
from vit_jax.data.images import crop
from vit_jax.data.transforms import seen_box
from vit_jax.explanation import explain_image, page
from vit_jax.explanation.figures import sized_photo
from vit_jax.explanation.page import Exhibit, Gallery
from vit_jax.labels import find_class
from vit_jax.printable import printable

EXIT_SOME_FAILED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="file, folder, pattern, or -")
    relevance = "whose relevance to show, by name or number; without it each image's likeliest"
    parser.add_argument("--class", dest="class_name", metavar="NAME", help=relevance)
    parser.add_argument(
        "--out", type=out_dir, default="explanation", help="directory [explanation]"
    )


def run(args: argparse.Namespace) -> int:
    paths = list(find_images(args.images, sys.stdin))
    compilation_cache.enable()
    classifier = load_model(args.checkpoint, args)
    wanted = args.class_name
    class_index = None if wanted is None else find_class(wanted, classifier.class_names)

    exhibits: list[Exhibit] = []
    with progress("images", len(paths)) as advance:
        for path in paths:
            try:
                exhibits.append(explain(classifier, Path(path), class_index))
            except (ValueError, OSError) as error:
                reason = getattr(error, "strerror", None) or " ".join(str(error).split())
                print(printable(f"explain: {path}: {reason}"), file=sys.stderr)
            advance(1)
    if not exhibits:
        raise ValueError("None of the images could be read, so there is nothing to show.")
    gallery = Gallery(classifier.model, classifier.params, classifier.grid, exhibits)
    for line in gallery.missing.values():
        print(line)
    name = printable(Path(args.checkpoint).name or args.checkpoint)
    page.write(args.out, gallery, f"What {name} looks at")
    return EXIT_SOME_FAILED if len(exhibits) < len(paths) else 0


def explain(classifier: Classifier, path: Path, class_index: int | None) -> Exhibit:
    """Explains an image file, by default for its likeliest class."""
    data, preprocessing = read_image(path), classifier.preprocessing
    image, names, probabilities = classifier.transform(data), classifier.class_names, []
    if names:
        rows = classifier.predict(image[None]).reshape(-1, len(names))
        probabilities = rows.mean(0).tolist()  # over tokens, if the model does not pool them
        if class_index is None:
            class_index = probabilities.index(max(probabilities))
    numbers = explain_image(classifier.model, classifier.params, image, class_index)
    pixels = decode(data, channels=preprocessing.channels, exif=preprocessing.exif)
    photo = sized_photo(crop(pixels, seen_box(preprocessing, pixels.shape[:2])))
    named = list(zip(map(printable, names), probabilities, strict=True))
    return Exhibit(printable(path.name), photo, named, class_index, numbers)


main = Command("explain", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
