"""Images named on a command line: finding them, and reading them in parallel."""

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

from vit_jax.data.folders import images_below

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
        path = Path(name).expanduser()
        if name == "-":
            yield from (line for line in map(str.strip, lines) if line)
        elif path.is_dir():
            found = sorted(str(image) for image in images_below(path))
            if not found:
                raise ValueError(f"There is no image in the folder {name}.")
            yield from found
        elif not path.exists() and glob.has_magic(name):
            matches = sorted(glob.iglob(str(path), recursive=True))  # noqa: PTH207 (absolute ones too)
            if not matches:
                raise ValueError(f"No file matches {name!r}.")
            yield from find_images(matches)
        else:
            yield str(path)


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
        return transform(Path(path).read_bytes())

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
