"""Images in folders, or listed in a table: `train/cat/1.jpg`, `cat/1.jpg`, or rows of path,label.

Only directories and the table are opened here. What format an image has, and whether it is a file
at all, is seen when it is read.
"""

import collections
import csv
import dataclasses
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_collections

from vit_jax.data.decode import read_image
from vit_jax.data.sources import Example, Source, class_ids, local_path
from vit_jax.data.splits import base_names, hold_out, in_hash_order, select

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")

_SPLIT_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}


class Entry(NamedTuple):
    path: str  # relative to the data set's root
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """Its rows are entries."""

    root: Path
    ids: Mapping[str, int]  # of the classes by name

    def __getitem__(self, index: int) -> Example:
        path = self.path(index)
        labels = tuple(self.ids[name] for name in self.rows[index].labels)
        return Example(read_image(path), labels if self.multi_label else labels[0], path)

    def path(self, index: int) -> str:
        return str(self.root / self.rows[index].path)


def open_split(
    config: ml_collections.ConfigDict, split: str, class_names: tuple[str, ...] | None
) -> FileSource:
    """A split of a folder or table; without `class_names` they come from the training split."""
    root = local_path(config.dataset)
    splits = list_splits(config)
    if class_names is None:  # from all that training draws from: `train[:1%]` still has every class
        training = select("+".join(base_names(config.pp.train)), splits, config.dataset)
        class_names = _class_names(training)
    entries = select(split, splits, config.dataset)
    present = sorted({label for entry in entries for label in entry.labels})
    return FileSource(
        name=config.dataset,
        split=split,
        class_names=class_names,
        multi_label=any(len(e.labels) != 1 for members in splits.values() for e in members),
        rows=entries,
        root=root.parent if root.is_file() else root,
        ids=class_ids(present, class_names, f"split '{split}' of {config.dataset}"),
    )


def list_splits(config: ml_collections.ConfigDict) -> dict[str, list[Entry]]:
    """Every split by name, its entries in an order that depends on their paths alone."""
    root = local_path(config.dataset)
    if root.suffix.lower() in (".csv", ".tsv"):
        splits = _read_table(root)
    else:
        splits = _list_folder(root, base_names(config.pp.train))
    by_path = operator.attrgetter("path")
    if set(splits) != {""}:
        return {name: in_hash_order(entries, by_path) for name, entries in splits.items()}
    multi_label = any(len(entry.labels) != 1 for entry in splits[""])  # and no splits of its own
    classes = (lambda _: None) if multi_label else operator.attrgetter("labels")
    return hold_out(splits[""], config.test_fraction, key=by_path, stratum=classes)


def _class_names(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Sorted, and by value where all are whole numbers, so that class '10' comes after '9'."""
    names = {label for entry in entries for label in entry.labels}
    numbers = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _list_folder(root: Path, training: Sequence[str]) -> dict[str, list[Entry]]:
    """Entries of each split; a folder of classes alone comes back as the one split ''."""
    if any(_holds_splits(root / name) for name in training):
        tops = {child.name: child for child in _visible_folders(root)}
    else:
        tops = {"": root}
    splits: dict[str, list[Entry]] = {}
    for split, top in tops.items():
        classes = {folder.name: [*images_below(folder)] for folder in _visible_folders(top)}
        empty = [name for name, images in classes.items() if not images]
        if len(empty) == len(classes):
            continue
        if empty and split in ("", *training):
            raise ValueError(f"{top} has class folders without images: {', '.join(empty)}")
        files = [(path, name) for name, images in classes.items() for path in images]
        splits[split] = [Entry(str(path.relative_to(root)), (name,)) for path, name in files]
    names = {entry.labels[0].lower() for entries in splits.values() for entry in entries}
    if names <= _SPLIT_NAMES:  # images right below train: no classes at all
        raise ValueError(
            f"{root} has no images in class folders; it needs train/CLASS/*.jpg and "
            f"test/CLASS/*.jpg, or CLASS/*.jpg, with files that end in {', '.join(SUFFIXES)}"
        )
    return splits


def _holds_splits(folder: Path) -> bool:
    """Whether `train` is a split (holds class folders), or a class with images of trains."""
    children = list(folder.iterdir()) if folder.is_dir() else []
    return any(c.is_dir() for c in children) and not any(_is_image(c.name) for c in children)


def _visible_folders(folder: Path) -> list[Path]:
    children = (child for child in folder.iterdir() if not child.name.startswith("."))
    return sorted(child for child in children if child.is_dir())


def images_below(folder: Path) -> Iterator[Path]:
    """Images at any depth, also through links to folders."""
    for below, files in walk(folder):
        yield from (below / name for name in files if _is_image(name))


def walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below it, each once, with the names of their files; no hidden ones.

    Links to folders are followed, after all else: a folder goes by its own name if it has one here.
    """
    waiting, seen = collections.deque([(folder, os.path.realpath(folder))]), set[str]()
    while waiting:
        folder, real = waiting.popleft()
        if real in seen:
            continue
        seen.add(real)
        files: list[str] = []
        with os.scandir(folder) as entries:
            visible = sorted((e for e in entries if not e.name.startswith(".")), key=os.fspath)
        for entry in visible:
            path = folder / entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.appendleft((path, os.path.join(real, entry.name)))  # noqa: PTH118 (fast)
            elif entry.is_symlink() and path.is_dir():
                waiting.append((path, os.path.realpath(path)))
            else:
                files.append(entry.name)
        yield folder, files


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _read_table(path: Path) -> dict[str, list[Entry]]:
    """Rows of path,label and optionally split; labels separated by | make a multi-label set."""
    if not path.is_file():
        raise ValueError(f"there is no table at {path}")
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
        reader = csv.reader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            rows = list(reader)
        except csv.Error as e:
            raise ValueError(f"{path} is not a table, see line {reader.line_num}: {e}") from e
    numbered = [(number, row) for number, row in enumerate(rows, start=1) if any(row)]
    columns = ["path", "label"]
    if numbered and "path" in (cell.strip().lower() for cell in numbered[0][1]):
        columns = [cell.strip().lower() for cell in numbered.pop(0)[1]]
    if "label" not in columns:
        raise ValueError(f"{path} has columns {', '.join(columns)}; it needs path and label")
    if short := [number for number, row in numbered if len(row) < len(columns)]:
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
