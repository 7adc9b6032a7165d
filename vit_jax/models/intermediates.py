"""Looking inside: what a model computes on the way to its scores."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import Array


class Intermediates(NamedTuple):
    """Block i's value is at [i]; an entry that was not asked for is None.

    Attention is b h n n in float32. Its tokens are the class token (where there is one), the grid
    row by row, then the register tokens; row q holds what token q looks at.
    """

    patch_embedding: Array  # b h w d, before positions
    blocks: list[Array | None]  # b n d each
    attention: list[Array | None]  # b h n n each; empty for a Mixer
    pre_logits: Array  # what the head sees


@partial(jax.jit, static_argnames=("model", "blocks"))
def _capture(model, params, images, blocks):
    outputs, state = model.apply({"params": params}, images, train=False, mutable=["intermediates"])
    state = state["intermediates"]
    by_block = _per_block(state)
    wanted = range(len(by_block)) if blocks is None else blocks

    def pick(get):
        return [get(block) if i in wanted else None for i, block in enumerate(by_block)]

    attention = []
    if "Transformer" in state:
        attention = pick(lambda block: block["MultiHeadDotProductAttention_0"]["attention"])
    captured = Intermediates(
        state["patch_embedding"],
        pick(lambda block: block["block"]),
        attention,
        state["representation"],
    )
    return outputs, captured


def capture(
    model: nn.Module, params: Any, images: Array, *, blocks: Sequence[int] | None = None
) -> tuple[Array, Intermediates]:
    """The model's outputs, and what came before them, of all blocks or of those asked for.

    Works whatever attention kernel the model uses, scanned or not. The model's ordinary call
    computes none of this. Attention takes b·h·n² floats a block: ask for few blocks of a large
    model.
    """
    if blocks is not None:
        blocks = tuple(blocks)
    return _capture(model, params, images, blocks)


def _per_block(state: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = state.get("Transformer", state)
    if "encoderblock" in blocks:  # scanned: a leading depth axis
        stacked = blocks["encoderblock"]
        depth = jax.tree.leaves(stacked)[0].shape[0]
        return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(depth)]
    prefix = "encoderblock_" if "Transformer" in state else "MixerBlock_"
    depth = sum(name.startswith(prefix) for name in blocks)
    return [blocks[f"{prefix}{i}"] for i in range(depth)]
