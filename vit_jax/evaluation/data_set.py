"""Which data a model is evaluated on, and whether the data's classes are the model's."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from vit_jax import data, labels
from vit_jax.config import DATA_SET, fine_tuning


def data_config(
    trained_on: Mapping[str, Any],
    *,
    batch_size: int,
    dataset: str | None = None,
    split: str | None = None,
    train_split: str | None = None,
    tfds_data_dir: str | None = None,
) -> ml_collections.ConfigDict:
    """The data asked for, else what a checkpoint was trained on: the `data` of its card."""
    dataset = dataset or trained_on.get("dataset")
    if not dataset:
        raise ValueError("The checkpoint does not say what it was trained on; give --dataset.")
    config = fine_tuning(dataset)
    if dataset == trained_on.get("dataset"):
        config.update_from_flattened_dict(
            {name: trained_on[name] for name in DATA_SET if name in trained_on}
        )
    config.tfds_data_dir = tfds_data_dir or config.tfds_data_dir
    config.pp.test = split or config.pp.test
    config.pp.train = train_split or config.pp.train
    config.batch_eval = batch_size
    return config


def evaluated_classes(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """The classes of the split to evaluate on, which may have nothing beside it to train on."""
    alone = config.copy_and_resolve_references()
    alone.pp.train = config.pp.test
    return data.open_source(alone, config.pp.test).class_names


def match_classes(
    own: Sequence[str], class_names: Sequence[str] | None, num_classes: int
) -> Sequence[str] | None:
    """The model's classes as the data set, whose classes are `own`, calls them.

    A model without class names has them in the data set's order. None if its classes are others.
    """
    if class_names is None:
        return own if len(own) == num_classes else None
    if set(own) <= set(class_names):
        return class_names
    known = labels.imagenet(num_classes)
    if known is not None and list(class_names) == known[0] and set(own) <= set(known[1]):
        return known[1]
    return None
