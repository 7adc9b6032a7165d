"""Few-shot regression and nearest neighbours on features."""

import numpy as np
import pytest

from vit_jax.evaluation import probes


def clusters(count, *, spread, seed=0, num_classes=4, width=8):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % num_classes
    centres = np.random.default_rng(9).standard_normal((num_classes, width))
    features = centres[labels] + spread * rng.standard_normal((count, width))
    return features.astype(np.float32), labels


def test_separate_clusters_are_told_apart_from_one_example():
    train, test = clusters(40, spread=0.01), clusters(80, spread=0.01, seed=1)
    few_shot = probes.few_shot_accuracy(train, test, 4, shots=(1, 5))
    assert few_shot == {1: 1.0, 5: 1.0}
    assert probes.knn_accuracy(train, test, 4, neighbors=5) == 1.0


def test_noise_is_guessed_at_chance():
    train, test = clusters(400, spread=1e3), clusters(2000, spread=1e3, seed=1)
    accuracies = [*probes.few_shot_accuracy(train, test, 4, (25,)).values()]
    accuracies.append(probes.knn_accuracy(train, test, 4))
    # four classes: 0.25, within five standard deviations of 2,000 guesses
    assert all(abs(accuracy - 0.25) < 0.05 for accuracy in accuracies)


@pytest.mark.parametrize("count", [12, 200])  # fewer examples than features, and more
def test_ridge_regression_minimises_its_objective(count):
    features, labels = clusters(count, spread=2.0, width=16)
    mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64) + 1e-5
    x = np.concatenate([(features - mean) / std, np.full((count, 1), 100.0)], axis=1)
    targets = 2 * np.eye(4)[labels] - 1
    stacked = np.concatenate([x, np.sqrt(2.0**10) * np.eye(17)])  # ridge as least squares
    weights = np.linalg.lstsq(stacked, np.concatenate([targets, np.zeros((17, 4))]))[0]
    expected = (x @ weights).argmax(axis=1)
    np.testing.assert_array_equal(probes.fit_ridge(features, labels, 4)(features), expected)


def test_the_first_of_each_class_are_taken_in_order():
    labels = np.array([2, 0, 2, 1, 0, 2, 0])
    np.testing.assert_array_equal(probes.first_of_each(labels, 1), [0, 1, 3])
    np.testing.assert_array_equal(probes.first_of_each(labels, 2), [0, 1, 2, 3, 4])


def test_an_example_is_its_own_nearest_neighbour():
    features, labels = clusters(50, spread=5.0)
    assert probes.knn_accuracy((features, labels), (features, labels), 4, neighbors=1) == 1.0


def test_neighbours_do_not_depend_on_the_order_or_the_length_of_features():
    train, test = clusters(60, spread=1.0), clusters(90, spread=1.0, seed=1)
    order = np.random.default_rng(0).permutation(60)
    shuffled = (3 * train[0][order], train[1][order])
    assert probes.knn_accuracy(train, test, 4) == probes.knn_accuracy(shuffled, test, 4)
