"""Images named on a command line: finding them, and reading them in parallel.

Bad names are ValueErrors; what is wrong with a single file is told when it is read.
"""

import collections
import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from vit_jax.data.decode import read_image
from vit_jax.data.folders import images_below, walk
from vit_jax.data.sources import local_path

_BATCHES_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class FileBatch:
    """`images` has a row for each of `paths`, then zeros. `errors`, by path, are of other files."""

    images: np.ndarray  # b h w c
    paths: list[str]
    errors: dict[str, str]


def find_images(names: Iterable[str], lines: Iterable[str] = ()) -> Iterator[str]:
    """The paths that a list of files, folders and patterns stands for; `-` stands for `lines`.

    A folder gives the files below it that end like images; a file is taken as it is.
    """
    for name in names:
        path = local_path(name)
        if not name:
            raise ValueError("An empty name is given where a file or a folder is needed.")
        if name == "-":
            yield from filter(None, (line.rstrip("\r\n") for line in lines))
        elif glob.has_magic(name) and not os.path.lexists(path):
            matches = sorted(set(_matching(Path(path.anchor), path.relative_to(path.anchor).parts)))
            if not matches:
                raise ValueError(f"No file matches {name!r}.")
            for match in matches:
                yield from _images_at(match)
        else:
            yield from _images_at(path)


def _images_at(path: Path) -> list[str]:
    if not os.path.isdir(path):  # noqa: PTH112 (pathlib's raises for names that are too long)
        return [str(path)]
    if not (found := sorted(map(str, images_below(path)))):
        raise ValueError(f"There is no image in the folder {path}.")
    return found


def _matching(folder: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """As glob does, except that ** enters every folder once, so that links in a circle end."""
    if parts in ((), ("**",)):
        yield folder
    elif parts[:2] == ("**", "**"):
        yield from _matching(folder, parts[1:])
    elif parts[0] == "**":
        for below, _ in walk(folder) if folder.is_dir() else ():
            yield from _matching(below, parts[1:])
    else:
        for name in glob.iglob(parts[0], root_dir=folder):  # noqa: PTH207 (hides what is hidden)
            yield from _matching(folder / name, parts[1:])


def read_batches(
    paths: Iterable[str],
    transform: Callable[..., np.ndarray],
    shape: Sequence[int],
    batch_size: int,
) -> Iterator[FileBatch]:
    """Reads files through `transform`, as images of `shape` (h w c), ahead of the caller.

    A file that cannot be read ends up in its batch's `errors`.
    """
    cv2.setNumThreads(1)  # the pool's threads are enough
    paths = iter(paths)

    def read(path: str) -> np.ndarray:
        return transform(read_image(path))

    waiting: collections.deque[list[tuple[str, Future[np.ndarray]]]] = collections.deque()
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        while True:
            while len(waiting) <= _BATCHES_AHEAD:
                if not (chunk := list(itertools.islice(paths, batch_size))):
                    break
                waiting.append([(path, pool.submit(read, path)) for path in chunk])
            if not waiting:
                return
            yield _gather(waiting.popleft(), shape, batch_size)


def _gather(
    futures: Sequence[tuple[str, Future[np.ndarray]]], shape: Sequence[int], batch_size: int
) -> FileBatch:
    batch = FileBatch(np.zeros((batch_size, *shape), np.float32), [], {})
    for path, future in futures:
        try:
            batch.images[len(batch.paths)] = future.result()
            batch.paths.append(path)
        except OSError as error:
            batch.errors[path] = error.strerror or str(error)
        except ValueError as error:
            batch.errors[path] = str(error)
    return batch
