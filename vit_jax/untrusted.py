"""JSON from outside: believed only within limits of size, depth and kind.

Every JSON file that a person may hand us goes through here, so that whatever is wrong with it is
one ValueError that names the file. Numbers in it are still only claims.
"""

import json

from etils import epath

from vit_jax.aliases import Json

MAX_BYTES = 32 << 20  # 21,841 class names are 1 MB
MAX_DEPTH = 32


def read_json(path: epath.PathLike) -> Json:
    """The JSON object in a file."""
    path = epath.Path(path)
    with path.open("rb") as file:
        return parse_json(file.read(MAX_BYTES + 1), where=str(path))


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
