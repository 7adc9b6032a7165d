"""Everything that `evaluate` asks about one model and one data set."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax.aliases import Size
from vit_jax.classifier import Classifier
from vit_jax.evaluation.confusion import MOST_CLASSES, confusion_matrix
from vit_jax.evaluation.data_set import match_classes
from vit_jax.evaluation.evaluator import evaluate_examples
from vit_jax.evaluation.probes import SHOTS, Probes, few_shot_accuracy, knn_accuracy
from vit_jax.evaluation.scores import Scores

# Called with a title and a number of examples: a context in which to report examples done.
Progress = Callable[[str, int], contextlib.AbstractContextManager[Callable[[int], None]]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What is known of a model after it ran over a split. What was not asked for is None."""

    checkpoint: str
    model: str | None
    parameters: int
    resolution: Size
    dataset: str
    split: str
    count: int
    classes: tuple[str, ...]
    scores: Scores | None
    confusion: np.ndarray | None
    probes: Probes | None

    def to_json(self) -> dict[str, Any]:
        """The content of evaluation.json: one flat object."""
        flat = {**vars(self)}
        scores, confusion, probes = (flat.pop(name) for name in ("scores", "confusion", "probes"))
        flat |= _given(scores)
        if confusion is not None:
            flat["confusion_matrix"] = confusion.tolist()
        return flat | _given(probes)


def _given(part: Scores | Probes | None) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if value is not None} if part else {}


def evaluate_model(
    classifier: Classifier,
    config: ml_collections.ConfigDict,
    *,
    checkpoint: str,
    few_shot: bool,
    neighbors: int | None,
    progress: Progress,
) -> Evaluation:
    """Scores on `config.pp.test`, if its classes are the model's; probes of features if asked for.

    Probes learn from `config.pp.train`: `few_shot` regression, and a vote of `neighbors`.
    `checkpoint` is what the model is called in the result.
    """
    model, params, preprocessing = classifier.model, classifier.params, classifier.preprocessing
    probing = few_shot or neighbors is not None
    names = match_classes(config, classifier.card, needed=not probing)
    source = data.open_source(config, config.pp.test, names)
    if probing and source.multi_label:
        raise ValueError("--few_shot and --knn need data with one class per image.")

    def run(source: data.Source, loss: str | None) -> dict[str, np.ndarray]:
        batches = data.eval_batches(config, source, preprocessing=preprocessing)
        batches = data.prefetch_to_device(batches)
        with progress(f"{source.name} {source.split}", len(source)) as advance:
            rows = evaluate_examples(
                model, params, batches, loss=loss, features=probing, advance=advance
            )
        if not len(rows["label"]):
            raise ValueError(f"No image of {source.name} {source.split} could be read.")
        return rows

    num_classes = len(source.class_names)
    scores = confusion = probes = None
    loss = "sigmoid" if source.multi_label else config.loss
    scored = names is not None and bool(model.num_classes)
    rows = run(source, loss if scored else None)
    if scored:
        scores = Scores.from_examples(rows, num_classes)
        if not source.multi_label and num_classes <= MOST_CLASSES:
            confusion = confusion_matrix(rows["label"], rows["prediction"], num_classes)
    if probing:
        train = data.open_source(config, config.pp.train, source.class_names)
        if neighbors is None:
            train = data.first_of_each_class(train, max(SHOTS))
        learned = run(train, None)
        pairs = (learned["features"], learned["label"]), (rows["features"], rows["label"])
        few = few_shot_accuracy(*pairs, num_classes) if few_shot else None
        knn = None
        if neighbors is not None:
            accuracy = knn_accuracy(*pairs, num_classes, neighbors)
            knn = {"neighbors": neighbors, "accuracy": accuracy}
        probes = Probes(train.split, len(learned["label"]), few, knn)
    return Evaluation(
        checkpoint=checkpoint,
        model=model.model_name,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
        resolution=preprocessing.crop,
        dataset=source.name,
        split=source.split,
        count=len(rows["label"]),
        classes=tuple(source.class_names),
        scores=scores,
        confusion=confusion,
        probes=probes,
    )
