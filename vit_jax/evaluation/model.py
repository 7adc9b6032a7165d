"""Everything that `evaluate` asks about one model and one data set."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax.aliases import Params, Size
from vit_jax.evaluation.confusion import MOST_CLASSES, confusion_matrix
from vit_jax.evaluation.data_set import match_classes
from vit_jax.evaluation.evaluator import Examples, evaluate_examples
from vit_jax.evaluation.probes import SHOTS, Probes, few_shot_accuracy, knn_accuracy
from vit_jax.evaluation.scores import Scores
from vit_jax.models import Model
from vit_jax.preprocessing import Preprocessing

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
        confusion = {} if self.confusion is None else {"confusion_matrix": self.confusion.tolist()}
        return {
            "checkpoint": self.checkpoint,
            "model": self.model,
            "parameters": self.parameters,
            "resolution": list(self.resolution),
            "dataset": self.dataset,
            "split": self.split,
            "count": self.count,
            "classes": list(self.classes),
            **(self.scores.to_json() if self.scores else {}),
            **confusion,
            **(self.probes.to_json() if self.probes else {}),
        }


def evaluate_model(
    model: Model,
    params: Params,
    config: ml_collections.ConfigDict,
    *,
    checkpoint: str,
    preprocessing: Preprocessing,
    class_names: Sequence[str] | None,
    few_shot: bool = False,
    neighbors: int | None = None,
    progress: Progress = lambda *_: contextlib.nullcontext(lambda _: None),
) -> Evaluation:
    """Scores on `config.pp.test`, if its classes are the model's; probes of features if asked for.

    Probes learn from `config.pp.train`: `few_shot` regression, and a vote of `neighbors`.
    `checkpoint` is what the model is called in the result.
    """
    probing = few_shot or neighbors is not None
    names = match_classes(config, class_names, model.num_classes or 0, needed=not probing)
    source = data.open_source(config, config.pp.test, names)
    if probing and source.multi_label:
        raise ValueError("--few_shot and --knn need data with one class per image.")

    def run(source: data.Source, loss: str | None, features: bool) -> Examples:
        batches = data.eval_batches(config, source, preprocessing=preprocessing)
        with progress(f"{source.name} {source.split}", len(source)) as advance:
            examples = evaluate_examples(
                model,
                params,
                data.prefetch_to_device(batches),
                loss=loss,
                features=features,
                advance=advance,
            )
        if not len(examples):
            raise ValueError(f"No image of {source.name} {source.split} could be read.")
        return examples

    loss = "sigmoid" if source.multi_label else config.loss
    scored = names is not None and bool(model.num_classes)
    examples = run(source, loss if scored else None, probing)
    num_classes, confusion = len(source.class_names), None
    if scored and not source.multi_label and num_classes <= MOST_CLASSES:
        assert examples.prediction is not None
        confusion = confusion_matrix(examples.label, examples.prediction, num_classes)
    return Evaluation(
        checkpoint=checkpoint,
        model=model.model_name,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
        resolution=preprocessing.crop,
        dataset=source.name,
        split=source.split,
        count=len(examples),
        classes=tuple(source.class_names),
        scores=examples.scores(num_classes) if scored else None,
        confusion=confusion,
        probes=_probe(run, config, source, examples, few_shot, neighbors) if probing else None,
    )


def _probe(
    run: Callable[[data.Source, str | None, bool], Examples],
    config: ml_collections.ConfigDict,
    source: data.Source,
    examples: Examples,
    few_shot: bool,
    neighbors: int | None,
) -> Probes:
    train = data.open_source(config, config.pp.train, source.class_names)
    if neighbors is None:
        train = data.first_of_each_class(train, max(SHOTS))
    learned = run(train, None, True)
    assert learned.features is not None and examples.features is not None
    pairs = (learned.features, learned.label), (examples.features, examples.label)
    num_classes = len(source.class_names)
    return Probes(
        train_split=train.split,
        train_count=len(learned),
        few_shot=few_shot_accuracy(*pairs, num_classes) if few_shot else None,
        neighbors=neighbors,
        knn=knn_accuracy(*pairs, num_classes, neighbors) if neighbors else None,
    )
