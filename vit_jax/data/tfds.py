"""tensorflow-datasets, read and where possible prepared without TensorFlow.

Only array_record allows random access, so that is the one format; `convert_tfrecord` makes it from
the other. Images stay encoded here: they are decoded once, later, by our own decoder.
"""

import dataclasses
import difflib
import logging
import threading
import urllib.error
import urllib.request
from typing import Any, cast

import ml_collections
import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data.sources import Example, Source, class_ids
from vit_jax.untrusted import as_path

_REACH_SECONDS = 8
_TENSORFLOW = ("tensorflow", "tensorflow_io", "tensorflow_text")


@dataclasses.dataclass(frozen=True)
class TfdsSource(Source):
    """Its rows are indices into the records."""

    records: Any  # tfds data source: raw records, random access
    image_key: str
    label_key: str
    ids: tuple[int, ...]  # the data set's class id -> ours

    def __getitem__(self, index: int) -> Example:
        record, path = self.records[self.rows[index]], self.path(index)
        label = record[self.label_key]
        if self.multi_label:
            return Example(record[self.image_key], tuple(self.ids[int(i)] for i in label), path)
        if label < 0:
            raise ValueError(f"{path} has no label; split '{self.split}' is unlabelled")
        return Example(record[self.image_key], self.ids[int(label)], path)

    def path(self, index: int) -> str:
        return f"{self.name} {self.split}[{self.rows[index]}]"


def open_split(
    config: ml_collections.ConfigDict, split: str, class_names: tuple[str, ...] | None
) -> TfdsSource:
    """A prepared data set, or one that can be prepared here and now without TensorFlow."""
    builder = _prepared_builder(config)
    image_key, label_key = _keys(builder, config)
    names, multi_label = _classes(builder, label_key)
    ids = class_ids(names, class_names, config.dataset)
    raw = dict.fromkeys(_images(builder), tfds.decode.SkipDecoding())
    records: Any = ()
    try:
        records = cast(Any, builder).as_data_source(split=split, decoders=raw)
        rows = range(len(records))
    except (ValueError, AssertionError, KeyError) as error:
        if "__len__() should return >= 0" not in str(error):
            raise ValueError(f"split '{split}' of {config.dataset}: {error}") from error
        rows = range(0)
    if not rows:
        sizes = ", ".join(f"{name} ({len(rows)})" for name, rows in list_splits(config).items())
        raise ValueError(f"split '{split}' of {config.dataset} has no examples; there are {sizes}")
    return TfdsSource(
        name=config.dataset,
        split=split,
        class_names=class_names or names,
        multi_label=multi_label,
        rows=rows,
        records=records,
        image_key=image_key,
        label_key=label_key,
        ids=tuple(ids[name] for name in names),
    )


def list_splits(config: ml_collections.ConfigDict) -> dict[str, range]:
    splits = _prepared_builder(config).info.splits
    return {name: range(info.num_examples) for name, info in splits.items()}


def declared_classes(config: ml_collections.ConfigDict) -> tuple[tuple[str, ...], bool]:
    """Class names, and whether an image may have several; the data set need not be prepared."""
    builder = _builder(config)
    return _classes(builder, _keys(builder, config)[1])


def _classes(builder: tfds.core.DatasetBuilder, key: str) -> tuple[tuple[str, ...], bool]:
    label = cast(Any, builder.info.features)[key]
    multi_label = not isinstance(label, tfds.features.ClassLabel)
    return tuple((label.feature if multi_label else label).names), multi_label


def _prepared_builder(config: ml_collections.ConfigDict) -> tfds.core.DatasetBuilder:
    builder = _builder(config)
    if builder.is_prepared():
        return builder
    _check_it_can_be_fetched(builder, config)
    logging.info("preparing %s in %s, once", config.dataset, builder.data_dir)
    options = {"manual_dir": config.tfds_manual_dir} if config.tfds_manual_dir else {}
    try:
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(**options))
    except ImportError as error:
        if error.name not in _TENSORFLOW:
            raise
        raise ValueError(_tensorflow_message(config)) from error
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        raise ValueError(f"{config.dataset} could not be prepared: {error}") from error
    return builder


