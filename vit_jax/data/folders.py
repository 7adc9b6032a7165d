"""Images in folders, or listed in a table: `train/cat/1.jpg`, `cat/1.jpg`, or rows of path,label.

Only directories and the table are opened here. What format an image has is seen when it is read.
"""

import csv
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_collections

from vit_jax.data.sources import Example, class_ids
from vit_jax.data.splits import base_names, hold_out, in_hash_order, select

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")

_SPLIT_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}


class Entry(NamedTuple):
    path: str  # relative to the data set's root
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FileSource:
    name: str
    split: str
    class_names: tuple[str, ...]
    multi_label: bool
    root: Path
    paths: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Example:
        path = self.root / self.paths[index]
        labels = self.labels[index]
        return Example(path.read_bytes(), labels if self.multi_label else labels[0], str(path))

    def path(self, index: int) -> str:
        return str(self.root / self.paths[index])


def open_files(
    config: ml_collections.ConfigDict, split: str, class_names: tuple[str, ...] | None
) -> FileSource:
    """A split of a folder or table; without `class_names` they come from the training split."""
    root = Path(config.dataset).expanduser()
    splits = list_splits(config)
    if class_names is None:
        class_names = _class_names(_training_entries(config, splits))
    entries = select(split, splits, config.dataset)
    present = sorted({label for entry in entries for label in entry.labels})
    ids = class_ids(present, class_names, f"split '{split}' of {config.dataset}")
    multi_label = any(len(e.labels) != 1 for members in splits.values() for e in members)
    return FileSource(
        name=config.dataset,
        split=split,
        class_names=class_names,
        multi_label=multi_label,
        root=root.parent if root.is_file() else root,
        paths=tuple(entry.path for entry in entries),
        labels=tuple(tuple(ids[label] for label in entry.labels) for entry in entries),
    )


def list_splits(config: ml_collections.ConfigDict) -> dict[str, list[Entry]]:
    """Every split by name, its entries in an order that depends on their paths alone."""
    root = Path(config.dataset).expanduser()
    if root.suffix.lower() in (".csv", ".tsv"):
        splits = _read_table(root)
    else:
        splits = _list_folder(root, base_names(config.pp.train))
    if set(splits) == {""}:  # no splits of its own
        multi_label = any(len(entry.labels) != 1 for entry in splits[""])
        return hold_out(
            splits[""],
            config.test_fraction,
            key=lambda entry: entry.path,
            stratum=lambda entry: None if multi_label else entry.labels,
        )
    return {
        name: in_hash_order(entries, key=lambda entry: entry.path)
        for name, entries in splits.items()
    }


def _training_entries(
    config: ml_collections.ConfigDict, splits: Mapping[str, Sequence[Entry]]
) -> list[Entry]:
    """All of the splits that training draws from: `train[:1%]` still has every class."""
    return select("+".join(base_names(config.pp.train)), splits, config.dataset)


def _class_names(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Sorted, and by value where all are whole numbers, so that class '10' comes after '9'."""
    names = {label for entry in entries for label in entry.labels}
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _list_folder(root: Path, training: Sequence[str]) -> dict[str, list[Entry]]:
    """Entries of each split; a folder of classes alone comes back as the one split ''."""
    if any(_holds_splits(root / name) for name in training):
        tops = {child.name: child for child in _visible_folders(root)}
    else:
        tops = {"": root}
    splits = {
        name: _list_classes(root, top, all_needed=name in ("", *training))
        for name, top in tops.items()
    }
    splits = {name: entries for name, entries in splits.items() if entries}
    classes = {entry.labels[0].lower() for entries in splits.values() for entry in entries}
    if classes <= _SPLIT_NAMES:  # images right below train: no classes at all
        raise ValueError(
            f"{root} has no images in class folders; it needs train/CLASS/*.jpg and "
            f"test/CLASS/*.jpg, or CLASS/*.jpg, with files that end in {', '.join(SUFFIXES)}"
        )
    return splits


def _holds_splits(folder: Path) -> bool:
    """Whether `train` is a split (holds class folders), or a class with images of trains."""
    if not folder.is_dir():
        return False
    children = list(folder.iterdir())
    return any(c.is_dir() for c in children) and not any(_is_image(c.name) for c in children)


def _list_classes(root: Path, top: Path, all_needed: bool) -> list[Entry]:
    entries, empty = [], []
    for folder in _visible_folders(top):
        images = [str(p.relative_to(root)) for p in images_below(folder)]
        entries += [Entry(path, (folder.name,)) for path in sorted(images)]
        if not images:
            empty.append(folder.name)
    if entries and empty and all_needed:
        raise ValueError(f"{top} has class folders without images: {', '.join(empty)}")
    return entries


def _visible_folders(folder: Path) -> list[Path]:
    children = (child for child in folder.iterdir() if not child.name.startswith("."))
    return sorted(child for child in children if child.is_dir())


def images_below(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Images at any depth, through symbolic links; a link to a folder above ends there."""
    real = os.path.realpath(folder)
    if real in above:
        return
    for child in folder.iterdir():
        if child.name.startswith("."):
            continue
        if child.is_dir():
            yield from images_below(child, (*above, real))
        elif _is_image(child.name):
            yield child


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _read_table(path: Path) -> dict[str, list[Entry]]:
    """Rows of path,label and optionally split; labels separated by | make a multi-label set."""
    if not path.is_file():
        raise ValueError(f"there is no table at {path}")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = list(csv.reader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    numbered = [(number, row) for number, row in enumerate(rows, start=1) if any(row)]
    columns = ["path", "label"]
    if numbered and "path" in (cell.strip().lower() for cell in numbered[0][1]):
        columns = [cell.strip().lower() for cell in numbered.pop(0)[1]]
    if "label" not in columns:
        raise ValueError(f"{path} has columns {', '.join(columns)}; it needs path and label")
    short = [number for number, row in numbered if len(row) < len(columns)]
    if short:
        lines = ", ".join(map(str, short[:10]))
        raise ValueError(f"{path} needs {len(columns)} columns in every row; see lines {lines}")
    records = [(number, dict(zip(columns, row, strict=False))) for number, row in numbered]
    multi_label = any("|" in record["label"] for _, record in records)
    splits: dict[str, list[Entry]] = {}
    for number, record in records:
        labels = [label.strip() for label in record["label"].split("|")]
        labels = tuple(dict.fromkeys(label for label in labels if label))
        if not record["path"].strip() or (not labels and not multi_label):
            raise ValueError(f"{path} has an empty path or label in line {number}")
        entry = Entry(record["path"].strip(), labels)
        splits.setdefault(record.get("split", "").strip(), []).append(entry)
    if not splits:
        raise ValueError(f"{path} has no rows; it needs lines of path,label")
    return splits
