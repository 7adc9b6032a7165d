"""Writing all or nothing: what is written appears under its name when it is whole, or not at all.

    with replacing(path) as partial:
        partial.write_text(…)

A file or a directory is made beside its place under a hidden name, then renamed. Local paths and
those that `epath` knows (gs://, s3://).
"""

import contextlib
import os
import shutil
from collections.abc import Iterator

from etils import epath


@contextlib.contextmanager
def replacing(path: epath.PathLike) -> Iterator[epath.Path]:
    """A name to write a file or directory to; it becomes `path` if nothing is raised.

    A file takes the place of the one that is there. A directory does not: its place must be free.
    """
    path = epath.Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.stem}.{os.getpid()}.partial{path.suffix}"
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        remove(partial)
        raise


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is on gs://, s3:// or the like, and not of this machine's file system."""
    return "://" in str(path)


def remove(path: epath.Path) -> None:
    """Removes a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
