"""Tokens that are not patches, and their positions: where layouts differ most.

In our models the class token (and DeiT's second) come first and have position rows; registers come
last and have none. Attention does not depend on the order of tokens, so a foreign token that the
head does not read becomes a register, and its position row, if any, is added to it for good.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.checkpoint.foreign.rules import Source, num_rows
from vit_jax.checkpoint.lazy import Lazy, concatenated
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped

REGISTERS = "Transformer/registers"


class Token(NamedTuple):
    """One array of tokens in the file's order. `role` is cls, dist or registers."""

    name: str
    role: str
    has_rows: bool


def read(source: Source, tokens: Sequence[Token], position: str | None) -> list[Mapped]:
    """Our cls, dist, registers and position table, from the file's tokens and table."""
    mapped: list[Mapped] = []
    leading: list[Lazy] = []  # position rows of the class and distillation tokens
    registers: list[tuple[tuple[str, ...], Lazy]] = []
    offset, untouched = 0, True
    table = _table(source, position) if position else None
    table_name = source.names[position] if position else ""
    for token in tokens:
        array = source.lazy(token.name).map(lambda x: x.reshape(1, -1, x.shape[-1]))
        count = array.shape[1]
        rows = None
        if token.has_rows and table is not None:
            rows = table.map(lambda x, a=offset, b=offset + count: x[:, a:b])
            offset += count
        name = source.names[token.name]
        if token.role != "registers":
            mapped.append(Mapped((name,), token.role, "same", array))
            untouched &= rows is not None
            leading.append(rows or array.map(np.zeros_like))
        elif rows is None:
            registers.append(((name,), array))
        else:
            untouched = False
            registers.append(((name, table_name), _summed(array, rows)))
    if registers:
        names = tuple(dict.fromkeys(name for names, _ in registers for name in names))
        arrays = [array for _, array in registers]
        how = "same" if len(names) == 1 else "joined; with their position rows summed into them"
        joined = arrays[0] if len(arrays) == 1 else concatenated(arrays, axis=1)
        mapped.append(Mapped(names, REGISTERS, how, joined))
    if table is not None:
        mapped.append(_position(table_name, table, leading, offset, untouched))
    return mapped


def _position(name: str, table: Lazy, leading: list[Lazy], offset: int, untouched: bool) -> Mapped:
    if untouched:
        return Mapped((name,), POSITION, "same", table)
    grid = table.map(lambda x: x[:, offset:])
    how = "rows of the grid"
    if leading:
        how += "; the class token's is its own, or zeros where it had none"
    joined = concatenated([*leading, grid], axis=1) if leading else grid
    return Mapped((name,), POSITION, how, joined)


def _table(source: Source, position: str) -> Lazy:
    return source.lazy(position).map(lambda x: x.reshape(1, num_rows(x.shape), x.shape[-1]))


def _summed(a: Lazy, b: Lazy) -> Lazy:
    return Lazy(a.shape, a.dtype, lambda index: a.read(index) + b.read(index))


def write_without_rows(leaves: Mapping[str, Lazy], cls: str, table: str) -> list[Mapped]:
    """Positions of the grid alone; the class token's row is summed into the token (timm's
    no_embed_class, which its models with registers have).
    """
    position = leaves[POSITION]
    mapped: list[Mapped] = []
    leading = 1 if "cls" in leaves else 0
    if leading:
        summed = _summed(leaves["cls"], position.map(lambda x: x[:, :1]))
        mapped.append(Mapped(("cls", POSITION), cls, "summed with its position row", summed))
    grid = position.map(lambda x: x[:, leading:])
    return [*mapped, Mapped((POSITION,), table, "rows of the grid", grid)]