def _builder(config: ml_collections.ConfigDict) -> tfds.core.DatasetBuilder:
    name = config.dataset
    data_dir = as_path(config.tfds_data_dir) if config.tfds_data_dir else None
    folder = as_path(name)
    try:
        if (folder / "dataset_info.json").is_file():
            builder = tfds.builder_from_directory(folder)
        else:
            builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        close = difflib.get_close_matches(name.split("/")[0].split(":")[0], known)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(
            f"'{name}' is neither a folder here nor a tensorflow-datasets name "
            f"(looked in {data_dir or '~/tensorflow_datasets'} too).{hint}"
        ) from error
    except (ValueError, AssertionError, ImportError) as error:
        if isinstance(error, ImportError) and error.name in _TENSORFLOW:
            raise ValueError(_tensorflow_message(config)) from error
        if "does not match the file formats" not in str(error):
            raise ValueError(f"tensorflow-datasets cannot open '{name}': {error}") from error
        builder = tfds.builder(name, data_dir=data_dir)  # in the format that it has
    if builder.info.file_format is tfds.core.FileFormat.TFRECORD:
        raise ValueError(
            f"{name} is prepared as tfrecord in {builder.data_dir}, which allows no random access; "
            f"run `python -m vit_jax.data.convert_tfrecord {builder.data_dir} NEW_DATA_DIR` "
            "and set config.tfds_data_dir to NEW_DATA_DIR"
        )
    return builder


def _tensorflow_message(config: ml_collections.ConfigDict) -> str:
    options = [f"--data_dir={config.tfds_data_dir}"] if config.tfds_data_dir else []
    options += [f"--manual_dir={config.tfds_manual_dir}"] if config.tfds_manual_dir else []
    command = " ".join(["tfds build", config.dataset, "--file_format=array_record", *options])
    return (
        f"{config.dataset} is not prepared, which takes TensorFlow (reading it does not); do it "
        f"once, in any environment: `pip install 'vit_jax[prepare]'`, then `{command}`"
    )


def _check_it_can_be_fetched(
    builder: tfds.core.DatasetBuilder, config: ml_collections.ConfigDict
) -> None:
    """Raises within seconds what tfds would find out after minutes of retries."""
    where = f"{config.dataset} is not prepared in {epath.Path(builder.data_dir).parent}"
    data_dir = epath.Path(config.tfds_data_dir or "~/tensorflow_datasets")
    manual = epath.Path(config.tfds_manual_dir or data_dir / "downloads" / "manual").expanduser()
    instructions = builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    if instructions and not manual.is_dir():
        raise ValueError(
            f"{where}, and its files are downloaded by hand: {' '.join(instructions.split())} "
            f"There is no folder {manual}; set config.tfds_manual_dir to theirs."
        )
    urls = list(builder.url_infos or ())
    if not instructions and urls and not _reachable(urls[0]):
        raise ValueError(
            f"{where}, and {urls[0]} cannot be reached from here; prepare it where there is a "
            f"network with `tfds build {config.dataset} --file_format=array_record`, "
            "and set config.tfds_data_dir"
        )


def _reachable(url: str) -> bool:
    """Whether any answer comes back within `_REACH_SECONDS`, even if the name lookup hangs."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()
            answers.append(True)
        except urllib.error.HTTPError:
            answers.append(True)  # it refuses the request, but it is there
        except OSError:
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_REACH_SECONDS)
    return bool(answers)


def _keys(builder: tfds.core.DatasetBuilder, config: ml_collections.ConfigDict) -> tuple[str, str]:
    """The features with the image and the class: as configured, as tfds declares, or as found."""
    features: Any = builder.info.features
    supervised: Any = builder.info.supervised_keys or ()

    def find(option: str, kind: str, candidates: list[str]) -> str:
        wanted = config[option]
        for key in [wanted] if wanted else [*supervised, *candidates]:
            if key in candidates:
                return key
        given = f"config.{option}={wanted} is not" if wanted else "it has none that is"
        raise ValueError(
            f"{config.dataset}: {given} a feature with one {kind}; its features are "
            f"{', '.join(features)} ({kind}s: {', '.join(candidates) or 'none'})"
        )

    inner = {key: getattr(feature, "feature", feature) for key, feature in features.items()}
    labels = [key for key, one in inner.items() if isinstance(one, tfds.features.ClassLabel)]
    return find("image_key", "image", _images(builder)), find("label_key", "class label", labels)


def _images(builder: tfds.core.DatasetBuilder) -> list[str]:
    features: Any = builder.info.features
    return [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
