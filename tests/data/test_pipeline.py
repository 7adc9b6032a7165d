"""Batches: the same for a seed whatever reads them, resumable, shared out, and complete."""

import itertools
from collections import Counter

import jax
import numpy as np
import pytest

from vit_jax.data import eval_batches, open_source, preprocessing, train_batches
from vit_jax.data.sources import Example


class Numbers:
    """A source whose image is its index: what comes out tells where it was."""

    name, split, class_names, multi_label = "numbers", "train", ("even", "odd"), False

    def __init__(self, size, bad=()):
        self.size, self.bad = size, frozenset(bad)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            return Example(b"broken", index % 2, self.path(index))
        image = np.full((8, 8, 3), index, np.uint8)
        return Example(image, index % 2, self.path(index))

    def path(self, index):
        return f"numbers/{index}"


@pytest.fixture
def config(config_for):
    return config_for("unused", uint8_to_device=True)


def indices(batch):
    return batch["image"][:, 0, 0, 0].tolist()


def take(batches, count):
    return list(itertools.islice(batches, count))


def equal(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def test_every_epoch_has_every_example_once_in_another_order(config):
    stream = [i for b in take(train_batches(config, Numbers(22)), 11) for i in indices(b)]
    epochs = stream[:22], stream[22:44]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(22))
    assert epochs[0] != epochs[1] and epochs[0] != list(range(22))


def test_labels_stay_with_their_images(config):
    for batch in take(train_batches(config, Numbers(22)), 10):
        assert batch["label"].dtype == np.int32
        assert batch["label"].tolist() == [i % 2 for i in indices(batch)]


def test_a_set_smaller_than_a_batch_trains(config):
    config.batch = 16
    assert Counter(indices(next(train_batches(config, Numbers(5))))).keys() == set(range(5))


def test_the_seed_decides(numbered, config_for):
    config = config_for(numbered)
    first, again = (take(train_batches(config), 3) for _ in range(2))
    config.seed = 1
    other = take(train_batches(config), 3)
    assert equal(first, again) and not equal(first, other)


@pytest.mark.parametrize("threads", [1, 5])
def test_the_number_of_threads_changes_nothing(numbered, config_for, threads):
    config = config_for(numbered, **{"augment.randaugment_layers": 2, "augment.erase_rate": 0.5})
    expected = take(train_batches(config), 9)
    config.reader_threads = threads
    assert equal(take(train_batches(config), 9), expected)


def test_the_number_of_worker_processes_changes_nothing(numbered, config_for):
    config = config_for(numbered)
    expected = take(train_batches(config), 4)
    config.reader_workers = 2
    batches = train_batches(config)
    assert equal(take(batches, 3), expected[:3])
    batches.close()
    config.reader_workers = 0
    resumed = train_batches(config, start_step=3)  # stopped with workers, continued without
    assert equal(next(resumed), expected[3])


def test_memory_limits_change_nothing(numbered, config_for, monkeypatch):
    config = config_for(numbered, batch=12)
    expected = take(train_batches(config), 3)
    # Room for five images: batches of twelve are then read four at a time and joined.
    monkeypatch.setattr("vit_jax.data.pipeline._READ_AHEAD_BYTES", 2 * 5 * 8 * 8 * 3 * 4)
    assert equal(take(train_batches(config), 3), expected)


def test_randomness_depends_on_epoch_and_index_alone(numbered, config_for):
    """Twice the batch size sees the same examples with the same crops."""
    config = config_for(numbered, batch=4)
    small = take(train_batches(config), 6)
    config.batch = 8
    large = take(train_batches(config), 3)
    joined = [b["image"] for b in small], [b["image"] for b in large]
    assert (np.concatenate(joined[0]) == np.concatenate(joined[1])).all()


def test_an_image_is_cropped_anew_each_epoch(numbered, config_for):
    config = config_for(numbered, **{"pp.train": "train[:1]"}, batch=1)
    images = [b["image"].tobytes() for b in take(train_batches(config), 6)]
    assert len(set(images)) == 6


@pytest.mark.parametrize("steps", [1, 4, 7])  # 13 examples in batches of 4: within three epochs
def test_starting_at_a_step_continues_exactly(numbered, config_for, steps):
    config = config_for(numbered)
    straight = take(train_batches(config), steps + 3)
    assert equal(take(train_batches(config, start_step=steps), 3), straight[steps:])


