"""Files from outside: read within a limit, and JSON believed only within limits of depth and kind.

Every JSON file that a person may hand us goes through here, so that whatever is wrong with it is
one ValueError that names the file. Numbers in it are still only claims.
"""

import errno
import importlib
import importlib.util
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from etils import epath

from vit_jax.aliases import Json
from vit_jax.allowed import Allowed, several, text

MAX_BYTES = 32 << 20  # 21,841 class names are 1 MB
MAX_DEPTH = 32

fields = Allowed("an object", lambda value: isinstance(value, dict))
names = several(text, range(2**24 + 1), "a list of names")


def as_path(given: epath.PathLike) -> epath.Path:
    """A path as a person wrote it: ~ is their home, and gs:// and s3:// are the remote ones."""
    name = os.fspath(given)
    scheme, is_remote, _ = name.partition("://")
    if is_remote and scheme not in ("gs", "s3"):
        raise ValueError(f"{name} is not a path that we know: local, gs://… or s3://….")
    if is_remote and importlib.util.find_spec("tensorflow") is None:  # with it, epath needs no more
        try:
            importlib.import_module("fsspec").get_filesystem_class(scheme)
        except ImportError as e:
            raise ValueError(f"{name} needs pip install 'vit_jax[gcs]' ({e}).") from e
    return epath.Path(name).expanduser()


def read_json(path: epath.PathLike) -> Json:
    """The JSON object in a file."""
    return parse_json(read_file(path, MAX_BYTES + 1), where=os.fspath(path))


def read_file(path: epath.PathLike, most: int) -> bytes:
    """The first `most` bytes of a file, which is all of it unless there are as many.

    Of a FIFO, a socket or a device it is an OSError: reading one could take for ever.
    """
    name = os.fspath(path)
    file = as_path(name) if "://" in name else Path(name)
    if isinstance(file, Path):
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # `open` refuses a directory itself
            raise OSError(errno.EINVAL, "Not a regular file", name)
    with file.open("rb") as opened:
        return opened.read(most)


def parse_json(text: str | bytes, *, where: str) -> Json:
    """The JSON object in a text; `where` is what an error calls it."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"{where} is longer than the {MAX_BYTES >> 20} MiB that we read of JSON.")
    try:
        given = json.loads(text)
        if _is_deeper(given, MAX_DEPTH):
            raise RecursionError
    except ValueError as e:  # also of bytes that are not UTF-8
        state = "empty" if not text.strip() else f"not readable JSON ({e})"
        raise ValueError(f"{where} is {state}.") from e
    except RecursionError as e:
        raise ValueError(f"{where} is nested deeper than {MAX_DEPTH} levels.") from e
    if not isinstance(given, dict):
        raise ValueError(f"{where} holds a JSON {_kind(given)} where an object is needed.")
    return given


def known_fields(given: Json, allowed: Mapping[str, Allowed], *, where: str) -> Json:
    """Those fields that a table has a row for, without null; one error names all wrong values.

    What is not in the table is not there for the caller, so nothing is used that was not checked.
    """
    found = {name: given[name] for name in allowed if given.get(name) is not None}
    problems = [p for name, value in found.items() for p in allowed[name].problem(name, value)]
    if problems:
        raise ValueError(f"{where} cannot be used: {'; '.join(problems)}.")
    return found


def _kind(value: object) -> str:
    kinds = {"list": "array", "str": "string", "bool": "boolean", "NoneType": "null"}
    return kinds.get(type(value).__name__, "number")


def _is_deeper(value: object, levels: int) -> bool:
    """Level by level: a recursion would be as deep as a stranger wants."""
    level = [value]
    for _ in range(levels):
        inner = [v for v in level if isinstance(v, (dict, list))]
        level = [v for v in inner for v in (v.values() if isinstance(v, dict) else v)]
    return bool(level)
