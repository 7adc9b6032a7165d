"""Safetensors files: one, or several with an index; read array by array, written array by array.

The `safetensors` library reads: it checks the header and never runs code. It writes only arrays
that are all in memory at once, so writing is done here.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from etils import epath
from safetensors import SafetensorError, safe_open

from vit_jax.aliases import Json
from vit_jax.allowed import text
from vit_jax.atomic import replacing
from vit_jax.checkpoint.lazy import Index, Lazy, check_count, read_ahead
from vit_jax.checkpoint.names import listed
from vit_jax.untrusted import fields, known_fields, read_json

INDEX = "model.safetensors.index.json"
_NUMBERS = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U8")
_DTYPES = {
    **{name: np.dtype(f"{name[0].lower()}{int(name[1:]) // 8}") for name in _NUMBERS},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The library maps the file into memory; reopening it after this many bytes releases the pages.
_REOPEN_EVERY = 64 << 20


class Reader:
    """The arrays of one file, and the text that its header may have."""

    def __init__(self, path: Path):
        self._path, self._num_read, self.name = path, 0, path.name
        self._file: safe_open | None = None
        file = self._open()
        self.metadata = file.metadata() or {}
        self.arrays: dict[str, Lazy] = {}
        check_count(names := file.keys())
        for name in names:
            view = file.get_slice(name)
            if (kind := view.get_dtype()) not in _DTYPES:
                raise ValueError(
                    f"{path} holds {name!r} as {kind}, not as one of {', '.join(_DTYPES)}. Save it "
                    "again in float32 or bfloat16."
                )
            load = functools.partial(self._read, name)
            self.arrays[name] = Lazy(tuple(view.get_shape()), _DTYPES[kind], load)

    def _read(self, name: str, index: Index) -> np.ndarray:
        if self._num_read > _REOPEN_EVERY:
            self.close()
        file = self._open()
        try:
            array = file.get_slice(name)[index] if index else file.get_tensor(name)
        except SafetensorError as e:
            raise ValueError(f"{self._path} is damaged: {name!r} cannot be read ({e}).") from e
        self._num_read += array.nbytes
        return array

    def _open(self) -> safe_open:
        if self._file is None:
            try:
                self._file = safe_open(self._path, framework="numpy")
            except (SafetensorError, OSError) as e:
                raise ValueError(
                    f"{self._path} cannot be read as safetensors ({e}). It may be cut short; "
                    "download or copy it again."
                ) from e
        return self._file

    def close(self) -> None:
        self._file, self._num_read = None, 0


def find_files(folder: epath.Path) -> list[Path]:
    """The weight files of a folder: those its index names, or its one .safetensors file."""
    if (folder / INDEX).exists():
        names = sorted(set(_weight_map(folder).values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                hint = "a shard must be a .safetensors file beside it"
                raise ValueError(f"{folder / INDEX} names the file {name!r}; {hint}.")
        if missing := [name for name in names if not (folder / name).exists()]:
            raise ValueError(
                f"{folder} is incomplete: {INDEX} names {', '.join(missing)}, which "
                f"{'is' if len(missing) == 1 else 'are'} missing. Download the rest."
            )
        return [Path(folder / name) for name in names]
    files = sorted(path for path in folder.iterdir() if path.name.endswith(".safetensors"))
    preferred = [path for path in files if path.name == "model.safetensors"]
    if len(files) > 1 and not preferred:
        raise ValueError(
            f"{folder} has {len(files)} .safetensors files and no {INDEX} to say how they belong "
            f"together: {', '.join(path.name for path in files)}. Give the path of one of them."
        )
    return [Path(path) for path in preferred or files]


def _weight_map(folder: epath.Path) -> dict[str, str]:
    """The file of each array, as an index says it."""
    where = str(folder / INDEX)
    about = known_fields(read_json(where), {"weight_map": fields}, where=where)
    files = about.get("weight_map", {})
    return known_fields(files, dict.fromkeys(files, text), where=where)


def open_files(folder: epath.Path) -> list[Reader]:
    """The files of a folder, each of which has the arrays that its index says, and no others."""
    readers = [Reader(file) for file in find_files(folder)]
    if (folder / INDEX).exists():
        expected = set(_weight_map(folder).items())
        found = {(name, reader.name) for reader in readers for name in reader.arrays}
        if differing := listed(sorted(name for name, _ in expected ^ found), 6):
            told = f"{folder} is not what its {INDEX} says: {differing}"
            raise ValueError(f"{told} are in another file, or in none.")
    return readers


def write(path: epath.PathLike, arrays: Mapping[str, Lazy], metadata: Mapping[str, str]) -> None:
    """Writes one file, array by array, all or nothing."""
    # Wide types first, for the alignment that the format asks for; then by name, as the library.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(_header(arrays, order, metadata))
        for _, array in read_ahead({name: arrays[name] for name in order}, where="The model"):
            file.write(array.reshape(-1).view(np.uint8).data)


def _header(arrays: Mapping[str, Lazy], order: Sequence[str], metadata: Mapping[str, str]) -> bytes:
    header: Json = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        array = arrays[name]
        end = offset + array.nbytes
        if array.dtype not in _NAMES:
            raise ValueError(f"Safetensors cannot hold {name!r} as {array.dtype}.")
        about = {"dtype": _NAMES[array.dtype], "shape": list(array.shape)}
        header[name] = {**about, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
