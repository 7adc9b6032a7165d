"""Measures how good a model is.

    python -m vit_jax.evaluate CHECKPOINT [--dataset NAME] [--split SPLIT] [--resolution N]
    python -m vit_jax.evaluate CHECKPOINT --few_shot --knn [--train_split 'train[:2000]']
    python -m vit_jax.evaluate --compare A B …

Every example of the split counts once: top-1, top-5, loss, expected calibration error, accuracy of
each class, and a confusion matrix. The data set is the one the checkpoint was trained on, unless
another is given. --few_shot and --knn ask how good the frozen features are, and take any data set:
ridge regression from 1, 5, 10 and 25 examples of each class, and a vote of the nearest neighbours.
Prints a report, and writes evaluation.json and confusion_matrix.png into --out.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("evaluate", huge_pages=True)  # before slow imports; may start the process anew

import argparse
import json
import sys
from pathlib import Path

from vit_jax.atomic import replacing
from vit_jax.cli import compilation_cache
from vit_jax.cli.command import Command
from vit_jax.cli.model_options import add_model_arguments, load_model
from vit_jax.cli.options import batch_size, count, out_dir
from vit_jax.cli.progress import progress
from vit_jax.evaluation.confusion import draw_confusion
from vit_jax.evaluation.data_set import data_config
from vit_jax.evaluation.evaluation import Evaluation, evaluate_model
from vit_jax.evaluation.report import compare, describe
from vit_jax.printable import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, nargs="?")
    parser.add_argument("--compare", metavar="B", nargs="+", default=[], help="more, in one table")
    parser.add_argument("--dataset", help="a tfds name, a folder, a CSV/TSV, or 'digits'")
    parser.add_argument("--split", help="what to evaluate on: test, 'train[:10%%]', …")
    parser.add_argument("--train_split", help="where --few_shot and --knn take examples from")
    parser.add_argument("--tfds_data_dir", help="where tfds data sets are prepared")
    parser.add_argument("--few_shot", action="store_true", help="ridge regression on few examples")
    parser.add_argument("--knn", action="store_true", help="nearest neighbours")
    parser.add_argument("--neighbors", type=count, default=10, help="with --knn [10]")
    parser.add_argument("--batch_size", type=batch_size, default=64, help="images at once [64]")
    parser.add_argument("--out", type=out_dir, default="evaluation", help="directory [evaluation]")


def run(args: argparse.Namespace) -> None:
    paths = [path for path in (args.checkpoint, *args.compare) if path]
    if not paths:
        raise ValueError("give a CHECKPOINT, or --compare several. See --help.")
    compilation_cache.enable()
    results: list[Evaluation] = []
    for path in paths:
        result = evaluate(path, args)
        results.append(result)
        print(describe(result))
        if result.confusion is not None:
            number = f"_{len(results)}" if len(paths) > 1 else ""
            picture = args.out / f"confusion_matrix{number}.png"
            title = f"{printable(Path(path).name)}\n{printable(result.dataset)} {result.split}"
            with replacing(picture) as partial:
                draw_confusion(result.confusion, result.classes, partial, title)
            print(printable(f"Confusion matrix: {picture}"))
    if len(paths) > 1:
        print(compare(results))
    written = [result.to_json() for result in results]
    with replacing(args.out / "evaluation.json") as partial:
        partial.write_text(json.dumps(written if len(paths) > 1 else written[0], indent=1) + "\n")
    print(printable(f"The same as JSON: {args.out / 'evaluation.json'}"))


def evaluate(checkpoint: str, args: argparse.Namespace) -> Evaluation:
    classifier = load_model(checkpoint, args)
    given = {"pp.test": args.split, "pp.train": args.train_split}
    given |= {"tfds_data_dir": args.tfds_data_dir, "batch_eval": args.batch_size}
    return evaluate_model(
        classifier,
        data_config(classifier.card.data, args.dataset, given),
        checkpoint=checkpoint,
        few_shot=args.few_shot,
        neighbors=args.neighbors if args.knn else None,
        progress=progress,
    )


main = Command("evaluate", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
