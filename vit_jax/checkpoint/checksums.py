"""Checksums of the files in a directory, kept in one file beside them.

CRC-32 finds every flipped byte and, but for one in 2³², any other accident; it is not against
forgery. Of what zlib and hashlib offer it is the fastest: see benchmarks/checksums.py.
"""

import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from vit_jax.atomic import is_remote
from vit_jax.untrusted import read_json

FILE = "checksums.json"
_BLOCK = 4 << 20
# Orbax writes these two after us, and reads neither.
_NOT_IN_IT = (FILE, "_CHECKPOINT_METADATA", "commit_success.txt")


def write(directory: epath.Path) -> None:
    """Reads all files in a directory and its directories, and writes their checksums."""
    names = [name for name in _file_names(directory) if name not in _NOT_IN_IT]
    with ThreadPoolExecutor() as pool:  # reading and zlib leave Python to other threads
        sums = pool.map(_checksum, (directory / name for name in names))
        text = json.dumps(dict(zip(names, sums, strict=True)), indent=1)
    (directory / FILE).write_text(text)
    for name in () if is_remote(directory) else (*names, FILE):
        with (directory / name).open("rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave some of them empty


def difference(directory: epath.Path, under: str = "") -> str | None:
    """What is not as it was when `write` was called, in a few words; None if all is.

    `under` is the start of the names to look at. Files that came later are no difference.
    """
    written = read_json(directory / FILE)
    expected = {name: value for name, value in written.items() if name.startswith(under)}
    present = set(_file_names(directory))  # not opened by names from outside
    if missing := sorted(expected.keys() - present):
        return f"{missing[0]} is missing"
    with ThreadPoolExecutor() as pool:
        sums = pool.map(_checksum, (directory / name for name in expected))
        for (name, value), found in zip(expected.items(), sums, strict=True):
            if value != found:
                return f"{name} is not what was saved"
    return None


def _checksum(file: epath.Path) -> str:
    """The size in bytes, and the CRC-32."""
    size = crc = 0
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return f"{size} {crc:08x}"


def _file_names(directory: epath.Path, parent: str = "") -> Iterator[str]:
    for child in directory.iterdir():
        if child.is_dir():
            yield from _file_names(child, f"{parent}{child.name}/")
        elif child.is_file():
            yield f"{parent}{child.name}"
