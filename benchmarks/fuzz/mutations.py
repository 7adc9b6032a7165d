"""Damage: of bytes at random, of a format by someone who knows it, of JSON value by value.

Every function takes a `random.Random` and returns new bytes, or a new value; what it is given stays
as it is. Those that know a format raise ValueError for bytes that are not of it.
"""

import copy
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

# Numbers at which readers go wrong: limits of types, and counts that nobody can allocate.
NUMBERS = (0, 1, 2, 7, 127, 255, 256, 65_535, 100_000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "nan",
    "null",
    "../x",
    "/",
    "é\u0000\ud800",
    "%s{0}$x_$",
    "[/b]\x1b[31m",
)
_DEEP, _LONG = "@@deep@@", "@@long@@"  # become a nest of lists and a long text


def blind(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Bytes damaged one to three times, without a look at them; `other` may be mixed in."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(_BLIND)(data, other, rng)
    return data


def _flip(data: bytes, _: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + bytes(b ^ 1 << rng.randrange(8) for b in data[at : at + 1]) + data[at + 1 :]


def _overwrite(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """A number of one to eight bytes, often one that means trouble."""
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    number = rng.choice((rng.choice(NUMBERS), rng.getrandbits(64), 2**64 - 1)) % 2 ** (8 * size)
    at = _place(data, rng)
    return data[:at] + number.to_bytes(size, order) + data[at + size :]


def _cut(data: bytes, _: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice((rng.randint(0, len(data)), len(data) - 1, 0, _place(data, rng)))]


def _delete(data: bytes, _: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 2, 4, rng.randint(1, 1 + len(data)))) :]


def _insert(data: bytes, _: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 100))) + data[at:]


def _repeat(data: bytes, _: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at : at + rng.randint(1, 200)] * rng.randint(2, 9) + data[at:]


def _zeros(data: bytes, _: bytes, rng: random.Random) -> bytes:
    at, size = _place(data, rng), rng.choice((8, 64, 512, 4096))
    return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]


def _splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)] + other[_place(other, rng) :]


_BLIND = (_flip, _flip, _overwrite, _overwrite, _cut, _delete, _insert, _repeat, _zeros, _splice)


def _place(data: bytes, rng: random.Random) -> int:
    """Anywhere, but often near the start or the end, where formats describe the rest."""
    anywhere = rng.randint(0, len(data))
    return rng.choice((anywhere, anywhere % 64, max(0, len(data) - anywhere % 512)))


# A zip file (.npz)


def zip_directory(data: bytes, rng: random.Random) -> bytes:
    """A field of the directory at the end, or of a member's own header, replaced."""
    starts = [m.start() for m in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06\x06)", data)]
    if not starts:
        raise ValueError("no zip file")
    start = rng.choice((rng.choice(starts), starts[-1]))
    size, at = rng.choice((2, 4, 8)), start + rng.randrange(4, 46, 2)
    number = rng.choice((*NUMBERS, rng.getrandbits(16))) % 2 ** (8 * size)
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def zip_member(data: bytes, rng: random.Random) -> bytes:
    """A member changed, renamed, lost or doubled, and all checksums right: made by an enemy."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = [(info.filename, file.read(info)) for info in file.infolist()]
            comment = file.comment
    except Exception as e:
        raise ValueError("no zip file") from e
    at = rng.randrange(len(members))
    name, content = members[at]
    changes: tuple[Callable[[], list[tuple[str, bytes]]], ...] = (
        lambda: [(name, npy_header(content, rng))],
        lambda: [(name, npy_header(content, rng))],
        lambda: [(name, blind(content, b"", rng))],
        list,
        lambda: [(name, content), (name, content)],
        lambda: [(_renamed(name, rng), content)],
        lambda: [(name, content), ("card.json", b"[" * 100_000), (".npy", b"")],
        lambda: [(name, _bomb() if rng.random() < 0.1 else b"")],
    )
    members[at : at + 1] = rng.choice(changes)()
    out = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content, method)
        file.comment = comment
    return out.getvalue()


def _bomb() -> bytes:
    """An array of 64 MB that deflates to 64 kB."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (16000000,), }\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(64_000_000)


def npy_header(data: bytes, rng: random.Random) -> bytes:
    """An array's header with another shape, type or order, or not a header at all."""
    head = data[10 : 10 + int.from_bytes(data[8:10], "little")]
    body = data[10 + len(head) :]
    odd = rng.choice((*NUMBERS, -1, 10**30))
    head = rng.choice(
        (
            re.sub(rb"'shape': \(\d+", b"'shape': (%d" % odd, head),
            re.sub(
                rb"'shape': \([^)]*\)",
                b"'shape': (%s)" % (b"1, " * rng.choice((0, 33, 65, 300))),
                head,
            ),
            re.sub(rb"'shape': \([^)]*\)", b"'shape': %d" % odd, head),
            re.sub(rb"'<f4'", rng.choice(_DESCRIPTIONS), head),
            head.replace(b"False", b"True"),
            b"(" * rng.choice((1, 50, 5000)) + head,
            rng.randbytes(len(head)),
            head[: rng.randrange(1 + len(head))],
        )
    )
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", rng.randbytes(2)))
    length = len(head).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + rng.choice((length, length, b"\xff" * 4)) + head + body


