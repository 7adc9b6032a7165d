"""Converts a prepared tfds data set from tfrecord to array_record, without TensorFlow.

    python -m vit_jax.data.convert_tfrecord DATA_DIR/NAME/VERSION NEW_DATA_DIR

The records are copied as they are; only the container and the description change.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import grain
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath

from vit_jax.atomic import replacing
from vit_jax.cli.command import Command
from vit_jax.cli.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="the directory that has dataset_info.json")
    parser.add_argument("data_dir", type=Path, help="a tfds data directory; made if needed")


def run(args: argparse.Namespace) -> None:
    target = convert(args.source, args.data_dir)
    print(f"{target}\nread it with --config.tfds_data_dir={args.data_dir}")


def convert(source: Path, data_dir: Path) -> Path:
    """Writes `data_dir/NAME/[CONFIG/]VERSION` and returns it; nothing half-done is left there."""
    info_path = source / "dataset_info.json"
    if not info_path.is_file():
        inside = sorted(str(path.parent) for path in source.glob("**/dataset_info.json"))
        hint = f"; did you mean {inside[0]}?" if inside else ""
        raise ValueError(f"{source} is not a prepared data set: it has no dataset_info.json{hint}")
    info = json.loads(info_path.read_text())
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise ValueError(f"{source} is in the format {info['fileFormat']} already")
    target = data_dir / info["name"] / info.get("configName", "") / info["version"]
    if target.exists():
        raise ValueError(f"{target} exists; remove it, or give another data directory")
    with replacing(target) as partial:
        partial.mkdir()
        _copy_records(tfds.builder_from_directory(source), partial)
        for path in source.iterdir():
            if path.is_file() and ".tfrecord" not in path.name and path != info_path:
                shutil.copy(path, partial)
        info["fileFormat"] = "array_record"
        (partial / info_path.name).write_text(json.dumps(info, indent=2))
    return target


def _copy_records(builder: tfds.core.DatasetBuilder, work: epath.Path) -> None:
    splits = builder.info.splits.values()
    with progress(builder.info.full_name, sum(split.num_examples for split in splits)) as advance:
        for split in splits:
            for path, expected in zip(split.filepaths, split.shard_lengths, strict=True):
                if not Path(path).is_file():
                    raise ValueError(f"{path} is missing")
                name = Path(path).name.replace(".tfrecord", ".array_record")
                writer, count = ArrayRecordWriter(str(work / name), "group_size:1"), 0
                try:
                    for record in grain.experimental.TFRecordIterDataset(str(path)):
                        writer.write(record)
                        count += 1
                        advance(1)
                except (ValueError, EOFError) as error:
                    raise ValueError(f"{path} is damaged or cut off") from error
                writer.close()
                if count != expected:
                    raise ValueError(f"{path} has {count} records; {expected} were expected")


main = Command("data.convert_tfrecord", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
