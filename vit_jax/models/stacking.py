"""Two layouts of the encoder's blocks, and the way between them.

Published trees name each block: `encoderblock_0`, `encoderblock_1`, … A scan over layers needs one
`encoderblock` whose arrays have a leading depth axis. Both functions work at any depth of a tree,
and do not change one that already has the wanted layout.
"""

import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from vit_jax.aliases import Params

STACKED = "encoderblock"
_NUMBERED = re.compile(STACKED + r"_(\d+)")


def stack_blocks(tree: Params) -> Params:
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


def unstack_blocks(tree: Params) -> Params:
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
