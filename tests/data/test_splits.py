"""Split expressions mean here what they mean in tfds."""

import pytest

from vit_jax.data.splits import hold_out, select

SPLITS = {"train": list(range(100)), "test": list(range(1000, 1007))}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("train", SPLITS["train"]),
        ("train[:98%]", list(range(98))),
        ("train[10%:20%]+test[:5]", [*range(10, 20), *range(1000, 1005)]),
        ("train[-5:]", list(range(95, 100))),
        ("train[-10%:]", list(range(90, 100))),
        ("test[:50%]", list(range(1000, 1004))),  # 3.5 rounds to 4
        ("test[2:-2]", [1002, 1003, 1004]),
        ("test[:100]", SPLITS["test"]),
        ("all", SPLITS["train"] + SPLITS["test"]),
        ("test + train[:1]", [*SPLITS["test"], 0]),
    ],
)
def test_expressions_select(expression, expected):
    assert select(expression, SPLITS, "set") == expected


@pytest.mark.parametrize("expression", ["train[", "train[a:b]", "train[1]", "", "train++test"])
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(ValueError, match="was not understood"):
        select(expression, SPLITS, "set")


def test_an_unknown_split_names_those_there_are():
    with pytest.raises(ValueError, match="set has no split 'val'; it has train, test"):
        select("val", SPLITS, "set")


def test_an_empty_selection_is_refused():
    with pytest.raises(ValueError, match="has no examples; there are train \\(100\\)"):
        select("train[3:1]", SPLITS, "set")


def test_held_out_examples_are_the_same_whatever_order_they_come_in():
    examples = [f"{i}.jpg" for i in range(200)]
    options = {"fraction": 0.1, "key": str, "stratum": lambda e: None}
    assert hold_out(examples, **options) == hold_out(examples[::-1], **options)


def test_held_out_examples_come_from_every_class():
    examples = [(i, i % 7) for i in range(140)]
    splits = hold_out(examples, 0.1, key=lambda e: str(e[0]), stratum=lambda e: e[1])
    assert sorted(splits["train"] + splits["test"]) == examples
    assert [sum(e[1] == c for e in splits["test"]) for c in range(7)] == [2] * 7


def test_a_class_of_two_still_has_one_in_test():
    splits = hold_out(["a", "b"], 0.1, key=str, stratum=lambda e: None)
    assert len(splits["train"]) == len(splits["test"]) == 1


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 3])
def test_a_fraction_that_leaves_nothing_is_refused(fraction):
    with pytest.raises(ValueError, match=r"test_fraction=.* is not a share"):
        hold_out(["a"], fraction, key=str, stratum=lambda e: None)
