"""Reading and writing .npz archives: one array at a time, never a pickle, local or remote.

`Archive` knows every array's shape and dtype from the headers alone, so that a checkpoint can be
checked against a model before a single weight is read.
"""

import contextlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from etils import epath
from numpy.lib import format as npy

# The card is the zip file's comment, which np.load does not see: a member would become one more
# "array" of bytes in dict(np.load(…)), and break the reference's loader. A comment holds 65,535
# bytes; a longer card is a member after all.
CARD_MEMBER = "card.json"
_MAX_COMMENT = 65_535

# NumPy has no bfloat16 of its own: such arrays are stored as two raw bytes a number.
_BFLOAT16 = np.dtype("V2")


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype
    length: int  # bytes before the data


class Archive:
    """An open .npz file: `shapes` of all arrays, and `read` for one of them. Use `open_archive`."""

    def __init__(self, file: zipfile.ZipFile, raw: IO[bytes], path: epath.Path):
        self._file = file
        self._raw = raw
        self._path = path
        self._members = {
            info.filename.removesuffix(".npy"): info
            for info in file.infolist()
            if info.filename.endswith(".npy")
        }
        if not self._members:
            raise ValueError(
                f"{path} is a zip file without any arrays in it, not an .npz checkpoint."
            )
        self._headers = {name: self._header(name) for name in self._members}
        self.shapes = {
            name: jax.ShapeDtypeStruct(
                header.shape, ml_dtypes.bfloat16 if header.dtype == _BFLOAT16 else header.dtype
            )
            for name, header in self._headers.items()
        }

    @property
    def card(self) -> str | None:
        """The JSON text that `write_archive` was given as the card, or None."""
        if CARD_MEMBER in self._file.namelist():
            with self._explained(CARD_MEMBER):
                return self._file.read(CARD_MEMBER).decode()
        comment = self._file.comment
        return comment.decode(errors="replace") if comment.startswith(b"{") else None

    def read(self, name: str) -> np.ndarray:
        """One array; its checksum is verified."""
        info = self._members[name]
        with self._explained(name):
            if info.compress_type == zipfile.ZIP_STORED:
                array = self._read_stored(name)
            else:
                with self._file.open(info) as stream:
                    array = npy.read_array(stream, allow_pickle=False)
                    stream.read(1)  # reaches the end, where zipfile compares the checksum
        return array.view(ml_dtypes.bfloat16) if array.dtype == _BFLOAT16 else array

    def _read_stored(self, name: str) -> np.ndarray:
        """Straight into the array's own memory: half the time of zipfile's many small copies."""
        info = self._members[name]
        self._raw.seek(info.header_offset)
        local_header = self._raw.read(30)
        name_length, extra_length = struct.unpack("<HH", local_header[26:30])
        self._raw.seek(name_length + extra_length, os.SEEK_CUR)
        stored = np.empty(info.file_size, np.uint8)
        if self._raw.readinto(stored) != info.file_size or zlib.crc32(stored) != info.CRC:
            raise zipfile.BadZipFile("bad checksum")
        header = self._headers[name]
        array = stored[header.length :].view(header.dtype)
        return array.reshape(header.shape, order="F" if header.fortran_order else "C")

    def _header(self, name: str) -> "_Header":
        with self._explained(name), self._file.open(self._members[name]) as stream:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            header = _Header(*read(stream), length=stream.tell())
        if header.dtype.hasobject:
            raise ValueError(
                f"{self._path} holds pickled Python objects in {name!r}. Unpickling can run any "
                "code, so it is refused; save the file again with plain numeric arrays."
            )
        return header

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            ValueError,
            NotImplementedError,
        ) as e:
            raise ValueError(
                f"{self._path} is damaged: its array {name!r} cannot be read ({e}). Download or "
                "copy the file again."
            ) from e


@contextlib.contextmanager
def open_archive(path: epath.PathLike) -> Iterator[Archive]:
    """Opens an .npz for reading; anything that is not one gets a message that says what it is."""
    path = epath.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    with path.open("rb") as raw:
        try:
            file = zipfile.ZipFile(raw)
        except zipfile.BadZipFile as e:
            size = path.stat().length
            raise ValueError(
                f"{path} ({size:,} bytes) is not a readable .npz checkpoint: "
                + ("it is empty." if not size else f"{e}; it may be cut short or another format.")
            ) from e
        with file:
            yield Archive(file, raw, path)


def write_archive(
    path: epath.PathLike,
    arrays: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    card: str | None = None,
) -> None:
    """Writes arrays one by one to a temporary file, then moves it into place: all or nothing."""
    pairs = arrays.items() if isinstance(arrays, Mapping) else arrays
    path = epath.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        with partial.open("wb") as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
            for name, array in pairs:
                with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    _write_array(stream, np.asarray(array))
            if card is not None:
                if len(text := card.encode()) <= _MAX_COMMENT:
                    file.comment = text
                else:
                    file.writestr(CARD_MEMBER, text)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_array(stream: IO[bytes], array: np.ndarray) -> None:
    """As `npy.write_array`, without its copy of every byte for streams that are not plain files."""
    if not array.flags.c_contiguous or array.dtype.kind not in "fiu" or not array.size:
        npy.write_array(stream, array, allow_pickle=False)
        return
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array))
    stream.write(array.reshape(-1).view(np.uint8).data)
