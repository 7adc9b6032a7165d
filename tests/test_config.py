"""The table of options: what it allows, and that everything of ours is within it."""

import functools
import re

import ml_collections
import pytest

from tests.run.recipe import get_config
from vit_jax.cli import recipe
from vit_jax.config import OPTIONS, check, default_config
from vit_jax.models import MODEL_CONFIGS
from vit_jax.parallel.mesh import STRATEGIES
from vit_jax.train import train_and_evaluate
from vit_jax.training.losses import LOSSES
from vit_jax.training.optim import DECAY_TYPES, OPTIMIZERS
from vit_jax.training.program import check_recipe

NAN, INF = float("nan"), float("inf")
AT_LEAST_0, SHARE, DECAY = (
    "a number at least 0",
    "at least 0 and at most 1",
    "at least 0 and below 1",
)
FROM_0, FROM_1 = "a whole number from 0 to", "a whole number from 1 to"


def with_options(**changes):
    """A recipe as Python may make one, without the types that ml_collections would keep."""
    config = get_config().to_dict()
    for name, value in changes.items():
        *groups, field = name.split(".")
        functools.reduce(dict.__getitem__, groups, config)[field] = value
    return ml_collections.ConfigDict(config)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("base_lr", NAN, AT_LEAST_0),
        ("base_lr", INF, AT_LEAST_0),
        ("base_lr", -0.1, AT_LEAST_0),
        ("linear_end", -1.0, AT_LEAST_0),
        ("total_steps", 0, FROM_1),
        ("total_steps", -3, FROM_1),
        ("total_steps", 10**20, FROM_1),
        ("total_steps", 2.5, FROM_1),
        ("warmup_steps", -5, FROM_0),
        ("accum_steps", 0, FROM_1),
        ("accum_steps", -2, FROM_1),
        ("batch", 0, FROM_1),
        ("batch_eval", -1, FROM_1),
        ("prefetch", -1, FROM_0),
        ("reader_threads", -1, FROM_0),
        ("reader_workers", 10**6, FROM_0),
        ("seed", 10**20, FROM_0),
        ("seed", -1, FROM_0),
        ("label_smoothing", 2.0, SHARE),
        ("max_bad_images", 2.0, SHARE),
        ("augment.erase_rate", 3.0, SHARE),
        ("mixup", -1.0, AT_LEAST_0),
        ("cutmix", NAN, AT_LEAST_0),
        ("weight_decay", -0.1, AT_LEAST_0),
        ("grad_norm_clip", -1.0, AT_LEAST_0),
        ("ema_decay", 2.0, DECAY),
        ("momentum", 1.5, DECAY),
        ("beta1", -0.1, DECAY),
        ("beta2", 1.0, DECAY),
        ("test_fraction", 1.0, DECAY),
        ("test_fraction", NAN, DECAY),
        ("layer_decay", 2.0, "above 0 and at most 1"),
        ("layer_decay", 0.0, "above 0 and at most 1"),
        ("augment.crop_area", (1.0, 0.05), "in this order"),
        ("augment.crop_area", (0.0, 1.0), "above 0 and at most 1"),
        ("augment.crop_area", (0.5,), "(first, last)"),
        ("augment.color_jitter", -1.0, AT_LEAST_0),
        ("augment.randaugment_layers", -1, FROM_0),
        ("augment.randaugment_magnitude", INF, AT_LEAST_0),
        ("profile_steps", (5, 2), "in this order"),
        ("profile_steps", (-1, 2), FROM_0),
        ("progress_every", -1, FROM_0),
        ("eval_every", -1, FROM_0),
        ("checkpoint_every", -1, FROM_0),
        ("keep_checkpoints", -1, FROM_0),
        ("trainable", "", "a regular expression"),
        ("trainable", "(", "a regular expression"),
        ("optimizer", "adamx", "sgd, adam, adamw, lion or adafactor"),
        ("decay_type", "step", "cosine, linear, rsqrt or constant"),
        ("loss", "foo", "softmax or sigmoid"),
        ("best_metric", "foo", "loss, accuracy, accuracy_top5 or accuracy_per_label"),
        ("optim_dtype", "float8", "float32, bfloat16 or float16"),
        ("optim_dtype", "int32", "float32, bfloat16 or float16"),
        ("parallel.strategy", "zero", "auto, jit, pmap or fsdp"),
        ("parallel.tensor", 0, FROM_1),
        ("dataset", "", "a name"),
        ("pp.test", "", "a name"),
        ("pp.crop", 0, "a whole number from 1 to 16,384, or (height, width)"),
        ("pp.crop", (3, 4, 5), "(height, width)"),
        ("pp.crop", "8", "(height, width)"),
        ("pp.crop", 100_000, "(height, width)"),
        ("pp.resize", -1, FROM_0),
        ("pp.resize", 5, "is smaller than config.pp.crop=8"),
        ("pp.interpolation", "cubic", "bilinear, bilinear_antialias or bicubic"),
        ("pp.channels", 2, "1, 3 or 4"),
        ("pp.mean", (0.5, 0.5, 0.5), "is not one for each of 1 channels"),
        ("pp.mean", NAN, "a finite number, or one per channel"),
        ("pp.std", 0.0, "a number above 0, or one per channel"),
        ("pp.std", (0.5, 0.0, 0.5), "a number above 0, or one per channel"),
        ("pp.max_pixels", 0, FROM_1),
        ("pp.exif", "yes", "True or False"),
        ("wandb_project", None, "text"),
        ("trainer", "foo", "there is no option config.trainer"),
        ("pp.trian", "train", "there is no option config.pp.trian"),
        ("model.dtype", "float31", "float32, bfloat16 or float16"),
        ("model.transformer.num_heads", 0, FROM_1),
        ("model.transformer.num_heads", 3, "must divide config.model.hidden_size, 32"),
        ("model.transformer.dropout_rate", 2.0, SHARE),
        ("model.patches.size", (0, 4), "(height, width)"),
        ("model.num_layers", 2, "has no field config.model.num_layers"),
        ("model", None, "config.model is missing"),
        ("pp.crop", 7, "7×7 cannot be cut into patches of 4×4; 8×8 can"),
        ("pp.crop", (8, 6), "8×6 cannot be cut"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(option, value, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        check_recipe(with_options(**{option: value}))
    assert f"config.{option}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_problems_are_named_at_once():
    wrong = {"base_lr": NAN, "batch": 0, "model.gelu": "fast", "trainer": "foo"}
    with pytest.raises(ValueError) as caught:
        check_recipe(with_options(**wrong))
    assert len(str(caught.value).split("; ")) == len(wrong)
    assert all(f"config.{name}" in str(caught.value) for name in wrong)


def test_nothing_is_made_before_the_check(tmp_path):
    with pytest.raises(ValueError, match=r"config\.base_lr is nan"):
        train_and_evaluate(with_options(base_lr=NAN), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_options_that_do_not_go_together_are_named():
    config = with_options(**{"pp.channels": 4, "augment.color_jitter": 0.1})
    with pytest.raises(ValueError, match=r"need config\.pp\.channels=1 or 3, not 4"):
        check(config)


def test_a_config_that_does_not_start_from_ours_says_what_it_lacks():
    with pytest.raises(ValueError, match=r"there is no option config\.lr; config lacks dataset, "):
        check(ml_collections.ConfigDict({"lr": 0.1}))


def test_an_option_that_a_recipe_misspelt_is_guessed():
    with pytest.raises(ValueError, match=r"no option config\.bas_lr \(did you mean base_lr\?\)"):
        check(with_options(bas_lr=0.1))


def test_a_warm_up_longer_than_the_run_gets_a_remark():
    assert check_recipe(with_options(warmup_steps=30)) == []
    (remark,) = check_recipe(with_options(warmup_steps=31))
    assert "config.warmup_steps=31 is more than config.total_steps=30" in remark


def test_a_pattern_may_be_odd():
    check(with_options(trainable="[[head]"))  # Python warns of it


def test_the_defaults_are_allowed():
    check(default_config())


RECIPES = {
    "vit.py": ["b16,imagenet2012", "h14,cifar10", *MODEL_CONFIGS],
    "scratch.py": ["s16", "b32,cifar10"],
    "augreg.py": ["R_Ti_16", "B_16,cifar100"],
    "mixer.py": ["b16", "b32,cifar10", "l16"],
}


@pytest.mark.parametrize("file", sorted(path.name for path in recipe.RECIPES.glob("*.py")))
def test_every_recipe_of_ours_is_allowed(file):
    check_recipe(recipe.load(file))
    for argument in RECIPES.get(file, ()):
        check_recipe(recipe.load(f"{file}:{argument}"))


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ("optimizer", OPTIMIZERS),
        ("decay_type", DECAY_TYPES),
        ("loss", LOSSES),
        ("parallel.strategy", ("auto", *STRATEGIES)),
    ],
)
def test_the_table_names_what_there_is(option, known):
    allowed = OPTIONS[option].allowed
    assert all(map(allowed.holds, known))
    assert set(re.split(", | or ", allowed.words)) == set(known)
