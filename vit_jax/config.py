"""Every option once: its default, its meaning, its range. Recipes start from `default_config()`.

An option that is not in this table does not exist; every option in it is used somewhere.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from vit_jax import allowed
from vit_jax.allowed import Allowed, either, named, number, one_of, ordered, several, whole
from vit_jax.preprocessing import INTERPOLATIONS


class Option(NamedTuple):
    default: Any
    meaning: str
    limits: Allowed | None = None  # None: those of the default's type, as below
    kind: type | None = None  # None: that of the default; `object` allows a number or a tuple

    @property
    def allowed(self) -> Allowed:
        return self.limits or _LIMITS[type(self.default)]


_LIMITS = {bool: allowed.switch, str: allowed.text, int: whole(0), float: number(0)}

_batch, _few = whole(1, 2**20), whole(0, 1000)
_share, _part, _decay = number(0, 1), number(above=0, most=1), number(0, below=1)
_dtype = one_of("float32", "bfloat16", "float16")
_metric = one_of("loss", "accuracy", "accuracy_top5", "accuracy_per_label")
_strategy = one_of("auto", "jit", "pmap", "fsdp")
_side, _positive, _per_channel = whole(1, 2**14), number(above=0), ([1, 3, 4], "one per channel")
_size = either(_side, several(_side, [2], "(height, width)"))
_mean = either(number(), several(number(), *_per_channel))
_std = either(_positive, several(_positive, *_per_channel))

DATA = {
    "dataset": Option(
        "digits", "a tfds name, a folder, a CSV/TSV of path,label, or 'digits' (built in)", named
    ),
    "tfds_data_dir": Option("", "where tfds data sets are prepared; '' is ~/tensorflow_datasets"),
    "tfds_manual_dir": Option("", "where the files are that tfds wants downloaded by hand"),
    "image_key": Option("", "the tfds feature with the image; '' finds it"),
    "label_key": Option("", "the tfds feature with the class or classes; '' finds it"),
    "test_fraction": Option(0.1, "share held out as 'test' if a data set has no splits", _decay),
    "pp.train": Option("train", "split to train on: 'train[:98%]', 'train+validation', …", named),
    "pp.test": Option("test", "split to evaluate on", named),
    "pp.crop": Option(224, "size the model sees: a number, or (height, width)", _size, object),
    "pp.resize": Option(
        0, "evaluation: shorter side before a centre crop; 0 resizes to the crop", whole(0, 2**14)
    ),
    "pp.interpolation": Option(
        "bilinear", "evaluation: how to resize; the last two antialias", one_of(*INTERPOLATIONS)
    ),
    "pp.mean": Option(0.5, "subtracted from 0..1: a number, or one per channel", _mean, object),
    "pp.std": Option(0.5, "divisor after that; 0.5 and 0.5 give [-1, 1]", _std, object),
    "pp.channels": Option(3, "channels the model sees: 3 RGB, 1 gray, 4 RGBA", one_of(1, 3, 4)),
    "pp.exif": Option(False, "turn photographs upright by their EXIF tag (the reference does not)"),
    "pp.max_pixels": Option(100_000_000, "images with more pixels count as broken", whole(1)),
    "augment.crop_area": Option((0.05, 1.0), "share of an image in a random crop", ordered(_part)),
    "augment.flip": Option(True, "mirror half of the images"),
    "augment.randaugment_layers": Option(0, "RandAugment operations per image; 0 is off", _few),
    "augment.randaugment_magnitude": Option(10.0, "their strength, published 10", number(0, 100)),
    "augment.color_jitter": Option(0.0, "± of brightness, contrast, saturation", number(0, 10)),
    "augment.erase_rate": Option(0.0, "share of images with a rectangle erased by noise", _share),
    "batch": Option(512, "examples per training step, over all processes", _batch),
    "batch_eval": Option(512, "examples per evaluation step, over all processes", _batch),
    "seed": Option(0, "decides all randomness; same seed, same run", whole(0, 2**63 - 1)),
    "prefetch": Option(2, "batches moved to the device ahead of the step that needs them", _few),
    "reader_threads": Option(0, "threads that decode; 0 is one per core, at most 16", _few),
    "reader_workers": Option(0, "processes that decode, each with reader_threads; 0 is none", _few),
    "uint8_to_device": Option(False, "move 8-bit images and normalise on the device: 4x less copy"),
    "max_bad_images": Option(0.01, "share of a split that may be broken, or the run stops", _share),
}

TRAINING = {
    "pretrained": Option("", "checkpoint to start from: anything checkpoint.open takes"),
    "pretrained_dir": Option("", "the reference's way: start from <this>/<model_or_filename>.npz"),
    "model_or_filename": Option("", "with pretrained_dir: a file name; '' is the model's name"),
    "keep_head": Option(False, "keep the checkpoint's head; its classes must be ours"),
    "total_steps": Option(10_000, "optimizer steps of the whole run", whole(1)),
    "accum_steps": Option(1, "parts in which a batch is computed, to save memory", _batch),
    "optimizer": Option("sgd", "update rule", one_of("sgd", "adam", "adamw", "lion", "adafactor")),
    "base_lr": Option(0.03, "learning rate at the end of the warm-up"),
    "decay_type": Option(
        "cosine", "learning rate after warm-up", one_of("cosine", "linear", "rsqrt", "constant")
    ),
    "warmup_steps": Option(500, "steps of linear warm-up"),
    "linear_end": Option(1e-5, "learning rate at the end of a linear decay"),
    "momentum": Option(0.9, "momentum of sgd", _decay),
    "beta1": Option(0.9, "decay of the first moment, for adam, adamw, lion and adafactor", _decay),
    "beta2": Option(0.999, "decay of the second moment, for adam, adamw and lion", _decay),
    "weight_decay": Option(0.0, "decoupled, times the learning rate; not for biases and norms"),
    "grad_norm_clip": Option(1.0, "largest norm of the whole gradient; 0 is no limit"),
    "optim_dtype": Option("bfloat16", "dtype the optimizer keeps its momentum in", _dtype),
    "layer_decay": Option(1.0, "learning rate factor from each layer to the one below it", _part),
    "trainable": Option(".*", "regex of parameters ('head': linear probe)", allowed.pattern),
    "loss": Option("softmax", "softmax: one class; sigmoid: several", one_of("softmax", "sigmoid")),
    "label_smoothing": Option(0.0, "share of the target spread over all classes", _share),
    "mixup": Option(0.0, "Beta parameter of MixUp; 0 is off"),
    "cutmix": Option(0.0, "Beta parameter of CutMix; 0 is off"),
    "ema_decay": Option(0.0, "decay of averaged weights, evaluated and saved; 0 is off", _decay),
}
RUN = {
    "progress_every": Option(10, "steps between progress lines"),
    "eval_every": Option(100, "steps between evaluations; the last step always has one"),
    "checkpoint_every": Option(1_000, "steps between checkpoints; the last step always has one"),
    "keep_checkpoints": Option(2, "newest checkpoints to keep, beside the best"),
    "best_metric": Option("accuracy", "the evaluation metric that decides which is best", _metric),
    "profile_steps": Option((0, 0), "(first, last) to profile; (0, 0) is off", ordered(whole(0))),
    "wandb_project": Option("", "also log to this Weights & Biases project, if wandb is installed"),
    "compilation_cache": Option("auto", "directory for compiled programs; '' is off"),
}
PARALLEL = {
    "parallel.strategy": Option(
        "auto", "jit: one device; pmap: a copy on each; fsdp: state spread over all", _strategy
    ),
    "parallel.tensor": Option(
        1, "fsdp: devices that share each layer's heads and MLP, for very wide models", whole(1)
    ),
}

OPTIONS: dict[str, Option] = {**DATA, **TRAINING, **RUN, **PARALLEL}

# The reference's presets for fine-tuning (its "common" section), and what other data sets get.
DATASETS: dict[str, dict[str, Any]] = {
    "cifar10": {"total_steps": 10_000, "pp.train": "train[:98%]", "pp.test": "test"},
    "cifar100": {"total_steps": 10_000, "pp.train": "train[:98%]", "pp.test": "test"},
    "imagenet2012": {"total_steps": 20_000, "pp.train": "train[:99%]", "pp.test": "validation"},
}
OTHER_DATASETS = {"total_steps": 2_500, "pp.train": "train", "pp.test": "test"}

# What may differ when a run is started again; anything else would make it another run.
MAY_CHANGE = {
    *RUN,
    *PARALLEL,
    *("tfds_data_dir", "tfds_manual_dir", "batch_eval", "prefetch", "reader_threads"),
    *("reader_workers", "max_bad_images"),
    *("pretrained", "pretrained_dir", "model_or_filename", "keep_head"),  # read once, at the start
}

# What a checkpoint's card records about its data: which set, and how to read its labels.
DATA_SET = (
    *("dataset", "tfds_data_dir", "tfds_manual_dir", "image_key", "label_key"),
    *("test_fraction", "pp.train", "pp.test", "loss"),
)


def default_config() -> ml_collections.ConfigDict:
    """All options at their defaults; a dotted name is a nested field."""
    config = ml_collections.ConfigDict()
    for name, (default, _, _, kind) in OPTIONS.items():
        group, _, leaf = name.rpartition(".")
        if group and group not in config:
            config[group] = ml_collections.ConfigDict()
        reference = ml_collections.FieldReference(default, field_type=kind or type(default))
        (config[group] if group else config)[leaf] = reference
    return config


def fine_tuning(dataset: str) -> ml_collections.ConfigDict:
    """The reference's fine-tuning recipe for any data set: a tfds name, a folder, a CSV."""
    config = default_config()
    config.dataset = dataset
    config.pp.crop, config.batch, config.accum_steps = 384, 512, 8
    config.update_from_flattened_dict(DATASETS.get(dataset, OTHER_DATASETS))
    return config