_DESCRIPTIONS = (
    *(b"'|O'", b"'<f8'", b"'>f4'", b"'<f2'", b"'<i4'", b"'|V2'", b"'|V4'", b"'<U1'", b"'|b1'"),
    *(b"'<c8'", b"'<M8[s]'", b"'|S0'", b"'x'", b"None", b"[('a', '<f4')]", b"('<f4', (9999999,))"),
    b"'<f4'" + b"," * 500,
)


# Safetensors


def safetensors_header(data: bytes, rng: random.Random) -> bytes:
    """The JSON at its start with a value replaced, and its length right."""
    header, body = split_safetensors(data)
    return join_safetensors(json_text(mutated(header, rng), rng), body)


def split_safetensors(data: bytes) -> tuple[Any, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def join_safetensors(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


# PNG


def png_chunk(data: bytes, rng: random.Random) -> bytes:
    """A chunk changed, lost, doubled or moved, its checksum right."""
    chunks = list(_chunks(data))
    if not chunks:
        raise ValueError("no PNG")
    at = rng.choice((0, rng.randrange(len(chunks))))
    kind, body = chunks[at]
    if kind == b"IHDR" and rng.random() < 0.6:
        side = rng.choice(NUMBERS) % 2**32
        sides = rng.choice(((side, side), (side, 1), (1, side), (9_999, 9_999), (60_000, 1)))
        body = struct.pack(">II", *sides) + body[8:]
        chunks[at] = kind, body
        if rng.random() < 0.03:  # and the pixels are there: zeros, a thousandth of their size
            channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(body[9], 1) * max(1, body[8] // 8)
            size = min(100_000_000, (1 + sides[0] * channels) * sides[1])
            chunks = [chunks[0], (b"IDAT", zlib.compress(bytes(size), 1)), (b"IEND", b"")]
    else:
        another = rng.choice(
            (b"IDAT", b"IEND", b"tRNS", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"zTXt")
        )
        changed: list[list[tuple[bytes, bytes]]] = [
            [(kind, blind(body, body, rng))],
            [(kind, blind(body, body, rng))],
            [(another, body)],
            [],
            [(kind, body)] * rng.choice((2, 300)),
        ]
        chunks[at : at + 1] = rng.choice(changed)
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return data[:8] + b"".join(parts)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8 if data.startswith(b"\x89PNG") else len(data)
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        at += 12 + size


# JSON


def mutated_json(text: str | bytes, rng: random.Random) -> bytes:
    return json_text(mutated(json.loads(text), rng), rng)


def mutated(value: Any, rng: random.Random) -> Any:
    """A JSON value in which one or two inner ones are replaced, deleted, renamed or moved."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        holders = list(_holders(value))
        if not holders:
            return _odd(value, rng)
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        change = rng.random()
        if change < 0.75:
            holder[key] = _odd(holder[key], rng)
        elif change < 0.85:
            del holder[key]
        elif isinstance(holder, dict):
            holder[_renamed(key, rng)] = holder.pop(key)
        else:
            holder.extend([holder[key]] * rng.choice((1, 9, 5000)))
    return value


def _holders(value: Any) -> Iterator[Any]:
    """Every object and list in a value that has something in it."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def _odd(value: Any, rng: random.Random) -> Any:
    """What a stranger may have in the place of a value: often of the same type, and too large."""
    number = rng.choice((*NUMBERS, -1, -(2**63), 10**30, 10**400))
    if isinstance(value, int | float) and rng.random() < 0.6:
        return rng.choice((number, float(number % 10**300), -value, value + 1, value * 2, 0.5))
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice((*TEXTS, _LONG, value + "x", value.upper(), value[:-1]))
    other = (
        None,
        True,
        False,
        number,
        1e308,
        float("nan"),
        float("inf"),
        [],
        {},
        [value],
        [[1], 2],
    )
    return rng.choice(
        (*other, {"a": value}, {"": {}}, _DEEP, _LONG, rng.choice(TEXTS), [number] * 2)
    )


def _renamed(name: str, rng: random.Random) -> str:
    return rng.choice(
        (name + "x", name[:-1], name.upper(), name[::-1], "", "a/b" * 99, "../" + name)
    )


def json_text(value: Any, rng: random.Random) -> bytes:
    """As text, which may be deep, long, or have a key twice."""
    text = json.dumps(value)
    depth, length = rng.choice((10, 40, 1_000, 100_000)), rng.choice((300, 70_000, 2_000_000))
    text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth).replace(_LONG, "x" * length)
    if text.startswith("{") and rng.random() < 0.05:
        text = text[:-1] + "," + text[1:] if len(text) > 2 else text
    return text.encode()
