"""Which data a model is evaluated on, and whether the data's classes are the model's."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from vit_jax import data, labels
from vit_jax.checkpoint import Card
from vit_jax.config import DATA_SET, fine_tuning


def data_config(
    trained_on: Mapping[str, Any], dataset: str | None, given: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """The data asked for, else what a checkpoint was trained on: the `data` of its card.

    `given` are other options by name, such as `pp.test`, with None for those that are not given.
    """
    dataset = dataset or trained_on.get("dataset")
    if not dataset:
        raise ValueError("The checkpoint does not say what it was trained on; give --dataset.")
    config = fine_tuning(dataset)
    if dataset == trained_on.get("dataset"):
        stored = {name: trained_on[name] for name in DATA_SET if name in trained_on}
        config.update_from_flattened_dict(stored)
    config.update_from_flattened_dict({name: value for name, value in given.items() if value})
    return config


def match_classes(
    config: ml_collections.ConfigDict, card: Card, *, needed: bool
) -> Sequence[str] | None:
    """The model's classes as the data set calls them. If the data set has others: None, or an
    error if they are `needed`.

    A model whose classes have no names has those of the data set, if there are as many.
    """
    class_names, num_classes = card.class_names, card.num_classes
    alone = config.copy_and_resolve_references()
    alone.pp.train = config.pp.test  # there may be nothing else to train on
    own = data.open_source(alone, config.pp.test).class_names
    if class_names is None and len(own) == num_classes:
        return own
    if class_names is not None and set(own) <= set(class_names):
        return class_names
    known = labels.imagenet(num_classes)
    if known is not None and list(class_names or ()) == known[0] and set(own) <= set(known[1]):
        return known[1]
    if not needed:
        return None
    names = class_names or [f"class {i}" for i in range(num_classes)]
    raise ValueError(
        f"{config.dataset} has {len(own)} classes ({', '.join(own[:3])}, …), and they are not "
        f"among the model's {num_classes} ({', '.join(names[:3])}, …). --knn and --few_shot "
        "evaluate the features on any classes."
    )
