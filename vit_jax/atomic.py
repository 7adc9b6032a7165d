"""Writing all or nothing: a file or directory appears under its name when complete, or not at all.

    with replacing(path) as partial:
        partial.write_text(…)

It is written beside its place under a hidden name, then renamed. Paths may be local, or any that
`epath` knows (gs://, s3://). The hidden name says which process writes, so that what a killed one
left can be told from what another still writes.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from etils import epath

from vit_jax.untrusted import as_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BROKEN = (errno.EIO, errno.EROFS, errno.ENOTCONN, errno.ESTALE)
_A_DAY = 24 * 3600
_STEM = 40  # letters of a name that its hidden one keeps; a name has at most 255 bytes


@contextlib.contextmanager
def replacing(path: epath.PathLike) -> Iterator[epath.Path]:
    """A name to write a file or directory to; it becomes `path` unless something is raised.

    An existing file is replaced, a link stays and its target is replaced. Anything else of that
    name stays too, and is an error: a directory, a device (which root could replace), a FIFO.
    """
    path = as_path(path)
    if not is_remote(path):
        if Path(path).exists() and not Path(path).is_file():
            raise OSError(errno.EEXIST, "Exists, and is not a file to replace", str(path))
        path = epath.Path(os.path.realpath(path))
        if Path(path).is_symlink():  # after all links were followed
            raise OSError(errno.ELOOP, "A link that leads to itself", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent)
    partial = path.parent / f".{path.stem[:_STEM]}.{writer()}.partial{path.suffix}"
    remove(partial)
    try:
        with disk_errors(path):
            yield partial
            partial.replace(path)
    except BaseException:
        remove(partial)
        remove(partial.parent / f"{partial.name}.orbax-checkpoint-tmp")  # Orbax's own hidden name
        raise


@contextlib.contextmanager
def disk_errors(path: epath.PathLike, hint: str = "") -> Iterator[None]:
    """What is wrong with the disk becomes one OSError, about `path` if it names no file.

    TensorStore raises other exceptions, which quote the system in the middle of a page.
    """
    try:
        yield
    except Exception as raised:
        error: BaseException | None = raised
        while error is not None:
            for code in (*_FULL, *_BROKEN):
                if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
                    where = getattr(error, "filename", None) or str(path)
                    raise OSError(code, f"{os.strerror(code)}{hint}", where) from raised
            error = error.__cause__ or error.__context__
        raise


def writer() -> str:
    """This process, as part of a name: its number, and where no other process has that number."""
    spaces = Path("/proc/self/ns/pid")  # containers of one host may share its name
    space = spaces.stat().st_ino if spaces.exists() else 0
    host = re.sub(r"[^A-Za-z0-9]", "-", socket.gethostname())[:30]
    return f"{os.getpid()}@{host}-{space}"


def clear_leftovers(directory: epath.PathLike, pattern: str = ".*.partial*") -> None:
    """Removes what processes of this machine that are gone left half-written in a directory.

    What another machine writes there is left alone for a day after it was last changed.
    """
    ours = writer().partition("@")[2]
    for path in [] if is_remote(directory) else Path(directory).glob(pattern):
        if not (found := re.search(r"[.-](\d+)@([A-Za-z0-9-]+)\.", f"{path.name}.")):
            continue
        process, place = int(found[1]), found[2]
        with contextlib.suppress(OSError):  # another process was faster
            age = time.time() - path.lstat().st_mtime
            if age > _A_DAY if place != ours else not psutil.pid_exists(process):
                remove(epath.Path(path))


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is on gs://, s3:// or the like rather than in this machine's file system."""
    return "://" in str(path)


def remove(path: epath.Path) -> None:
    """Removes a file or a directory if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
