"""Reading and writing .npz archives: one array at a time, never a pickle, local or remote.

`Archive` knows every array's shape and dtype from the headers alone, so that a checkpoint can be
compared with a model before any weight is read.
"""

import contextlib
import functools
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
from vit_jax.checkpoint.lazy import Index, Lazy

# The card is the zip file's comment, which np.load ignores: a member would be one more "array" of
# bytes in dict(np.load(…)) and break the reference's loader. A comment holds 65,535 bytes; a longer
# card is a member after all.
CARD_MEMBER = "card.json"
_MAX_COMMENT = 65_535

# NumPy has no bfloat16: such arrays are stored as two raw bytes per number.
_BFLOAT16 = np.dtype("V2")


# What a damaged file raises.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError)


class _Member(NamedTuple):
    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype
    header_length: int  # bytes before the data


class Archive:
    """An open .npz file: all its `arrays`, and `read` for one. Use `open_archive`."""

    def __init__(self, file: zipfile.ZipFile, raw: IO[bytes], path: epath.Path):
        self._file, self._raw, self._path = file, raw, path
        infos = {i.filename.removesuffix(".npy"): i for i in file.infolist()}
        self._members = {
            name: self._member(name, info)
            for name, info in infos.items()
            if info.filename.endswith(".npy")
        }
        if not self._members:
            raise ValueError(
                f"{path} is a zip file without any arrays in it, not an .npz checkpoint."
            )
        self.arrays: dict[str, Lazy] = {}
        for name, member in self._members.items():
            dtype = np.dtype(ml_dtypes.bfloat16) if member.dtype == _BFLOAT16 else member.dtype
            self.arrays[name] = Lazy(member.shape, dtype, functools.partial(self.read, name))

    @property
    def card(self) -> str | None:
        """The JSON text that `write_archive` was given as the card, or None."""
        if CARD_MEMBER in self._file.namelist():
            with self._explained(CARD_MEMBER):
                return self._file.read(CARD_MEMBER).decode()
        comment = self._file.comment
        return comment.decode(errors="replace") if comment.startswith(b"{") else None

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """One array, whose checksum is verified; or a part of it, which has no checksum.

        In a local file, if the array is not compressed, only that part is read.
        """
        info, shape, order, dtype, header_length = self._members[name]
        stored = info.compress_type == zipfile.ZIP_STORED
        with self._explained(name):
            if index and stored and not is_remote(self._path):
                start = self._start(info) + header_length
                array = np.array(np.memmap(self._path, dtype, "r", start, shape, order)[index])
            elif index:
                return self.read(name)[index]
            elif stored:
                array = self._bytes(info)[header_length:].view(dtype).reshape(shape, order=order)
            else:
                with self._file.open(info) as stream:
                    array = npy.read_array(stream, allow_pickle=False)
                    stream.read(1)  # reaches the end, where zipfile compares the checksum
        return array.view(ml_dtypes.bfloat16) if array.dtype == _BFLOAT16 else array

    def _bytes(self, info: zipfile.ZipInfo) -> np.ndarray:
        """Straight into the array's own memory: half the time of zipfile's many small copies."""
        self._raw.seek(self._start(info))
        stored = np.empty(info.file_size, np.uint8)
        num_read = self._raw.readinto(stored.data)  # pyright: ignore[reportAttributeAccessIssue] IO lacks it
        if num_read != info.file_size or zlib.crc32(stored.data) != info.CRC:
            raise zipfile.BadZipFile("bad checksum")
        return stored

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where a member's bytes begin: after its own header, whose length varies."""
        self._raw.seek(info.header_offset)
        name_length, extra_length = struct.unpack("<HH", self._raw.read(30)[26:30])
        return info.header_offset + 30 + name_length + extra_length

    def _member(self, name: str, info: zipfile.ZipInfo) -> _Member:
        with self._explained(name), self._file.open(info) as stream:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, is_fortran, dtype = read(stream)
            length = stream.tell()
        if dtype.hasobject:
            raise ValueError(
                f"{self._path} holds pickled Python objects in {name!r}. Unpickling can run any "
                "code, so it is refused; save the file again with plain numeric arrays."
            )
        return _Member(info, shape, "F" if is_fortran else "C", dtype, length)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as e:
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
