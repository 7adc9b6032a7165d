"""A broken image is replaced, counted and logged; too many of them stop the run with the list."""

import itertools
import logging

import numpy as np
import pytest

from vit_jax.data import eval_batches, open_source, train_batches


def break_files(folder, names):
    for name in names:
        next(folder.rglob(name)).write_bytes(b"not an image")


@pytest.fixture
def config(numbered, config_for):
    return config_for(numbered, max_bad_images=0.2)


@pytest.fixture
def unreadable(caplog):
    """What was logged of images that cannot be read."""
    caplog.set_level(logging.WARNING)
    return lambda: [m for m in caplog.messages if m.startswith("unreadable image")]


def take_labels(batches, count):
    return np.concatenate([b["label"] for b in itertools.islice(batches, count)])


def test_training_goes_on_without_broken_images(numbered, config, unreadable):
    break_files(numbered / "train", ["3.png", "8.png"])
    assert len(take_labels(train_batches(config), 13)) == 52  # four epochs
    assert sorted(line.split(":")[0][-5:] for line in unreadable()) == ["3.png", "8.png"]


def test_replacements_are_the_same_whatever_reads_them(numbered, config):
    break_files(numbered / "train", ["3.png", "8.png"])
    expected = [b["image"] for b in itertools.islice(train_batches(config), 8)]
    config.reader_threads = 5
    again = [b["image"] for b in itertools.islice(train_batches(config), 8)]
    assert np.array_equal(expected, again)


def test_a_file_that_vanished_counts_as_broken(numbered, config, unreadable):
    source = open_source(config)
    next((numbered / "train").rglob("3.png")).unlink()
    take_labels(train_batches(config, source), 4)
    assert len(unreadable()) == 1


def test_too_many_stop_the_run_with_the_list(numbered, config):
    broken = ["1.png", "3.png", "5.png", "8.png"]
    break_files(numbered / "train", broken)
    with pytest.raises(ValueError) as failure:
        take_labels(train_batches(config), 20)
    message = str(failure.value)
    assert "images of" in message and "max_bad_images=0.2" in message
    assert sum(name in message for name in broken) == 3  # the third of 13 is one too many


def test_by_default_one_in_a_hundred_may_be_broken(numbered, config_for):
    break_files(numbered / "train", ["3.png"])
    with pytest.raises(ValueError, match=r"1 of 13 images .* config.max_bad_images=0\.01"):
        take_labels(train_batches(config_for(numbered)), 4)


def test_evaluation_masks_what_it_cannot_read(numbered, config, unreadable):
    break_files(numbered / "test", ["15.png"])
    assert sum(batch["mask"].sum() for batch in eval_batches(config)) == 6
    assert len(unreadable()) == 1


def test_decompression_bombs_count_as_broken(numbered, config, encoded, unreadable):
    bomb = encoded(np.zeros((400, 400, 3), np.uint8))
    next((numbered / "train").rglob("3.png")).write_bytes(bomb)
    config.pp.max_pixels = 100_000
    take_labels(train_batches(config), 4)
    assert ["accepted" in line for line in unreadable()] == [True]


def test_a_set_of_nothing_but_broken_images_says_so(numbered, config):
    config.max_bad_images = 1.0
    break_files(numbered / "train", [f"{i}.png" for i in range(13)])
    with pytest.raises(ValueError, match=r"no image of .* could be read"):
        next(train_batches(config))


def test_worker_processes_stop_the_run_too(numbered, config):
    break_files(numbered / "train", ["1.png", "3.png", "5.png", "7.png", "8.png", "9.png"])
    config.reader_workers = 1
    batches = train_batches(config)
    with pytest.raises(Exception, match="max_bad_images"):
        take_labels(batches, 20)
    batches.close()
