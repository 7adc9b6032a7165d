"""Checks that results can be written, made before hours of work and not after."""

import os
from pathlib import Path


def check_writable(path: str | os.PathLike[str] | None) -> None:
    """Raises if a file of this name could not be written."""
    if path is None:
        return
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a directory; give the name of a file to write.")
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: there is no directory {folder}.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"{path} cannot be written: no permission. Choose another place.")


def check_directory(out: Path) -> None:
    """Raises if a directory of this name could not be made or written into."""
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file; --out takes a directory.")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{out} cannot be written: no permission. Choose another place, --out.")