def test_a_run_continues_with_another_number_of_processes(config):
    config.batch = 12
    whole = take(train_batches(config, Numbers(31)), 6)
    for processes in (2, 3):
        shares = []
        for process in range(processes):
            options = {"process_index": process, "process_count": processes, "start_step": 5}
            shares += indices(next(train_batches(config, Numbers(31), **options)))
        assert shares == indices(whole[5])


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_share_every_global_batch(config, processes):
    config.batch = 12
    alone = take(train_batches(config, Numbers(31)), 8)
    shares = [
        take(train_batches(config, Numbers(31), process_index=p, process_count=processes), 8)
        for p in range(processes)
    ]
    for step, whole in enumerate(alone):
        together = [i for share in shares for i in indices(share[step])]
        assert together == indices(whole)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_shards_partition_the_epoch(config, processes):
    config.batch = 12
    seen = []
    for process in range(processes):
        options = {"process_index": process, "process_count": processes}
        seen += [
            i for b in take(train_batches(config, Numbers(36), **options), 3) for i in indices(b)
        ]
    assert sorted(seen) == list(range(36))


def test_a_batch_that_does_not_divide_is_refused(config):
    config.batch = config.batch_eval = 10
    for make in (train_batches, eval_batches):
        with pytest.raises(ValueError, match="=10 does not divide among 4 processes; 8 would"):
            make(config, Numbers(9), process_index=0, process_count=4)


@pytest.mark.parametrize("size", [1, 3, 11, 12, 13, 35])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_evaluation_counts_every_example_once(config, size, processes):
    config.batch_eval = 12
    seen, steps = [], set()
    for process in range(processes):
        batches = eval_batches(
            config, Numbers(size), process_index=process, process_count=processes
        )
        steps.add(len(batches))
        listed = list(batches)
        assert len(listed) == len(batches)
        for batch in listed:
            assert batch["image"].shape == (12 // processes, 8, 8, 3)
            assert batch["mask"].shape == (12 // processes,) and batch["mask"].dtype == bool
            seen += np.array(indices(batch))[batch["mask"]].tolist()
            assert not batch["image"][~batch["mask"]].any()
    assert sorted(seen) == list(range(size)) and len(steps) == 1


def test_evaluation_can_be_run_again(config):
    batches = eval_batches(config, Numbers(10))
    assert equal(list(batches), list(batches))


def test_evaluation_reads_the_test_split_with_trainings_classes(numbered, config_for):
    config = config_for(numbered)
    test = open_source(config, config.pp.test, open_source(config).class_names)
    assert sum(batch["mask"].sum() for batch in eval_batches(config, test)) == 7
    assert equal(list(eval_batches(config, test)), list(eval_batches(config)))


def test_multi_label_sets_give_zeros_and_ones(config):
    class Many(Numbers):
        multi_label = True

        def __getitem__(self, index):
            return super().__getitem__(index)._replace(label=tuple(range(index % 3)))

    rows = {tuple(row) for b in take(train_batches(config, Many(9)), 3) for row in b["label"]}
    assert rows == {(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)}
    padded = list(eval_batches(config, Many(5)))[-1]
    assert padded["label"].shape == (4, 2) and padded["mask"].tolist() == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("crop", [6, (6, 10)])
@pytest.mark.parametrize("uint8", [False, True])
def test_batches_have_the_shape_and_type_asked_for(numbered, config_for, crop, uint8):
    config = config_for(numbered, uint8_to_device=uint8, **{"pp.crop": crop, "pp.channels": 1})
    for batch in (next(train_batches(config)), next(iter(eval_batches(config)))):
        assert batch["image"].shape == (4, 6, 6 if crop == 6 else 10, 1)
        assert batch["image"].dtype == (np.uint8 if uint8 else np.float32)


def test_eight_bit_and_float_batches_are_the_same_images(numbered, config_for):
    config = config_for(numbered)
    exact = next(train_batches(config))["image"] * 127.5 + 127.5
    config.uint8_to_device = True
    rounded = next(train_batches(config))["image"]
    # Half a step of rounding, and half for cv2's fixed-point arithmetic.
    assert np.abs(exact - rounded).max() <= 1
    assert preprocessing(config).mean == (0.5,) * 3
