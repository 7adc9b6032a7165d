"""Where examples come from, and how they become batches.

train = open_source(config)                               # class names come from here
test = open_source(config, config.pp.test, train.class_names)
for batch in prefetch_to_device(train_batches(config, train)): ...
for batch in eval_batches(config, test): ...              # every example once, with a mask
"""

from vit_jax.data.device import DeviceBatches, normalize, prefetch_to_device
from vit_jax.data.pipeline import eval_batches, train_batches
from vit_jax.data.sources import (
    Example,
    Source,
    count_classes,
    first_of_each_class,
    open_source,
    split_sizes,
)
from vit_jax.data.transforms import eval_transform, preprocessing, train_transform

__all__ = ["DeviceBatches", "Example", "Source", "count_classes", "eval_batches", "eval_transform"]
__all__ += ["first_of_each_class", "normalize", "open_source", "prefetch_to_device"]
__all__ += ["preprocessing", "split_sizes", "train_batches", "train_transform"]
