"""Every option once, with its default and a line of meaning. Recipes start from `default_config()`.

An option that is not in this table does not exist; an option in this table is read somewhere.
"""

from pathlib import Path
from typing import Any, NamedTuple

import ml_collections


class Option(NamedTuple):
    default: Any
    meaning: str
    kind: type | None = None  # the default's own; `object` where a number or a tuple will do


DATA = {
    "dataset": Option(
        "digits", "a tfds name, a folder of images, a CSV/TSV of path,label, or 'digits' (built in)"
    ),
    "tfds_data_dir": Option("", "where tfds data sets are prepared; '' is ~/tensorflow_datasets"),
    "tfds_manual_dir": Option("", "where files lie that tfds asks to be downloaded by hand"),
    "image_key": Option("", "the tfds feature with the picture; '' finds it"),
    "label_key": Option("", "the tfds feature with the class or classes; '' finds it"),
    "test_fraction": Option(0.1, "share held out as 'test' where a data set has no splits"),
    "pp.train": Option("train", "split to train on: 'train[:98%]', 'train+validation', …"),
    "pp.test": Option("test", "split to evaluate on"),
    "pp.crop": Option(224, "image size the model sees: a number, or (height, width)", object),
    "pp.resize": Option(
        0, "evaluation: shorter side before a centre crop; 0 resizes to the crop at once"
    ),
    "pp.interpolation": Option(
        "bilinear", "evaluation: 'bilinear' (no antialias), 'bilinear_antialias' or 'bicubic'"
    ),
    "pp.mean": Option(
        0.5, "subtracted from values in 0..1: a number, or one for each channel", object
    ),
    "pp.std": Option(0.5, "divides after that; 0.5 and 0.5 give [-1, 1]", object),
    "pp.channels": Option(3, "channels the model sees: 3 RGB, 1 gray, 4 RGBA"),
    "pp.exif": Option(False, "turn photographs as their EXIF tag says (the reference does not)"),
    "pp.max_pixels": Option(100_000_000, "images with more pixels than this count as broken"),
    "augment.crop_area": Option((0.05, 1.0), "training: share of the image a random crop covers"),
    "augment.flip": Option(True, "training: mirror every other image"),
    "augment.randaugment_layers": Option(0, "training: RandAugment operations an image; 0 is off"),
    "augment.randaugment_magnitude": Option(
        10.0, "training: RandAugment strength, 10 as published"
    ),
    "augment.color_jitter": Option(0.0, "training: brightness, contrast, saturation by ± this"),
    "augment.erase_rate": Option(0.0, "training: share of images that lose a rectangle to noise"),
    "batch": Option(512, "examples a training step, over all processes"),
    "batch_eval": Option(512, "examples an evaluation step, over all processes"),
    "seed": Option(0, "decides order and augmentation; same seed, same batches"),
    "prefetch": Option(2, "batches moved to the device ahead of the step that needs them"),
    "reader_threads": Option(0, "threads that decode; 0 is one for each core, 16 at most"),
    "reader_workers": Option(0, "processes that decode, each with reader_threads; 0 is none"),
    "uint8_to_device": Option(False, "move 8-bit images and normalise on the device: 4x less copy"),
    "max_bad_images": Option(0.01, "share of a split that may be unreadable before the run stops"),
}

