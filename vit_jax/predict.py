"""Classifies images.

    python -m vit_jax.predict CHECKPOINT IMAGE … [--format table|jsonl|csv] [--top_k N]
    python -m vit_jax.predict CHECKPOINT IMAGE … --features OUT.npz [--per_patch]

An IMAGE is a file, a folder (all images below it), a quoted pattern ('photos/**/*.jpg'), or - for a
list on standard input, one path per line. jsonl has every name exactly; in csv, what a spreadsheet
would take for a formula begins with an apostrophe. --features writes what the head sees in place of
predictions: an array `features` with a row for each of `files`, or with --per_patch a grid of rows.

Exit codes: 0 success, 3 some files could not be read (each is named, and the rest are done), 1 an
error, explained in one line.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("predict", huge_pages=True)  # before slow imports; may start the process anew

import argparse
import csv
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from vit_jax.checkpoint.npz import write_archive
from vit_jax.classifier import Classifier, padded_size
from vit_jax.cli import compilation_cache, contact_sheet
from vit_jax.cli.command import Command
from vit_jax.cli.contact_sheet import Cell
from vit_jax.cli.model_options import add_model_arguments, load_model
from vit_jax.cli.options import batch_size, count, out_file
from vit_jax.cli.progress import progress
from vit_jax.data.files import FileBatch, find_images, read_batches
from vit_jax.printable import printable

EXIT_SOME_FAILED = 3
MOST_CELLS = 60  # so that a contact sheet stays a picture one can look at
CELL_CLASSES = 3
Prediction = tuple[str, list[tuple[str, float]]]  # file, (class name, probability), best first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="file, folder, pattern, or -")
    parser.add_argument("--top_k", type=count, default=5, help="classes per image [5]")
    parser.add_argument("--format", choices=PRINTERS, default="table")
    features = "write features, predict nothing"
    parser.add_argument("--features", metavar="OUT.npz", type=out_file, help=features)
    parser.add_argument("--per_patch", action="store_true", help="with --features: for each patch")
    sheet = f"draw the first {MOST_CELLS} images"
    parser.add_argument("--contact_sheet", metavar="OUT.png", type=out_file, help=sheet)
    parser.add_argument("--batch_size", type=batch_size, default=32, help="images at once [32]")


def run(args: argparse.Namespace) -> int:
    if args.per_patch and not args.features:
        raise ValueError("--per_patch goes with --features OUT.npz, which is not given.")
    if args.features and args.contact_sheet:
        raise ValueError("--features predicts nothing that --contact_sheet could show; give one.")
    compilation_cache.enable()
    paths, total = find_images(args.images, sys.stdin), None
    if "-" not in args.images:  # a list may be endless
        paths = list(paths)
        total = len(paths)
    classifier = load_model(args.checkpoint, args)
    shape = (*classifier.preprocessing.crop, classifier.preprocessing.channels)
    size = padded_size(total or args.batch_size, args.batch_size)
    failed: list[str] = []
    cells: list[Cell] | None = [] if args.contact_sheet else None
    with progress("images", total) as advance:

        def batches() -> Iterator[FileBatch]:
            for batch in read_batches(paths, classifier.transform, shape, size):
                for path, error in batch.errors.items():
                    print(printable(f"predict: {path}: {error}"), file=sys.stderr)
                    failed.append(path)
                if batch.paths:
                    yield batch
                advance(len(batch.paths) + len(batch.errors))

        if args.features:
            write_features(classifier, batches(), args.features, per_patch=args.per_patch)
        else:
            width = max(len(printable(path)) for path in paths) if total else 0
            PRINTERS[args.format](predictions(classifier, batches(), args.top_k, cells), width)
    if cells is not None:
        if not cells:
            reason = "none of the images could be read"
            raise ValueError(f"{args.contact_sheet} is not drawn: {reason}.")
        contact_sheet.save(contact_sheet.draw(contact_sheet.square(cells)), args.contact_sheet)
    return EXIT_SOME_FAILED if failed else 0


def predictions(
    classifier: Classifier, batches: Iterable[FileBatch], top_k: int, cells: list[Cell] | None
) -> Iterator[Prediction]:
    """The best `top_k` classes of each file, in the files' order; `cells` gets the first files."""
    pooling = getattr(classifier.model, "classifier", "")  # a Mixer has one way only
    if classifier.card.num_classes == 0 or "unpooled" in pooling:
        raise ValueError("The checkpoint has no head that classifies images; use --features.")
    names, about = classifier.class_names, classifier.preprocessing
    mean, std = np.asarray((about.mean, about.std), np.float32)  # c each
    for batch in batches:
        probabilities = classifier.predict(batch.images, batch_size=len(batch.images))
        rows = zip(batch.paths, batch.images, probabilities, strict=False)  # padding comes last
        for path, image, row in rows:
            best = np.argsort(-row, kind="stable")[:top_k]
            top = [(names[i], float(row[i])) for i in best]
            if cells is not None and len(cells) < MOST_CELLS:
                pixels = np.clip(255 * (image * std + mean), 0, 255).round().astype(np.uint8)
                lines = [f"{probability:.1%} {name}" for name, probability in top[:CELL_CLASSES]]
                cells.append(Cell(pixels, Path(path).name, lines))
            yield path, top
        sys.stdout.flush()


