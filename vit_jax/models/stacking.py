"""Two layouts of the encoder's blocks, and the way between them.

Published trees name each block: `encoderblock_0`, `encoderblock_1`, … A scan over layers wants one
`encoderblock` whose arrays have a leading depth axis. Both functions leave a tree that is already
in the layout asked for as it is, and work at any depth of the tree.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

STACKED = "encoderblock"
_NUMBERED = re.compile(STACKED + r"_(\d+)")


def stack_blocks(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Published layout to scanned layout: encoderblock_i -> encoderblock, stacked along axis 0."""
    result, blocks = {}, {}
    for name, value in tree.items():
        if match := _NUMBERED.fullmatch(name):
            blocks[int(match[1])] = value
        else:
            result[name] = stack_blocks(value) if isinstance(value, Mapping) else value
    if blocks:
        missing = set(range(max(blocks) + 1)) - set(blocks)
        if missing:
            raise ValueError(f"Cannot stack the encoder: blocks {sorted(missing)} are missing.")
        ordered = [blocks[i] for i in range(len(blocks))]
        result[STACKED] = jax.tree.map(lambda *layers: jnp.stack(layers), *ordered)
    return result


def unstack_blocks(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Scanned layout to published layout: encoderblock -> encoderblock_0, encoderblock_1, …"""
    result = {}
    for name, value in tree.items():
        if name == STACKED:
            depth = jax.tree.leaves(value)[0].shape[0]
            for i in range(depth):
                result[f"{STACKED}_{i}"] = jax.tree.map(lambda layers, i=i: layers[i], value)
        else:
            result[name] = unstack_blocks(value) if isinstance(value, Mapping) else value
    return result
