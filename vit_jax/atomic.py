"""Writing all or nothing: a file or directory appears under its name when complete, or not at all.

    with replacing(path) as partial:
        partial.write_text(…)

It is written beside its place under a hidden name, then renamed. Paths may be local, or any that
`epath` knows (gs://, s3://).
"""

import contextlib
import os
import shutil
from collections.abc import Iterator

from etils import epath


@contextlib.contextmanager
def replacing(path: epath.PathLike) -> Iterator[epath.Path]:
    """A name to write a file or directory to; it becomes `path` unless something is raised.

    An existing file is replaced. An existing directory is not: there must be none of that name.
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
    """Whether a path is on gs://, s3:// or the like rather than in this machine's file system."""
    return "://" in str(path)


def remove(path: epath.Path) -> None:
    """Removes a file or a directory if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
