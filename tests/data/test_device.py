"""Prefetching to devices overlaps with compute, keeps the order, and normalises there."""

import itertools
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.data import eval_batches, normalize, prefetch_to_device, preprocessing, train_batches


def test_what_arrives_is_what_was_sent(numbered, config_for):
    config = config_for(numbered)
    sent = list(itertools.islice(train_batches(config), 4))
    with_device = prefetch_to_device(train_batches(config))
    for expected, batch in zip(sent, with_device, strict=False):
        assert isinstance(batch["image"], jax.Array)
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)
    with_device.close()


def test_a_pass_over_evaluation_ends(numbered, config_for):
    batches = prefetch_to_device(eval_batches(config_for(numbered)))
    assert sum(int(batch["mask"].sum()) for batch in batches) == 7
    with pytest.raises(StopIteration):
        next(batches)


def test_reading_goes_on_while_a_batch_is_in_use():
    read = [threading.Event() for _ in range(3)]

    def source():
        for event in read:
            event.set()
            yield {"image": np.zeros((1, 2, 2, 3), np.float32)}

    batches = prefetch_to_device(source())
    next(batches)  # and the step is still busy with it
    assert all(event.wait(timeout=60) for event in read)


def test_closing_ends_the_source_which_was_read_no_further_than_asked():
    fourth, reads, closed = threading.Event(), [], []

    def source():
        try:
            for number in itertools.count(1):
                reads.append(number)
                if number == 4:
                    fourth.set()
                yield {"image": np.zeros((1, 2, 2, 3), np.float32)}
        finally:
            closed.append(True)

    batches = prefetch_to_device(source(), size=2)
    next(batches)
    assert fourth.wait(timeout=60)  # one in use, two waiting, one in the thread's hands
    batches.close()
    assert reads == [1, 2, 3, 4] and closed


def test_errors_reach_the_reader():
    def broken():
        yield {"image": np.zeros((1, 2, 2, 3), np.float32)}
        raise ValueError("no more")

    batches = prefetch_to_device(broken())
    next(batches)
    with pytest.raises(ValueError, match="no more"):
        next(batches)


def test_eight_bit_images_are_normalised_on_the_device(numbered, config_for):
    options = {"pp.mean": (0.4, 0.5, 0.6), "pp.std": (0.2, 0.25, 0.3)}
    config = config_for(numbered, **options)
    exact = next(train_batches(config))["image"]
    config.uint8_to_device = True
    batches = prefetch_to_device(train_batches(config), preprocessing=preprocessing(config))
    image = next(batches)["image"]
    batches.close()
    # One 8-bit step at the smallest deviation.
    assert image.dtype == np.float32 and np.abs(exact - image).max() <= 1 / 255 / 0.2 + 1e-5


def test_normalising_on_the_device_equals_the_formula():
    image = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    result = normalize(image, (0.5,), (0.5,))
    assert np.abs(result - (image - 127.5) / 127.5).max() < 1e-6


def test_a_sharding_places_the_batch(numbered, config_for):
    sharding = NamedSharding(Mesh(jax.devices()[:1], "data"), PartitionSpec("data"))
    batches = prefetch_to_device(train_batches(config_for(numbered)), sharding=sharding)
    batch = next(batches)
    batches.close()
    assert batch["image"].sharding == sharding and batch["label"].sharding == sharding
