"""Says how good a model is.

    python -m vit_jax.evaluate CHECKPOINT [--dataset NAME] [--split SPLIT] [--resolution N]
    python -m vit_jax.evaluate CHECKPOINT --few_shot --knn [--train_split 'train[:2000]']
    python -m vit_jax.evaluate --compare A B …

Every example of the split counts once: top-1, top-5, loss, expected calibration error, accuracy of
each class, and a confusion matrix. The data set is the one the checkpoint was trained on, unless
another is given. --few_shot and --knn ask how good the frozen features are, and take any data set:
ridge regression from 1, 5, 10 and 25 examples of each class, and a vote of the nearest neighbours.
Prints a report, and writes evaluation.json and confusion_matrix.png into --out.
"""

from vit_jax.cli.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()  # may start this process again, so it comes before slow imports

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax import labels as label_lists
from vit_jax.atomic import replacing
from vit_jax.classifier import Classifier
from vit_jax.cli import compilation_cache
from vit_jax.cli.command import Command
from vit_jax.cli.files import check_directory
from vit_jax.cli.model_options import CHECKPOINT_HELP, add_model_options, load_model
from vit_jax.cli.options import count
from vit_jax.cli.progress import progress
from vit_jax.config import DATA_SET, fine_tuning
from vit_jax.evaluation import probes
from vit_jax.evaluation.confusion import MOST_CLASSES, confusion_matrix, draw_confusion
from vit_jax.evaluation.scores import calibration_error, score_examples
from vit_jax.preprocessing import Preprocessing
from vit_jax.run.report import class_table

Examples = dict[str, np.ndarray]  # a row an example


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?", help=CHECKPOINT_HELP)
    parser.add_argument("--compare", metavar="B", nargs="+", default=[], help="more, in one table")
    parser.add_argument("--dataset", help="a tfds name, a folder, a CSV/TSV, or 'digits'")
    parser.add_argument("--split", help="what to evaluate on: test, 'train[:10%%]', …")
    parser.add_argument("--train_split", help="where --few_shot and --knn take examples from")
    parser.add_argument("--tfds_data_dir", help="where tfds data sets are prepared")
    parser.add_argument("--few_shot", action="store_true", help="ridge regression on few examples")
    parser.add_argument("--knn", action="store_true", help="nearest neighbours")
    parser.add_argument("--neighbors", type=count, default=10, help="with --knn [10]")
    parser.add_argument("--batch_size", type=count, default=64, help="images at once [64]")
    parser.add_argument("--out", default="evaluation", help="directory for the files [evaluation]")
    add_model_options(parser)


def run(args: argparse.Namespace) -> None:
    paths = [path for path in (args.checkpoint, *args.compare) if path]
    if not paths:
        raise ValueError("give a CHECKPOINT, or --compare several. See --help.")
    out = Path(args.out).expanduser()
    check_directory(out)
    compilation_cache.enable()
    results = []
    for path in paths:
        classifier = load_model(path, args)
        result, matrix = evaluate(classifier, args)
        out.mkdir(parents=True, exist_ok=True)
        results.append({"checkpoint": path, **result})
        print(describe(results[-1]))
        if matrix is not None:
            name = "confusion_matrix.png"
            if len(paths) > 1:
                name = f"confusion_matrix_{len(results)}.png"
            with replacing(out / name) as partial:
                title = f"{Path(path).name}\n{result['dataset']} {result['split']}"
                draw_confusion(matrix, result["classes"], partial, title)
            print(f"Confusion matrix: {out / name}")
    if len(paths) > 1:
        print(compare(results))
    with replacing(out / "evaluation.json") as partial:
        partial.write_text(json.dumps(results if len(paths) > 1 else results[0], indent=1) + "\n")
    print(f"The same as JSON: {out / 'evaluation.json'}")


