"""Class names: those of ImageNet-1k and -21k as the official heads count them, and label files.

A line of the tables is a WordNet synset and its name: the first of its words, with as many more as
tell it from another class, or the synset where no word does. Order as timm 1.0.30 lists it.
"""

import functools
import gzip
from collections.abc import Sequence

from etils import epath

_TABLES = {1_000: "imagenet_1k.txt", 21_843: "imagenet_21k.txt.gz"}


def imagenet(num_classes: int) -> tuple[list[str], list[str]] | None:
    """Names and synsets of the ImageNet whose head has so many classes, or None."""
    if num_classes not in _TABLES:
        return None
    rows = [line.split(" ", 1) for line in _lines(num_classes)]
    return [name for _, name in rows], [synset for synset, _ in rows]


def read(labels: epath.PathLike | Sequence[str], num_classes: int) -> list[str]:
    """Names from a file with one a line (or as they are): as many as the head has classes."""
    where = "labels"
    if not isinstance(labels, list | tuple):
        where = str(labels)
        try:
            labels = epath.Path(labels).expanduser().read_text().splitlines()
        except UnicodeDecodeError as e:
            raise ValueError(f"{where} is not a text file of class names, one a line.") from e
        except OSError as e:
            raise ValueError(f"The label file {where} cannot be read: {e.strerror}.") from e
    names = [str(name).strip() for name in labels]
    if len(names) != num_classes:
        raise ValueError(
            f"{where} has {len(names)} names and the model {num_classes} classes; "
            "line i names class i, counted from 0."
        )
    return names


@functools.cache
def _lines(num_classes: int) -> list[str]:
    data = epath.resource_path("vit_jax.labels").joinpath(_TABLES[num_classes]).read_bytes()
    if _TABLES[num_classes].endswith(".gz"):
        data = gzip.decompress(data)
    return data.decode().splitlines()
