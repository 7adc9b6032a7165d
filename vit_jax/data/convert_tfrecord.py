"""Converts a prepared tfds data set from tfrecord to array_record, without TensorFlow:

    python -m vit_jax.data.convert_tfrecord DATA_DIR/NAME/VERSION NEW_DATA_DIR

The records are copied as they are; only the container and the description change.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import grain
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from rich.progress import Progress


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vit_jax.data.convert_tfrecord")
    parser.add_argument("source", type=Path, help="the directory that has dataset_info.json")
    parser.add_argument("data_dir", type=Path, help="a tfds data directory, made if need be")
    options = parser.parse_args(arguments)
    try:
        target = convert(options.source, options.data_dir)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{target}\nread it with --config.tfds_data_dir={options.data_dir}")


def convert(source: Path, data_dir: Path) -> Path:
    """Writes `data_dir/NAME/[CONFIG/]VERSION` and returns it; nothing half-done is left there."""
    info_path = source / "dataset_info.json"
    if not info_path.is_file():
        inside = sorted(str(path.parent) for path in source.glob("**/dataset_info.json"))
        hint = f"; did you mean {inside[0]}?" if inside else ""
        raise ValueError(f"{source} has no dataset_info.json, so it is no prepared data set{hint}")
    info = json.loads(info_path.read_text())
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise ValueError(f"{source} is in the format {info['fileFormat']} already")
    target = data_dir / info["name"] / info.get("configName", "") / info["version"]
    if target.exists():
        raise ValueError(f"{target} exists; remove it, or give another data directory")
    work = target.with_name(f"{target.name}.incomplete")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _copy_records(tfds.builder_from_directory(source), work)
    for path in source.iterdir():
        if path.is_file() and ".tfrecord" not in path.name and path != info_path:
            shutil.copy(path, work)
    info["fileFormat"] = "array_record"
    (work / info_path.name).write_text(json.dumps(info, indent=2))
    work.rename(target)
    return target


def _copy_records(builder: tfds.core.DatasetBuilder, work: Path) -> None:
    total = sum(split.num_examples for split in builder.info.splits.values())
    with Progress() as progress:
        task = progress.add_task(f"{builder.info.full_name}, {total:,} records", total=total)
        for split in builder.info.splits.values():
            for path, expected in zip(split.filepaths, split.shard_lengths, strict=True):
                name = Path(path).name.replace(".tfrecord", ".array_record")
                count = 0
                writer = ArrayRecordWriter(str(work / name), "group_size:1")
                for record in _records(Path(path)):
                    writer.write(record)
                    count += 1
                    progress.advance(task)
                writer.close()
                if count != expected:
                    raise ValueError(f"{path} has {count} records; {expected} were expected")


def _records(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        yield from grain.experimental.TFRecordIterDataset(str(path))
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged or cut off") from error


if __name__ == "__main__":
    main()