def evaluate(
    classifier: Classifier, args: argparse.Namespace
) -> tuple[dict[str, Any], np.ndarray | None]:
    """All numbers in JSON's types, and the confusion matrix where there is one."""
    config = data_config(classifier.card, args)
    probing = args.few_shot or args.knn
    names = class_names(classifier, config, probing)
    source = data.open_source(config, config.pp.test, names)
    classifies = names is not None and classifier.card["num_classes"] > 0
    loss = "sigmoid" if source.multi_label else config.loss
    examples = run_model(classifier, config, source, loss if classifies else None, probing)
    height, width = classifier.card["image_size"]
    result = {
        "model": classifier.card["model"].get("model_name"),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(classifier.params)),
        "resolution": [height, width],
        "dataset": source.name,
        "split": source.split,
        "count": len(examples["label"]),
        "classes": list(source.class_names),
    }
    matrix = None
    if classifies:
        result |= summarize(examples, len(source.class_names))
        if not source.multi_label and len(source.class_names) <= MOST_CLASSES:
            matrix = confusion_matrix(
                examples["label"], examples["prediction"], len(source.class_names)
            )
            result["confusion_matrix"] = matrix.tolist()
    if probing:
        result |= probe(classifier, config, source, examples, args)
    return result, matrix


def data_config(card: dict[str, Any], args: argparse.Namespace) -> ml_collections.ConfigDict:
    """Which data to evaluate on: what was asked for, else what the checkpoint was trained on."""
    trained_on = card.get("data", {})
    dataset = args.dataset or trained_on.get("dataset")
    if not dataset:
        raise ValueError("The checkpoint does not say what it was trained on; give --dataset.")
    config = fine_tuning(dataset)
    if dataset == trained_on.get("dataset"):
        config.update_from_flattened_dict(
            {name: trained_on[name] for name in DATA_SET if name in trained_on}
        )
    config.tfds_data_dir = args.tfds_data_dir or config.tfds_data_dir
    config.pp.test = args.split or config.pp.test
    config.pp.train = args.train_split or config.pp.train
    config.batch_eval = args.batch_size
    return config


def class_names(
    classifier: Classifier, config: ml_collections.ConfigDict, probing: bool
) -> Sequence[str] | None:
    """The model's classes as the data set calls them; None if its classes are others."""
    alone = config.copy_and_resolve_references()
    alone.pp.train = config.pp.test  # a folder to evaluate on may have nothing to train on
    own = data.open_source(alone, config.pp.test).class_names
    names, num_classes = classifier.card["class_names"], classifier.card["num_classes"]
    if names is None and len(own) == num_classes:
        return own
    if names is not None and set(own) <= set(names):
        return names
    known = label_lists.imagenet(num_classes)
    if known is not None and names == known[0] and set(own) <= set(known[1]):
        return known[1]
    if probing:
        print(f"The {len(own)} classes of {config.dataset} are not the model's: features alone.")
        return None
    raise ValueError(
        f"{config.dataset} has {len(own)} classes ({', '.join(own[:3])}, …), and they are not "
        f"among the model's {num_classes} ({', '.join(classifier.class_names[:3])}, …). --knn and "
        "--few_shot evaluate the features on any classes."
    )


def run_model(
    classifier: Classifier,
    config: ml_collections.ConfigDict,
    source: data.Source,
    loss: str | None,
    features: bool,
) -> Examples:
    """Labels, scores (with a loss) and features (where wanted) of every example of a source."""
    preprocessing = Preprocessing.from_json(classifier.card["preprocessing"])
    batches = data.eval_batches(config, source, preprocessing=preprocessing)
    score = functools.partial(_score, classifier.model, loss, features)
    rows: dict[str, list[np.ndarray]] = {}
    with progress(f"{source.name} {source.split}", len(source)) as advance:
        for batch in data.prefetch_to_device(iter(batches)):
            mask = np.asarray(batch["mask"])
            scored = {"label": batch["label"], **score(classifier.params, batch)}
            for name, values in jax.device_get(scored).items():
                rows.setdefault(name, []).append(values[mask])
            advance(int(mask.sum()))
    examples = {name: np.concatenate(values) for name, values in rows.items()}
    if not len(examples["label"]):
        raise ValueError(f"No image of {source.name} {source.split} could be read.")
    return examples


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _score(model, loss, features, params, batch):
    result = {}
    if loss:
        logits = model.apply({"params": params}, batch["image"], train=False)
        result = score_examples(logits, batch["label"], loss)
        result["prediction"] = logits.argmax(-1)
        result["confidence"] = jax.nn.softmax(logits).max(-1)
    if features:  # XLA finds that both begin alike, and computes that once
        body = model.clone(num_classes=0)
        result["features"] = body.apply({"params": params}, batch["image"], train=False)
    return result