TRAINING = {
    "pretrained": Option("", "checkpoint to start from: any path that checkpoint.load reads"),
    "pretrained_dir": Option("", "the reference's way: start from <this>/<model_or_filename>.npz"),
    "model_or_filename": Option("", "with pretrained_dir: a file name; '' is the model's name"),
    "keep_head": Option(False, "keep the checkpoint's head, where its classes are ours"),
    "total_steps": Option(10_000, "optimizer steps of the whole run"),
    "accum_steps": Option(1, "parts a batch is computed in, one after the other, to save memory"),
    "optimizer": Option("sgd", "sgd, adam, adamw, lion or adafactor"),
    "base_lr": Option(0.03, "learning rate at the end of the warm-up"),
    "decay_type": Option("cosine", "cosine, linear, rsqrt or constant"),
    "warmup_steps": Option(500, "steps of linear warm-up"),
    "linear_end": Option(1e-5, "learning rate at the end of a linear decay"),
    "momentum": Option(0.9, "of sgd"),
    "beta1": Option(0.9, "first moment's decay, of adam, adamw, lion and adafactor"),
    "beta2": Option(0.999, "second moment's decay, of adam, adamw and lion"),
    "weight_decay": Option(0.0, "decoupled, times the learning rate; biases and norms are spared"),
    "grad_norm_clip": Option(1.0, "largest norm of the whole gradient; 0 is no limit"),
    "optim_dtype": Option("bfloat16", "dtype the optimizer keeps its momentum in"),
    "layer_decay": Option(1.0, "learning rate factor from each layer to the one below it"),
    "trainable": Option(".*", "regular expression: only parameters it finds learn ('head': probe)"),
    "loss": Option("softmax", "softmax (one class) or sigmoid (several)"),
    "label_smoothing": Option(0.0, "share of the target spread over all classes"),
    "mixup": Option(0.0, "Beta parameter of MixUp; 0 is off"),
    "cutmix": Option(0.0, "Beta parameter of CutMix; 0 is off"),
    "ema_decay": Option(0.0, "decay of the averaged weights, evaluated and saved beside; 0 is off"),
}
RUN = {
    "progress_every": Option(10, "steps between progress lines"),
    "eval_every": Option(100, "steps between evaluations; one follows the last step anyway"),
    "checkpoint_every": Option(1_000, "steps between checkpoints; the last step has one anyway"),
    "keep_checkpoints": Option(2, "newest checkpoints to keep, besides the best"),
    "best_metric": Option("accuracy", "the evaluation metric that decides which is best"),
    "profile_steps": Option((0, 0), "first and last step to profile into the workdir; 0 is off"),
    "wandb_project": Option("", "also log to this Weights & Biases project, if wandb is installed"),
    "compilation_cache": Option("auto", "directory for compiled programs; '' is off"),
}
PARALLEL = {
    "parallel.strategy": Option(
        "auto", "jit (one device), pmap (a copy on each), fsdp (state spread over all), or auto"
    ),
    "parallel.tensor": Option(
        1, "fsdp: devices that share the heads and the MLP of each layer, for great widths"
    ),
}

OPTIONS: dict[str, Option] = {**DATA, **TRAINING, **RUN, **PARALLEL}

# The reference's presets for fine-tuning (its section "common"), and what other data sets get.
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

# Which data set, and how its labels are meant: what a checkpoint says of the data it was trained
# on.
DATA_SET = ("dataset", "tfds_data_dir", "tfds_manual_dir", "image_key", "label_key")
DATA_SET += ("test_fraction", "pp.train", "pp.test", "loss")


def default_config() -> ml_collections.ConfigDict:
    """All options at their defaults; a dotted name is a nested field."""
    config = ml_collections.ConfigDict()
    for name, option in OPTIONS.items():
        *groups, leaf = name.split(".")
        node = config
        for group in groups:
            if group not in node:
                node[group] = ml_collections.ConfigDict()
            node = node[group]
        kind = option.kind or type(option.default)
        node[leaf] = ml_collections.FieldReference(option.default, field_type=kind)
    return config


def fine_tuning(dataset: str) -> ml_collections.ConfigDict:
    """The reference's fine-tuning recipe for any data set: a tfds name, a folder, a CSV."""
    config = default_config()
    config.dataset = dataset
    config.pp.crop = 384
    config.batch = 512
    config.accum_steps = 8
    for name, value in DATASETS.get(dataset, OTHER_DATASETS).items():
        config.update_from_flattened_dict({name: value})
    return config


def data_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The options of DATA_SET, with paths that mean the same in another directory."""
    flat = {name: _nested(config, name) for name in DATA_SET}
    for name in ("dataset", "tfds_data_dir", "tfds_manual_dir"):
        path = Path(flat[name]).expanduser()
        if flat[name] not in ("", "digits") and path.exists():
            flat[name] = str(path.absolute())
    return flat


def _nested(config: ml_collections.ConfigDict, name: str) -> Any:
    for part in name.split("."):
        config = config[part]
    return config


def describe_options() -> str:
    """Every option with its default and meaning, for --help."""
    lines = ["", "Options, each settable as --config.NAME=VALUE:", ""]
    tables = {"data": DATA, "training": TRAINING, "the run": RUN, "devices": PARALLEL}
    for title, table in tables.items():
        lines.append(f"  {title}")
        for name, option in table.items():
            lines.append(f"    {name:<30} {option.meaning} [{option.default!r}]")
    lines.append("    model.*                        every field of the model: see models/vit.py")
    return "\n".join([*lines, ""])