def check(config: ml_collections.ConfigDict) -> None:
    """Raises one ValueError with every problem that there is with the options."""
    if found := problems(config):
        raise ValueError(f"{'; '.join(found)}.")


def problems(config: ml_collections.ConfigDict) -> list[str]:
    """Every option that has a wrong value, is missing, or does not exist, in words."""
    given = {k: v for k, v in flat_config(config).items() if not k.startswith("model.")}
    unknown = [name for name in given if name not in OPTIONS]
    found = [f"there is no option config.{n}{allowed.did_you_mean(n, OPTIONS)}" for n in unknown]
    if missing := [name for name in OPTIONS if name not in given]:
        some = f"{', '.join(missing[:3])}{', …' * (len(missing) > 3)}"
        found.append(f"config lacks {some} (recipes start from vit_jax.config.default_config())")
    for name in [name for name in OPTIONS if name in given]:
        found += OPTIONS[name].allowed.problem(f"config.{name}", given[name])
    return found or list(_at_odds(config))


def _at_odds(config: ml_collections.ConfigDict) -> Iterator[str]:
    """What is wrong with options that are each within their range."""
    pp, augment = config.pp, config.augment
    smallest = pp.crop if isinstance(pp.crop, int) else min(pp.crop)
    if 0 < pp.resize < smallest:
        yield f"config.pp.resize={pp.resize} is smaller than config.pp.crop={pp.crop} (0 fits it)"
    for name in ("mean", "std"):
        if isinstance(pp[name], tuple | list) and len(pp[name]) != pp.channels:
            yield f"config.pp.{name}={pp[name]} is not one for each of {pp.channels} channels"
    if pp.channels == 4 and (augment.randaugment_layers or augment.color_jitter):
        yield "RandAugment and colour jitter need config.pp.channels=1 or 3, not 4"


