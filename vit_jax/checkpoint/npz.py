"""Reading and writing .npz archives: one array at a time, never a pickle, local or remote.

`Archive` knows every array's shape and dtype from the headers alone, so that a checkpoint can be
compared with a model before any weight is read.
"""

import contextlib
import functools
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Literal, NamedTuple

import ml_dtypes
import numpy as np
from etils import epath
from jax.typing import ArrayLike
from numpy.lib import format as npy

from vit_jax.atomic import is_remote, replacing
from vit_jax.checkpoint.lazy import Index, Lazy, check_claims, check_count
from vit_jax.untrusted import MAX_BYTES

# The card is the zip file's comment, which np.load ignores: a member would be one more "array" of
# bytes in dict(np.load(…)) and break the reference's loader. A comment holds 65,535 bytes; a longer
# card is a member after all.
CARD_MEMBER = "card.json"
_MAX_COMMENT = 65_535

# NumPy has no bfloat16: such arrays are stored as two raw bytes per number.
_BFLOAT16 = np.dtype("V2")

_MAX_HEADER = 4096  # bytes before an array's data; 128 is usual
_READ_HEADER = {
    (1, 0): npy.read_array_header_1_0,
    **dict.fromkeys([(2, 0), (3, 0)], npy.read_array_header_2_0),
}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes


class _Member(NamedTuple):
    info: zipfile.ZipInfo
    start: int  # where its bytes are in the file
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype
    header_length: int  # bytes before the data


class Archive:
    """An open .npz file: all its `arrays`, and `read` for one. Use `open_archive`."""

    def __init__(self, file: zipfile.ZipFile, raw: IO[bytes], path: epath.Path):
        self._file, self._raw, self._path = file, raw, path
        self._members: dict[str, _Member] = {}
        self.arrays: dict[str, Lazy] = {}
        infos, end = file.infolist(), 0
        check_count(infos)
        for info in sorted(infos, key=lambda info: info.header_offset):
            with self._explained(info.filename):
                start = self._start(info)
                self._refuse_unlisted(end, info.header_offset)
                end = start + info.compress_size
                if info.filename.endswith(".npy"):
                    self._add(info, start)
        if not self._members:
            raise ValueError(f"{path} is a zip file without any arrays, not an .npz checkpoint.")
        with self._explained():
            self._refuse_unlisted(end, file.start_dir)
            raw.seek(-22 - len(file.comment), os.SEEK_END)
            if raw.read(4) != b"PK\5\6":
                raise zipfile.BadZipFile("more bytes follow its end")
        check_claims(self.arrays.values(), raw.tell() + 18 + len(file.comment))

    @property
    def card(self) -> str | bytes | None:
        """The JSON text that `write_archive` was given as the card, or None."""
        if CARD_MEMBER in self._file.namelist():
            with self._explained(CARD_MEMBER), self._file.open(CARD_MEMBER) as stream:
                return stream.read(MAX_BYTES + 1)
        comment = self._file.comment
        return comment if b'"num_classes"' in comment or comment.startswith(b"{") else None

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """One array, whose checksum is verified; or a part of it, which has no checksum.

        In a local file, if the array is not compressed, only that part is read.
        """
        info, start, shape, order, dtype, header_length = self._members[name]
        stored = info.compress_type == zipfile.ZIP_STORED
        with self._explained(name):
            if index and stored and not is_remote(self._path):
                start += header_length
                array = np.array(np.memmap(self._path, dtype, "r", start, shape, order)[index])
            elif index:
                return self.read(name)[index]
            elif stored:
                array = self._bytes(info, start)[header_length:].view(dtype)
                array = array.reshape(shape, order=order)
            else:
                with self._file.open(info) as stream:
                    array = npy.read_array(stream, allow_pickle=False)
                    stream.read(1)  # reaches the end, where zipfile compares the checksum
        if array.dtype == _BFLOAT16:
            return array.view(ml_dtypes.bfloat16)
        return array.astype(array.dtype.newbyteorder("="), copy=False)  # big-endian is for others

    def _bytes(self, info: zipfile.ZipInfo, start: int) -> np.ndarray:
        """Straight into the array's own memory: half the time of zipfile's many small copies."""
        self._raw.seek(start)
        stored = np.empty(info.file_size, np.uint8)
        num_read = self._raw.readinto(stored.data)  # pyright: ignore[reportAttributeAccessIssue] IO lacks it
        if num_read != info.file_size or zlib.crc32(stored.data) != info.CRC:
            raise zipfile.BadZipFile("bad checksum")
        return stored

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where a member's bytes begin: after its own header, whose length varies."""
        self._raw.seek(info.header_offset)
        header = self._raw.read(30)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        name = self._raw.read(name_length).decode("utf-8" if info.flag_bits & 0x800 else "cp437")
        if header[:4] != b"PK\3\4" or name != info.orig_filename:
            raise zipfile.BadZipFile("the directory of the file says it is where it is not")
        return info.header_offset + 30 + name_length + extra_length

    def _refuse_unlisted(self, end: int, following: int) -> None:
        """Between the end of a member and what follows there may be padding, but no member."""
        self._raw.seek(end)
        if following < end or (following > end and self._raw.read(4) == b"PK\3\4"):
            raise zipfile.BadZipFile("the directory of the file does not list all that is in it")

    def _add(self, info: zipfile.ZipInfo, start: int) -> None:
        name = info.filename.removesuffix(".npy")
        if name in self._members:
            raise zipfile.BadZipFile("there are two of that name")
        if info.compress_type not in _METHODS:
            raise zipfile.BadZipFile(f"its method of compression is number {info.compress_type}")
        with self._file.open(info) as stream:
            head = io.BytesIO(stream.read(_MAX_HEADER))
        shape, is_fortran, dtype = _READ_HEADER[npy.read_magic(head)](head)
        if dtype.hasobject:
            raise ValueError(
                f"{self._path} holds pickled Python objects in {name!r}. Unpickling can run any "
                "code, so it is refused; save the file again with plain numeric arrays."
            )
        known = np.dtype(ml_dtypes.bfloat16) if dtype == _BFLOAT16 else dtype.newbyteorder("=")
        lazy = Lazy(shape, known, functools.partial(self.read, name))
        sizes = {head.tell() + lazy.nbytes, info.file_size}
        if info.compress_type == zipfile.ZIP_STORED:
            sizes.add(info.compress_size)
        if dtype.subdtype or len(sizes) > 1:
            raise zipfile.BadZipFile(f"it has not the bytes of {dtype} {shape}")
        order = "F" if is_fortran else "C"
        self._members[name] = _Member(info, start, shape, order, dtype, head.tell())
        self.arrays[name] = lazy

    @contextlib.contextmanager
    def _explained(self, name: str | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as e:  # zipfile, zlib and NumPy raise a dozen kinds of it
            if isinstance(e, ValueError | OSError) and str(self._path) in str(e):
                raise
            what = "it" if name is None else f"its array {name!r}"
            told = f"{self._path} is damaged: {what} cannot be read ({e})."
            raise ValueError(f"{told} Download or copy the file again.") from e


@contextlib.contextmanager
def open_archive(path: epath.PathLike) -> Iterator[Archive]:
    """Opens an .npz for reading; an error says what is wrong with any other file."""
    path = epath.Path(path)
    with path.open("rb") as raw:
        try:
            file = zipfile.ZipFile(raw)
        except Exception as e:
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
