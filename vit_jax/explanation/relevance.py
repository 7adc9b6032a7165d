"""Which patches speak for a class: by attention and its gradients, and by gradients alone."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# Points along the path of integrated gradients.
NUM_STEPS = 32


def attention_relevance(attention: Array, gradients: Array) -> Array:  # l h n n -> n n
    """How much each input token (column) matters to each output token (row), for a class.

    Chefer, Gur & Wolf (2021): like rollout, but each weight counts by how much it speaks for the
    class (weight · gradient where positive, the mean over heads), and nothing is normalised. The
    identity it starts from is taken off again: a token matters through attention only.
    """
    identity = jnp.eye(attention.shape[-1])

    def through(relevance, layer):
        return relevance + speaking_for(*layer) @ relevance, None

    return jax.lax.scan(through, identity, (attention, gradients))[0] - identity


def speaking_for(weights: Array, gradient: Array) -> Array:  # h q k -> q k
    return jax.nn.relu(weights * gradient).mean(0)


def class_score(outputs: Array, class_index: int | Array) -> Array:
    """The score of one class: itself, or its mean over the tokens of a model that does not pool."""
    return outputs[..., class_index].mean()


@partial(jax.jit, static_argnames="model")
def integrated_gradients(
    model: nn.Module, params: Any, image: Array, class_index: int | Array
) -> Array:  # H W c -> gh gw
    """What each patch adds to a class's score, compared with an image that is all zeros (gray).

    Sundararajan, Taly & Yan (2017), along the line between the two images' patch embeddings, which
    without a ResNet is the line between the images. The patches sum to score(image) - score(gray)
    as far as NUM_STEPS points resolve the line; negative ones speak against the class.
    """
    gray, given = _patch_embeddings(model, params, jnp.stack([jnp.zeros_like(image), image]))

    def score(embedding):
        variables = {"params": params, "perturbations": {"patch_embedding": embedding - given}}
        outputs = model.apply(variables, image[None], train=False)
        return class_score(outputs, class_index)

    def accumulate(total, step):
        place, weight = step
        return total + weight * jax.grad(score)(gray + place * (given - gray)), None

    roots, weights = np.polynomial.legendre.leggauss(NUM_STEPS)  # on -1…1
    roots = (roots + 1) / 2
    # Place = root², so that points crowd near gray, where the score of a trained model rises.
    steps = jnp.asarray([roots**2, roots * weights], given.dtype).T
    mean_gradient, _ = jax.lax.scan(accumulate, jnp.zeros_like(given), steps)
    return ((given - gray) * mean_gradient).sum(-1)


def _patch_embeddings(model: nn.Module, params: Any, images: Array) -> Array:  # b gh gw d
    _, state = model.apply({"params": params}, images, train=False, mutable=["intermediates"])
    return state["intermediates"]["patch_embedding"]
