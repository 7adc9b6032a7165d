"""Damage: of bytes at random, of a format by someone who knows it, of JSON value by value.

All damage is a function of the bytes, of other bytes to mix in, and of a `random.Random`.
"""

import copy
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

# Numbers at which readers go wrong: limits of types, and counts that nobody can allocate.
NUMBERS = (0, 1, 2, 7, 127, 255, 256, 65_535, 100_000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
TEXTS = ("", " ", "0", "-1", "nan", "../x", "/", "é\u0000\ud800", "%s{0}$x_$", "[/b]\x1b[31m")
_DEEP, _LONG = "@@deep@@", "@@long@@"  # become a nest of lists and a long text


# Bytes


def blind(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Bytes damaged one to three times, without a look at them."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, size = _place(data, rng), rng.choice((1, 2, 4, 8, 100, 4096))
        before, struck, after = data[:at], data[at : at + size], data[at + size :]
        number = rng.choice((*NUMBERS, rng.getrandbits(64))) % 256 ** min(size, 8)
        data = rng.choice(
            (
                before + bytes(b ^ 1 << rng.randrange(8) for b in struck[:1]) + struck[1:] + after,
                before + number.to_bytes(min(size, 8), rng.choice(("little", "big"))) + after,
                before + bytes(len(struck)) + after,
                before + rng.randbytes(size) + struck + after,
                before + struck * rng.randint(2, 9) + after,
                before + after,
                before,
                data[:-1],
                before + other[_place(other, rng) :],
            )
        )
    return data


def _place(data: bytes, rng: random.Random) -> int:
    """Anywhere, but often near the start or the end, where formats describe the rest."""
    anywhere = rng.randint(0, len(data))
    return rng.choice((anywhere, anywhere % 64, max(0, len(data) - anywhere % 512)))


# Archives of arrays (.npz)


def zip_directory(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """A field of the directory at the end, or of a member's own header, replaced."""
    starts = [m.start() for m in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06\x06)", data)]
    size, at = rng.choice((2, 4, 8)), rng.choice((rng.choice(starts), starts[-1]))
    at += rng.randrange(4, 46, 2)
    number = rng.choice((*NUMBERS, rng.getrandbits(16))) % 256**size
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def zip_member(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A member changed, renamed, lost or doubled, and all checksums right: made by an enemy."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
        comment = file.comment
    at = rng.randrange(len(members))
    name, content = members[at]
    members[at : at + 1] = rng.choice(
        (
            [(name, npy_header(content, rng))],
            [(name, npy_header(content, rng))],
            [(name, blind(content, other, rng))],
            [(name, content)] * 2,
            [(_renamed(name, rng), content)],
            [(name, content), ("card.json", b"[" * 100_000), (".npy", b"")],
            [],
        )
    )
    if rng.random() < 0.003:
        members.append(("bomb.npy", _bomb()))
    out = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content, method)
        file.comment = comment
    return out.getvalue()


def _bomb() -> bytes:
    """An array of 64 MB that deflates to a thousandth."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (16000000,), }\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(64_000_000)


def npy_header(data: bytes, rng: random.Random) -> bytes:
    """An array's header with another shape, type or order, or not a header at all."""
    head = data[10 : 10 + int.from_bytes(data[8:10], "little")]
    body = data[10 + len(head) :]
    odd = b"%d" % rng.choice((*NUMBERS, -1, 10**30))
    shape = rng.choice((odd, b"(%s)" % (b"1, " * rng.choice((0, 33, 65, 300)))))
    head = rng.choice(
        (
            re.sub(rb"'shape': \(\d+", b"'shape': (" + odd, head),
            re.sub(rb"'shape': \([^)]*\)", b"'shape': " + shape, head),
            head.replace(b"'<f4'", rng.choice(_TYPES)),
            head.replace(b"False", b"True"),
            b"(" * rng.choice((1, 50, 5000)) + head,
            rng.randbytes(len(head)),
            head[: rng.randrange(1 + len(head))],
        )
    )
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", rng.randbytes(2)))
    length = len(head).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + rng.choice((length, length, b"\xff" * 4)) + head + body


_TYPES = (
    *(b"'|O'", b"'<f8'", b"'>f4'", b"'<f2'", b"'<i4'", b"'|V2'", b"'|V4'", b"'<U1'", b"'|b1'"),
    *(b"'<c8'", b"'<M8[s]'", b"'|S0'", b"'x'", b"None", b"[('a', '<f4')]", b"('<f4', (9999999,))"),
    b"'<f4'" + b"," * 500,
)


# Safetensors


def safetensors_header(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """The JSON at its start with a value replaced, and its length right."""
    header, body = split_safetensors(data)
    return join_safetensors(_dumps(_mutated(header, rng), rng), body)


def split_safetensors(data: bytes) -> tuple[Any, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def join_safetensors(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


# PNG


def png_chunk(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A chunk changed, lost, doubled or of another type, its checksum right."""
    chunks = list(_chunks(data))
    at = rng.choice((0, rng.randrange(len(chunks))))
    kind, body = chunks[at]
    if at == 0 and rng.random() < 0.6:
        return _png(data, _enlarged(chunks, rng))
    another = rng.choice((b"IDAT", b"IEND", b"tRNS", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"zTXt"))
    chunks[at : at + 1] = rng.choice(
        (
            [(kind, blind(body, other, rng))],
            [(kind, blind(body, other, rng))],
            [(another, body)],
            [(kind, body)] * rng.choice((2, 300)),
            [],
        )
    )
    return _png(data, chunks)


def _enlarged(chunks: list[tuple[bytes, bytes]], rng: random.Random) -> list[tuple[bytes, bytes]]:
    """Another size; seldom with all its pixels, zeros that deflate to a thousandth."""
    side = rng.choice(NUMBERS) % 2**32
    width, height = rng.choice(((side, side), (side, 1), (1, side), (9_999, 9_999), (60_000, 1)))
    head = (b"IHDR", struct.pack(">II", width, height) + chunks[0][1][8:])
    if rng.random() > 0.03:
        return [head, *chunks[1:]]
    depth, kind = head[1][8], head[1][9]
    samples = {2: 3, 4: 2, 6: 4}.get(kind, 1) * max(1, depth // 8)
    pixels = bytes(min(100_000_000, (1 + width * samples) * height))
    return [head, *chunks[1:-2], (b"IDAT", zlib.compress(pixels, 1)), (b"IEND", b"")]


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        at += 12 + size


def _png(data: bytes, chunks: list[tuple[bytes, bytes]]) -> bytes:
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return data[:8] + b"".join(parts)


# JPEG


def jpeg_header(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """A field of a marker: sizes, numbers of components, tables, lengths."""
    at = rng.choice([m.start() for m in re.finditer(rb"\xff[\xc0-\xc4\xda-\xdd\xe0-\xee]", data)])
    at, size = at + rng.randrange(1, 12), rng.choice((1, 2))
    number = rng.choice(NUMBERS) % 256**size
    return data[:at] + number.to_bytes(size, "big") + data[at + size :]


# JSON


def json_value(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """One or two values replaced, deleted, renamed or repeated."""
    return _dumps(_mutated(json.loads(data), rng), rng)


def _mutated(value: Any, rng: random.Random) -> Any:
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
    scalars = (None, True, False, number, 1e308, float("nan"), float("inf"), rng.choice(TEXTS))
    holders = ([], {}, [value], [[1], 2], {"a": value}, {"": {}}, [number] * 2)
    return rng.choice((*scalars, *holders, _DEEP, _LONG))


def _renamed(name: str, rng: random.Random) -> str:
    return rng.choice((name + "x", name[:-1], name.upper(), "", "a/b" * 99, "../" + name))


def _dumps(value: Any, rng: random.Random) -> bytes:
    """As text, which may be deep, long, or have every key twice."""
    text = json.dumps(value)
    depth, length = rng.choice((10, 40, 1_000, 100_000)), rng.choice((300, 70_000, 2_000_000))
    text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth).replace(_LONG, "x" * length)
    if text.startswith('{"') and rng.random() < 0.05:
        text = f"{text[:-1]}, {text[1:]}"
    return text.encode()
