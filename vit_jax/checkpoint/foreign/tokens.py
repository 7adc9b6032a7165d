"""Tokens that are not patches, and their positions: where layouts differ most.

In our models the class token (and DeiT's second) come first and have position rows; registers come
last and have none. Attention does not depend on the order of tokens, so a foreign token that the
head does not read becomes a register, and its position row, if any, is added to it for good.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.checkpoint.foreign.rules import REGISTERS, Source
from vit_jax.checkpoint.lazy import Lazy, concatenated
from vit_jax.checkpoint.official import POSITION
from vit_jax.checkpoint.plan import Mapped


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
    table = _three_axes(source, position) if position else None
    table_name = source.names[position] if position else ""
    offset, untouched = 0, True
    for token in tokens:
        name, array, rows = source.names[token.name], _three_axes(source, token.name), None
        if token.has_rows and table is not None:
            rows = table.map(lambda x, a=offset, b=offset + array.shape[1]: x[:, a:b])
            offset += array.shape[1]
        if token.role != "registers":
            mapped.append(Mapped((name,), token.role, "same", array))
            leading.append(rows or array.map(np.zeros_like))
        else:
            registers.append(
                ((name, table_name), _summed(array, rows)) if rows else ((name,), array)
            )
        untouched &= (rows is None) == (token.role == "registers")
    if registers:
        names = tuple(dict.fromkeys(name for names, _ in registers for name in names))
        how = "same" if len(names) == 1 else "joined; with their position rows summed into them"
        mapped.append(
            Mapped(names, REGISTERS, how, concatenated([a for _, a in registers], axis=1))
        )
    if table is not None and untouched:
        mapped.append(Mapped((table_name,), POSITION, "same", table))
    elif table is not None:
        how = "rows of the grid"
        if leading:
            how += "; the class token's is its own, or zeros where it had none"
        parts = [*leading, table.map(lambda x: x[:, offset:])]
        mapped.append(Mapped((table_name,), POSITION, how, concatenated(parts, axis=1)))
    return mapped


def _three_axes(source: Source, name: str) -> Lazy:
    return source.array(name).map(lambda x: x.reshape(1, -1, x.shape[-1]))


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