def summarize(examples: Examples, num_classes: int) -> dict[str, Any]:
    """Means over all examples and over those of each class."""
    labels, correct = examples["label"], examples["top1"]
    result = {"accuracy": float(correct.mean())}
    if labels.ndim == 1:
        result["accuracy_top5"] = float(examples["top5"].mean())
        result["calibration_error"] = calibration_error(examples["confidence"], correct)
        counts = np.bincount(labels, minlength=num_classes)
        hits = np.bincount(labels, weights=correct, minlength=num_classes)
    else:
        result["accuracy_per_label"] = float(examples["per_label"].mean())
        counts, hits = labels.sum(axis=0), (labels * correct[:, None]).sum(axis=0)
    return {
        **result,
        "loss": float(examples["loss"].mean(dtype=np.float64)),
        "class_accuracy": [
            float(hit / count) if count else None for hit, count in zip(hits, counts, strict=True)
        ],
        "class_count": [int(count) for count in counts],
    }


def probe(classifier, config, source, examples: Examples, args) -> dict[str, Any]:
    """Few-shot and nearest-neighbour accuracy of the features, learned from the training split."""
    if source.multi_label:
        raise ValueError("--few_shot and --knn need data with one class an image.")
    train = data.open_source(config, config.pp.train, source.class_names)
    if not args.knn:
        train = data.first_of_each_class(train, max(probes.SHOTS))
    learned = run_model(classifier, config, train, None, True)
    pairs = [(part["features"], part["label"]) for part in (learned, examples)]
    num_classes = len(source.class_names)
    result: dict[str, Any] = {"train_split": train.split, "train_count": len(learned["label"])}
    if args.few_shot:
        accuracies = probes.few_shot_accuracy(*pairs, num_classes)
        result["few_shot"] = {str(shots): value for shots, value in accuracies.items()}
    if args.knn:
        accuracy = probes.knn_accuracy(*pairs, num_classes, args.neighbors)
        result["knn"] = {"neighbors": args.neighbors, "accuracy": accuracy}
    return result


def describe(result: dict[str, Any]) -> str:
    """The report a person reads."""
    height, width = result["resolution"]
    lines = [
        f"{result['checkpoint']}: {result['model'] or 'a model'}, {result['parameters']:,} "
        f"parameters, at {height}×{width}",
        f"{result['dataset']} {result['split']}: {result['count']:,} examples",
    ]
    numbers = _numbers(result)
    width = max(map(len, numbers), default=0)
    lines += [f"  {name:<{width}}  {value}" for name, value in numbers.items()]
    if "train_split" in result:
        lines.append(f"  learned from {result['train_split']}: {result['train_count']:,} examples")
    if "class_accuracy" in result:
        lines.append(class_table(result, result["classes"]))
    return "\n".join(lines)


def compare(results: Sequence[dict[str, Any]]) -> str:
    """One row a checkpoint, one column a number."""
    rows = []
    for result in results:
        height, width = result["resolution"]
        data_set = f"{result['dataset']} {result['split']}"
        head = {"checkpoint": result["checkpoint"], "size": f"{height}×{width}", "data": data_set}
        rows.append(head | _numbers(result))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def _numbers(result: dict[str, Any]) -> dict[str, str]:
    """The figures of a result as text, by the names they are told under."""
    shares = {
        "top-1": result.get("accuracy"),
        "top-5": result.get("accuracy_top5"),
        "per label": result.get("accuracy_per_label"),
        "calibration error": result.get("calibration_error"),
    }
    shares |= {f"{n}-shot": value for n, value in result.get("few_shot", {}).items()}
    if knn := result.get("knn"):
        shares[f"{knn['neighbors']}-NN"] = knn["accuracy"]
    told = {name: f"{value:.2%}" for name, value in shares.items() if value is not None}
    return told | ({"loss": f"{result['loss']:.4f}"} if "loss" in result else {})


main = Command("evaluate", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
