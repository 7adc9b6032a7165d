"""From source and transforms to batches, in an order that the seed alone decides.

Training is one endless stream: epoch after epoch, each shuffled whole. A global batch is the next
`config.batch` positions of that stream, and process p of P reads the p-th of P equal runs of them,
so neither the number of processes nor of readers changes what a step sees, or in which order.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence

import cv2
import grain
import jax
import ml_collections
import numpy as np
from absl import flags

from vit_jax.data.bad_images import BadImages
from vit_jax.data.sources import Label, Source, encode_label, open_source
from vit_jax.data.transforms import eval_transform, train_transform
from vit_jax.data.transforms import preprocessing as configured_preprocessing
from vit_jax.preprocessing import Preprocessing

Batch = dict[str, np.ndarray]

_STREAM_LENGTH = 2**50  # examples: more than any run takes, and grain counts no further than 2**63
_READ_AHEAD_BYTES = 2**30  # of images that all readers together may hold, roughly


def train_batches(
    config: ml_collections.ConfigDict,
    source: Source | None = None,
    *,
    start_step: int = 0,
    process_index: int | None = None,
    process_count: int | None = None,
) -> "TrainBatches":
    """Endless batches of `image` (b h w c) and `label` (b, or b k of zeros and ones).

    Each is this process's share of `config.batch`. A resumed run starts at the `start_step` it had
    reached, at no cost, whatever the number of readers and processes then and now.
    """
    config = config.copy_and_resolve_references()  # must not change while readers use it
    process_index, process_count = _processes(process_index, process_count)
    source = open_source(config) if source is None else source
    size = _share(config.batch, process_count, "batch")
    bad = BadImages(source, config.max_bad_images)
    blank = _blank(configured_preprocessing(config), config.uint8_to_device)
    load = LoadForTraining(source, train_transform(config), blank, config.seed, bad)
    epochs = max(1, _STREAM_LENGTH // len(source))
    stream = grain.MapDataset.range(len(source)).seed(config.seed).shuffle().repeat(epochs)
    stream = stream.map_with_index(lambda position, index: (position // len(source), index))

    first = start_step * config.batch + process_index * size
    rows = grain.MapDataset.range((len(stream) - first) // process_count)
    mine = rows.map(lambda row: stream[first + row // size * config.batch + row % size])
    return TrainBatches(iter(_read(config, mine, load, size)), bad)


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
    process_index, process_count = _processes(process_index, process_count)
    source = open_source(config, config.pp.test) if source is None else source
    size = _share(config.batch_eval, process_count, "batch_eval")
    steps = math.ceil(len(source) / config.batch_eval)
    bad = BadImages(source, config.max_bad_images)
    wanted = preprocessing or configured_preprocessing(config)
    uint8, max_pixels = config.uint8_to_device, config.pp.max_pixels
    transform = eval_transform(wanted, uint8=uint8, max_pixels=max_pixels)
    load = LoadForEvaluation(source, transform, _blank(wanted, uint8), bad)
    positions = grain.MapDataset.range(process_index, steps * config.batch_eval, process_count)
    return EvalBatches(_read(config, positions, load, size), steps, bad)


class TrainBatches(Iterator[Batch]):
    """Training batches without end; `close` ends the readers."""

    def __init__(self, batches: grain.DatasetIterator, bad_images: BadImages):
        self._batches, self.bad_images = batches, bad_images

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        self._batches.close()


@dataclasses.dataclass(frozen=True)
class EvalBatches:
    """One pass over a split each time it is iterated."""

    dataset: grain.IterDataset
    steps: int
    bad_images: BadImages

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.dataset)


@dataclasses.dataclass(frozen=True)
class LoadForTraining:
    """Reads and augments examples; randomness is a function of (seed, epoch, index).

    Images are written straight into the batch: stacking them later would take a fifth more time.
    """

    source: Source
    transform: Callable[..., np.ndarray]
    blank: np.ndarray
    seed: int
    bad: BadImages

    def __call__(self, places: tuple[np.ndarray, np.ndarray]) -> Batch:
        images = _room_for(len(places[0]), self.blank)
        labels = [
            self._load(int(epoch), int(index), image)
            for epoch, index, image in zip(*places, images, strict=True)
        ]
        return {"image": images, "label": np.stack(labels)}

    def _load(self, epoch: int, index: int, out: np.ndarray) -> np.ndarray | np.int32:
        for offset in range(len(self.source)):
            candidate = (index + offset) % len(self.source)
            rng = np.random.default_rng((self.seed, epoch, index))
            try:
                example = self.source[candidate]
                _fill(out, self.transform(example.image, rng, out))
            except (ValueError, OSError) as error:
                self.bad.report(candidate, error)  # and the next one takes its place
                continue
            return _label(self.source, example.label)
        raise ValueError(f"no image of {self.source.name} could be read")


@dataclasses.dataclass(frozen=True)
class LoadForEvaluation:
    """Reads examples; positions past the last give rows of padding."""

    source: Source
    transform: Callable[..., np.ndarray]
    blank: np.ndarray
    bad: BadImages

    def __call__(self, indices: np.ndarray) -> Batch:
        images = _room_for(len(indices), self.blank)
        loaded = [self._load(int(i), image) for i, image in zip(indices, images, strict=True)]
        labels, mask = zip(*loaded, strict=True)
        return {"image": images, "label": np.stack(labels), "mask": np.array(mask)}

    def _load(self, index: int, out: np.ndarray) -> tuple[np.ndarray | np.int32, bool]:
        if index < len(self.source):
            try:
                example = self.source[index]
                _fill(out, self.transform(example.image, out))
                return _label(self.source, example.label), True
            except (ValueError, OSError) as error:
                self.bad.report(index, error)
        out[:] = self.blank
        return _label(self.source, () if self.source.multi_label else 0), False


def _read(
    config: ml_collections.ConfigDict,
    positions: grain.MapDataset,
    load: "LoadForTraining | LoadForEvaluation",
    size: int,
) -> grain.IterDataset:
    """Batches of `size`; each reader makes a whole one, or an equal part where memory is short."""
    threads = config.reader_threads or min(16, os.cpu_count() or 1)
    most = _READ_AHEAD_BYTES // (threads * max(1, config.reader_workers) * load.blank.nbytes)
    part = max(n for n in range(1, max(1, min(size, most)) + 1) if size % n == 0)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
    dataset = positions.batch(part).map(load).to_iter_dataset(options)
    if config.reader_workers:
        if not flags.FLAGS.is_parsed():  # grain hands the flags to its workers
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(num_workers=config.reader_workers)
        )
    elif part == size:
        return dataset
    return dataset.batch(size // part, batch_fn=_join)  # which also frees the workers' memory


def _join(parts: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _room_for(count: int, blank: np.ndarray) -> np.ndarray:
    cv2.setNumThreads(1)  # each reader is a thread already; more of them compete with each other
    return np.empty((count, *blank.shape), blank.dtype)


def _fill(out: np.ndarray, image: np.ndarray) -> None:
    if image is not out:
        out[:] = image


def _label(source: Source, label: Label) -> np.ndarray | np.int32:
    return encode_label(label, len(source.class_names))


def _blank(preprocessing: Preprocessing, uint8: bool) -> np.ndarray:
    shape = (*preprocessing.crop, preprocessing.channels)
    return np.zeros(shape, np.uint8 if uint8 else np.float32)


def _processes(index: int | None, count: int | None) -> tuple[int, int]:
    count = jax.process_count() if count is None else count
    index = jax.process_index() if index is None else index
    assert 0 <= index < count, (index, count)
    return index, count


def _share(batch: int, process_count: int, option: str) -> int:
    if batch < 1 or batch % process_count:
        raise ValueError(
            f"config.{option}={batch} does not divide among {process_count} processes; "
            f"{max(1, batch // process_count) * process_count} would"
        )
    return batch // process_count
