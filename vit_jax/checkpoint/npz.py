"""Reading and writing .npz archives: one array at a time, never a pickle, local or remote.

`Archive` knows every array's shape and dtype from the headers alone, so that a checkpoint can be
compared with a model before any weight is read.
"""

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, NamedTuple

import jax
import ml_dtypes
import numpy as np
from etils import epath
from jax.typing import ArrayLike
from numpy.lib import format as npy

from vit_jax.atomic import is_remote, replacing
from vit_jax.checkpoint.lazy import Index, Lazy

# The card is the zip file's comment, which np.load ignores: a member would be one more "array" of
# bytes in dict(np.load(…)) and break the reference's loader. A comment holds 65,535 bytes; a longer
# card is a member after all.
CARD_MEMBER = "card.json"
_MAX_COMMENT = 65_535

# NumPy has no bfloat16: such arrays are stored as two raw bytes per number.
_BFLOAT16 = np.dtype("V2")


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype
    length: int  # bytes before the data


class Archive:
    """An open .npz file: the `shapes` of all arrays, and `read` for one. Use `open_archive`."""

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

    def lazy(self, name: str) -> Lazy:
        shape = self.shapes[name]
        return Lazy(shape.shape, np.dtype(shape.dtype), lambda index: self.read(name, index))

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """One array, whose checksum is verified; or a part of it, which has no checksum.

        In a local file, if the array is not compressed, only that part is read.
        """
        info = self._members[name]
        stored = info.compress_type == zipfile.ZIP_STORED
        with self._explained(name):
            if index and stored and not is_remote(self._path):
                array = np.array(self._mapped(name)[index])
            elif index:
                return self.read(name)[index]
            elif stored:
                array = self._read_stored(name)
            else:
                with self._file.open(info) as stream:
                    array = npy.read_array(stream, allow_pickle=False)
                    stream.read(1)  # reaches the end, where zipfile compares the checksum
        return array.view(ml_dtypes.bfloat16) if array.dtype == _BFLOAT16 else array

    def _read_stored(self, name: str) -> np.ndarray:
        """Straight into the array's own memory: half the time of zipfile's many small copies."""
        info = self._members[name]
        self._raw.seek(self._start(info))
        stored = np.empty(info.file_size, np.uint8)
        num_read = self._raw.readinto(stored.data)  # pyright: ignore[reportAttributeAccessIssue] IO lacks it
        if num_read != info.file_size or zlib.crc32(stored.data) != info.CRC:
            raise zipfile.BadZipFile("bad checksum")
        header = self._headers[name]
        array = stored[header.length :].view(header.dtype)
        return array.reshape(header.shape, order="F" if header.fortran_order else "C")

    def _mapped(self, name: str) -> np.ndarray:
        """The array as a memory map, of which only the parts that are used are read."""
        header, start = self._headers[name], self._start(self._members[name])
        order = "F" if header.fortran_order else "C"
        offset = start + header.length
        return np.memmap(self._path, header.dtype, "r", offset, header.shape, order)

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where a member's bytes begin: after its own header, whose length varies."""
        self._raw.seek(info.header_offset)
        name_length, extra_length = struct.unpack("<HH", self._raw.read(30)[26:30])
        return info.header_offset + 30 + name_length + extra_length

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
    """Opens an .npz for reading; an error says what is wrong with any other file."""
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
    arrays: Mapping[str, ArrayLike] | Iterable[tuple[str, ArrayLike]],
    *,
    card: str | None = None,
) -> None:
    """Writes arrays one by one, all or nothing."""
    pairs = arrays.items() if isinstance(arrays, Mapping) else arrays
    with (
        replacing(path) as partial,
        partial.open("wb") as raw,
        zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file,
    ):
        for name, array in pairs:
            with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                _write_array(stream, np.asarray(array))
        if card is not None:
            if len(text := card.encode()) <= _MAX_COMMENT:
                file.comment = text
            else:
                file.writestr(CARD_MEMBER, text)


def _write_array(stream: IO[bytes], array: np.ndarray) -> None:
    """As `npy.write_array`, without its copy of every byte for streams that are not plain files."""
    if not array.flags.c_contiguous or array.dtype.kind not in "fiu" or not array.size:
        npy.write_array(stream, array, allow_pickle=False)
        return
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array))
    stream.write(array.reshape(-1).view(np.uint8).data)
