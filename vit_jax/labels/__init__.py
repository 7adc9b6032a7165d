"""Class names: those of ImageNet-1k and -21k, in the order of the official heads, and label files.

Each line of the tables is a WordNet synset and its name: the synset's first word, with as many more
as it takes to tell it from other classes, or the synset itself if words do not suffice. The order
is that of timm 1.0.30.
"""

import difflib
import functools
import gzip
import os
from collections.abc import Sequence

from etils import epath

from vit_jax.untrusted import MAX_BYTES, as_path, read_file

_TABLES = {1_000: "imagenet_1k.txt", 21_843: "imagenet_21k.txt.gz"}


@functools.cache
def imagenet(num_classes: int) -> tuple[list[str], list[str]] | None:
    """Names and synsets of the ImageNet with this many classes, or None."""
    if num_classes not in _TABLES:
        return None
    data = epath.resource_path("vit_jax.labels").joinpath(_TABLES[num_classes]).read_bytes()
    if _TABLES[num_classes].endswith(".gz"):
        data = gzip.decompress(data)
    rows = [line.split(" ", 1) for line in data.decode().splitlines()]
    return [name for _, name in rows], [synset for synset, _ in rows]


def read(labels: epath.PathLike | Sequence[str], num_classes: int) -> list[str]:
    """Class names from a file with one per line, or from a list; there must be `num_classes`."""
    where = "labels"
    if isinstance(labels, str | os.PathLike):
        where = str(labels)
        try:
            text = read_file(as_path(labels), MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                raise ValueError(f"{where} is longer than the {MAX_BYTES >> 20} MiB that we read.")
            labels = text.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as e:
            raise ValueError(f"{where} is not a text file in UTF-8, one class name a line.") from e
        except OSError as e:
            raise ValueError(f"The label file {where} cannot be read: {e.strerror}.") from e
    names = [str(name).strip() for name in labels]
    if len(names) != num_classes:
        raise ValueError(
            f"{where} has {len(names)} names, but the model has {num_classes} classes; "
            "line i names class i, counted from 0."
        )
    return names


def find_class(wanted: str, class_names: Sequence[str]) -> int:
    """The index of a class given by its name, one of its synonyms, or its number."""
    if not class_names:
        raise ValueError(f"There is no class {wanted!r}: the model has no head and so no classes.")
    names = {
        name.strip().lower(): index
        for index, full in reversed(list(enumerate(class_names)))
        for name in (*full.split(","), full)  # ImageNet's names have synonyms
    }
    known = {str(index): index for index in range(len(class_names))} | names
    key = wanted.strip().lower()
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
    number = f"Give a name, or a number from 0 to {len(class_names) - 1}."
    hint = f"Did you mean {' or '.join(near)}?" if near else number
    raise ValueError(f"The checkpoint has no class {wanted!r}. {hint}")
