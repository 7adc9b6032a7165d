"""From source and transforms to batches, in an order that the seed alone decides.

Training is one endless stream: epoch after epoch, each shuffled whole. A global batch is the next
`config.batch` positions of that stream, and process p of P reads the p-th of P equal runs of them,
so neither the number of processes nor of readers changes what a step sees, or in which order.
"""

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cv2
import grain
import jax
import ml_collections
import numpy as np

from vit_jax.data import transforms
from vit_jax.data.sources import Label, Source, open_source
from vit_jax.data.workers import ReadByWorkers
from vit_jax.preprocessing import Preprocessing
from vit_jax.printable import printable

log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]

_STREAM_LENGTH = 2**50  # examples: more than any run takes, and grain counts no further than 2**63
_READ_AHEAD_BYTES = 2**30  # of images that all readers together may hold, roughly
_LISTED = 100  # of the images that cannot be read


def train_batches(
    config: ml_collections.ConfigDict,
    source: Source | None = None,
    *,
    start_step: int = 0,
    process_index: int | None = None,
    process_count: int | None = None,
) -> Iterator[Batch]:
    """Endless batches of `image` (b h w c) and `label` (b, or b k of zeros and ones).

    Each is this process's share of `config.batch`. A resumed run starts at the `start_step` it had
    reached, at no cost, whatever the number of readers and processes. `close` ends the readers.
    """
    config = config.copy_and_resolve_references()  # must not change while readers use it
    source = open_source(config) if source is None else source
    process, processes, size = _share("batch", config.batch, process_index, process_count)
    blank = _blank(transforms.preprocessing(config), config.uint8_to_device)
    transform = transforms.train_transform(config)
    load = LoadForTraining(source, transform, blank, config.max_bad_images, config.seed)
    epochs = max(1, _STREAM_LENGTH // len(source))
    stream = grain.MapDataset.range(len(source)).seed(config.seed).shuffle().repeat(epochs)
    stream = stream.map_with_index(lambda position, index: (position // len(source), index))

    first = start_step * config.batch + process * size
    rows = grain.MapDataset.range((len(stream) - first) // processes)
    mine = rows.map(lambda row: stream[first + row // size * config.batch + row % size])
    return iter(_read(config, mine, load, size))


def eval_batches(
    config: ml_collections.ConfigDict,
    source: Source | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    process_index: int | None = None,
    process_count: int | None = None,
) -> "EvalBatches":
    """Every example of `config.pp.test` once, in batches of one shape with a `mask` (b, bool).

    `preprocessing` is a checkpoint's own, where that is not what `config.pp` says. Where `mask` is
    False a row is padding, or an image that could not be read. All processes take the same number
    of steps, `len()` of the result, whatever their shares.
    """
    config = config.copy_and_resolve_references()
    source = open_source(config, config.pp.test) if source is None else source
    process, processes, size = _share("batch_eval", config.batch_eval, process_index, process_count)
    wanted = preprocessing or transforms.preprocessing(config)
    uint8, max_pixels = config.uint8_to_device, config.pp.max_pixels
    transform = transforms.eval_transform(wanted, uint8=uint8, max_pixels=max_pixels)
    load = LoadForEvaluation(source, transform, _blank(wanted, uint8), config.max_bad_images)
    steps = math.ceil(len(source) / config.batch_eval)
    positions = grain.MapDataset.range(process, steps * config.batch_eval, processes)
    return EvalBatches(_read(config, positions, load, size), steps)


@dataclasses.dataclass(frozen=True)
class EvalBatches:
    """One pass over a split each time it is iterated."""

    dataset: Iterable[Batch]
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.dataset)


@dataclasses.dataclass(frozen=True)
class Loader:
    """Reads examples straight into a batch: stacking images later would take a fifth more time.

    Counts those that cannot be read, each once however often it comes up; `max_bad` is a share of
    the source. Reader threads share one loader; worker processes, sharing no memory, do not.
    """

    source: Source
    transform: Callable[..., np.ndarray]
    blank: np.ndarray
    max_bad: float
    seed: int = 0
    bad: dict[int, str] = dataclasses.field(default_factory=dict)

    def room_for(self, count: int) -> np.ndarray:
        cv2.setNumThreads(1)  # each reader is a thread already; more of them compete for the cores
        return np.empty((count, *self.blank.shape), self.blank.dtype)

    def read(self, index: int, out: np.ndarray, *rng: np.random.Generator) -> Label | None:
        """The label of an example, with its image now in `out`; None if it cannot be read."""
        try:
            example = self.source[index]
            image = self.transform(example.image, *rng, out)
            if image is not out:
                out[:] = image
        except (ValueError, OSError) as error:
            self._report(index, error)
            return None
        return example.label

    def _report(self, index: int, error: Exception) -> None:
        """Logs a bad image; raises ValueError with the list of them when there are too many."""
        source, bad = self.source, self.bad
        if index not in bad:
            bad[index] = str(error)
            log.warning("unreadable image %s: %s", printable(source.path(index)), printable(error))
        if len(bad) > self.max_bad * len(source):
            lines = [f"  {source.path(i)}: {why}" for i, why in [*bad.items()][:_LISTED]]
            if len(bad) > _LISTED:
                lines.append(f"  and {len(bad) - _LISTED} more")
            raise ValueError(
                f"{len(bad)} of {len(source)} images of {source.name} cannot be read, more than "
                f"config.max_bad_images={self.max_bad:g} allows. Repair them, or allow more:\n"
                + "\n".join(lines)
            )

    def encode(self, labels: Sequence[Label]) -> np.ndarray:
        """int32 class ids `b`, or float32 zeros and ones `b k`."""
        if not self.source.multi_label:
            return np.array(labels, np.int32)
        hot = np.zeros((len(labels), len(self.source.class_names)), np.float32)
        for row, ids in enumerate(labels):
            hot[row, ids] = 1
        return hot


class LoadForTraining(Loader):
    """Augments as well; randomness is a function of (seed, epoch, index)."""

    def __call__(self, places: tuple[np.ndarray, np.ndarray]) -> Batch:
        images = self.room_for(len(places[0]))
        rows = zip(*places, images, strict=True)
        labels = [self._draw(int(epoch), int(index), image) for epoch, index, image in rows]
        return {"image": images, "label": self.encode(labels)}

    def _draw(self, epoch: int, index: int, out: np.ndarray) -> Label:
        for offset in range(len(self.source)):  # the next one takes the place of one that is bad
            rng = np.random.default_rng((self.seed, epoch, index))
            label = self.read((index + offset) % len(self.source), out, rng)
            if label is not None:
                return label
        raise ValueError(f"no image of {self.source.name} could be read")


class LoadForEvaluation(Loader):
    """Positions past the last example give rows of padding."""

    def __call__(self, indices: np.ndarray) -> Batch:
        images = self.room_for(len(indices))
        labels = [
            self.read(int(index), image) if index < len(self.source) else None
            for index, image in zip(indices, images, strict=True)
        ]
        mask = np.array([label is not None for label in labels])
        images[~mask] = self.blank
        none = () if self.source.multi_label else 0
        labels = self.encode([none if label is None else label for label in labels])
        return {"image": images, "label": labels, "mask": mask}


def _read(
    config: ml_collections.ConfigDict,
    positions: grain.MapDataset[Any],
    load: LoadForTraining | LoadForEvaluation,
    size: int,
) -> Iterable[Batch]:
    """Batches of `size`; each reader makes a whole one, or an equal part where memory is short."""
    threads = config.reader_threads or min(16, os.cpu_count() or 1)
    most = _READ_AHEAD_BYTES // (threads * max(1, config.reader_workers) * load.blank.nbytes)
    part = max(n for n in range(1, max(1, min(size, most)) + 1) if size % n == 0)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
    dataset = positions.batch(part).map(load).to_iter_dataset(options)
    join = functools.partial(grain.IterDataset.batch, batch_size=size // part, batch_fn=_join)
    if config.reader_workers:
        return ReadByWorkers(dataset, config.reader_workers, join)  # joining copies: memory is free
    return dataset if part == size else join(dataset)


def _join(parts: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _blank(preprocessing: Preprocessing, uint8: bool) -> np.ndarray:
    shape = (*preprocessing.crop, preprocessing.channels)
    return np.zeros(shape, np.uint8 if uint8 else np.float32)


def _share(option: str, batch: int, index: int | None, count: int | None) -> tuple[int, int, int]:
    """Which process this is, out of how many, and its share of a batch."""
    count = jax.process_count() if count is None else count
    index = jax.process_index() if index is None else index
    if batch < 1 or batch % count:
        raise ValueError(
            f"config.{option}={batch} does not divide among {count} processes; "
            f"{max(1, batch // count) * count} would"
        )
    return index, count, batch // count