def flat_config(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Dotted names to plain JSON values."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            flat |= {f"{name}.{inner}": v for inner, v in flat_config(value).items()}
        else:
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat


def data_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The options of DATA_SET, with absolute paths, so that they hold from any directory."""
    flat = flat_config(config)
    for name in ("dataset", "tfds_data_dir", "tfds_manual_dir"):
        path = Path(flat[name]).expanduser()
        if flat[name] not in ("", "digits") and path.exists():
            flat[name] = str(path.absolute())
    return {name: flat[name] for name in DATA_SET}


def describe_options() -> str:
    """Every option with its default and meaning, for --help."""
    lines = ["", "Options, each settable as --config.NAME=VALUE. In brackets is the default that"]
    lines += ["recipes start from; without --config, configs/quickstart.py sets some of them.", ""]
    data = "data (augment.*: in training)"
    tables = {data: DATA, "training": TRAINING, "the run": RUN, "devices": PARALLEL}
    for title, table in tables.items():
        lines.append(f"  {title}")
        for name, o in table.items():
            meaning = "; ".join(filter(None, (o.meaning, o.allowed.brief)))
            lines.append(f"    {name:<30} {meaning} [{o.default!r}]")
    lines += ["  model", f"    {'model.*':<30} fields of the model; see vit_jax/models/fields.py"]
    return "\n".join([*lines, ""])
