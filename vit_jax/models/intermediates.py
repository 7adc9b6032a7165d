"""Looking inside: what a model computes on the way to its scores."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict
from jax import Array

from vit_jax.aliases import Params
from vit_jax.models.kinds import flatten
from vit_jax.models.layers import ATTENTION


class Intermediates(NamedTuple):
    """Block i's value is at [i]; an entry that was not asked for is None.

    Attention is b h n n in float32. Its tokens are the class token (where there is one), the grid
    row by row, then the register tokens; row q holds what token q attends to.
    """

    patch_embedding: Array  # b h w d, before positions
    blocks: list[Array | None]  # b n d each
    attention: list[Array | None]  # b h n n each; empty for a Mixer
    pre_logits: Array  # what the head sees
    pool_attention: Array | None = None  # b h 1 n: what the probe of a MAP head attends to


@partial(jax.jit, static_argnames=("model", "blocks"))
def _capture(
    model: nn.Module, params: Params, images: Array, blocks: tuple[int, ...] | None
) -> tuple[Array, Intermediates]:
    outputs, state = model.apply({"params": params}, images, train=False, mutable=["intermediates"])
    return outputs, _collect(state["intermediates"], blocks)


def capture(
    model: nn.Module, params: Params, images: Array, *, blocks: Sequence[int] | None = None
) -> tuple[Array, Intermediates]:
    """The model's outputs, and what came before them in all blocks or in those asked for.

    Works with every attention kernel, scanned or not. The model's ordinary call computes none of
    this. Attention takes b·h·n² floats per block: ask for few blocks of a large model.
    """
    return _capture(model, params, images, None if blocks is None else tuple(blocks))


class AttentionGradients(NamedTuple):
    """Shapes as in `Intermediates`."""

    attention: list[Array]
    pool_attention: Array | None


def capture_with_gradients(
    model: nn.Module, params: Params, images: Array, score: Callable[[Array], Array]
) -> tuple[Array, Intermediates, AttentionGradients]:
    """As `capture`, plus the gradient of the number score(outputs) by each attention weight.

    The weights count as free: the gradient does not continue through their softmax. Call it under
    `jax.jit`, where `score` may close over traced values.
    """

    def forward(added: Params) -> tuple[Array, tuple[Array, Params]]:
        variables = {"params": params, "perturbations": added}
        outputs, state = model.apply(variables, images, train=False, mutable=["intermediates"])
        return score(outputs), (outputs, state["intermediates"])

    shapes = flatten(jax.eval_shape(forward, {})[1][1])
    zeros = {
        name: jnp.zeros(leaf.shape, leaf.dtype)
        for name, leaf in shapes.items()
        if name.endswith("/attention")
    }
    zeros = unflatten_dict(zeros, sep="/")
    gradients, (outputs, state) = jax.grad(forward, has_aux=True)(zeros)
    attention = [block[ATTENTION]["attention"] for block in _per_block(gradients)]
    return outputs, _collect(state), AttentionGradients(attention, _pool_attention(gradients))


def _collect(state: Params, blocks: tuple[int, ...] | None = None) -> Intermediates:
    by_block = _per_block(state)
    wanted = range(len(by_block)) if blocks is None else blocks

    def pick(get: Callable[[Params], Array]) -> list[Array | None]:
        return [get(block) if i in wanted else None for i, block in enumerate(by_block)]

    attention: list[Array | None] = []
    if "Transformer" in state:
        attention = pick(lambda block: block[ATTENTION]["attention"])
    return Intermediates(
        state["patch_embedding"],
        pick(lambda block: block["block"]),
        attention,
        state["representation"],
        _pool_attention(state),
    )


def _pool_attention(state: Params) -> Array | None:
    return state["MAPHead_0"][ATTENTION]["attention"] if "MAPHead_0" in state else None


def _per_block(state: Params) -> list[Params]:
    blocks = state.get("Transformer", state)
    if "encoderblock" in blocks:  # scanned: a leading depth axis
        stacked = blocks["encoderblock"]
        depth = jax.tree.leaves(stacked)[0].shape[0]
        return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(depth)]
    prefix = "encoderblock_" if "Transformer" in state else "MixerBlock_"
    depth = sum(name.startswith(prefix) for name in blocks)
    return [blocks[f"{prefix}{i}"] for i in range(depth)]