def write_features(
    classifier: Classifier, batches: Iterable[FileBatch], path: Path, *, per_patch: bool
) -> None:
    """The features of all files as one array, gathered on disk beside `path`."""
    files: list[str] = []
    features = np.zeros(0, np.float32)
    with tempfile.TemporaryFile(dir=path.parent) as rows:
        for batch in batches:
            features = classifier.features(
                batch.images, per_patch=per_patch, batch_size=len(batch.images)
            )[: len(batch.paths)]
            rows.write(features.tobytes())
            files += batch.paths
        if not files:
            raise ValueError("None of the files could be read, so there are no features to write.")
        rows.flush()
        gathered = np.memmap(rows, features.dtype, "r", shape=(len(files), *features.shape[1:]))
        write_archive(path, {"features": gathered, "files": np.array(files)})
    print(printable(f"{path}: features {gathered.shape} of {len(files):,} files"))


def print_table(rows: Iterable[Prediction], width: int) -> None:
    print(f"{'file':<{width}}  probability  class")
    for path, top in rows:
        for label, (name, probability) in zip([path] + [""] * len(top), top, strict=False):
            print(f"{printable(label):<{width}}  {probability:>11.2%}  {printable(name)}")


def print_jsonl(rows: Iterable[Prediction], _: int) -> None:
    for path, top in rows:
        best = [[name, round(probability, 6)] for name, probability in top]
        row = {"file": path, "top": best}
        line = json.dumps(row, ensure_ascii=False)
        print(line if _is_plain(line) else json.dumps(row))


def _is_plain(line: str) -> bool:
    """Whether it can be printed as it is, on this stream."""
    encoding = sys.stdout.encoding or "utf-8"
    return printable(line) == line == line.encode(encoding, "replace").decode(encoding)


def print_csv(rows: Iterable[Prediction], _: int) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("file", "rank", "class", "probability"))
    for path, top in rows:
        for rank, (name, probability) in enumerate(top, start=1):
            writer.writerow((_cell(path), rank, _cell(name), f"{probability:.6f}"))


def _cell(text: str) -> str:
    """What a spreadsheet would run as a formula gets an apostrophe. -1 is a number, and no formula;
    what begins with apostrophes before a formula gets one more, so that one may always be removed.
    """
    text = printable(text)
    is_number = re.fullmatch(r"[-+]?[0-9.]+", text)
    is_formula = text.lstrip("'").startswith(("=", "+", "-", "@")) and not is_number
    return f"'{text}" if is_formula else text


PRINTERS = {"table": print_table, "jsonl": print_jsonl, "csv": print_csv}

main = Command("predict", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
