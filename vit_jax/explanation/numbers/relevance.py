"""Which patches speak for a class: by attention and its gradients, and by gradients alone."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from vit_jax.explanation.numbers.tokens import Model
from vit_jax.models import capture

NUM_STEPS = 32  # points along the path of integrated gradients


def attention_relevance(attention: Array, gradients: Array) -> Array:  # l h n n -> n n
    """How much each input token (column) matters to each output token (row), for a class.

    Chefer, Gur & Wolf (2021): like rollout, but each weight counts by how much it speaks for the
    class (weight · gradient where positive, averaged over heads), and nothing is normalised. The
    identity it starts from is subtracted at the end: a token matters only through attention.
    """
    identity = jnp.eye(attention.shape[-1])

    def through(relevance: Array, layer: tuple[Array, Array]) -> tuple[Array, None]:
        return relevance + positive_evidence(*layer) @ relevance, None

    return jax.lax.scan(through, identity, (attention, gradients))[0] - identity


def positive_evidence(weights: Array, gradient: Array) -> Array:  # h q k -> q k
    return jax.nn.relu(weights * gradient).mean(0)


def class_score(outputs: Array, class_index: int | Array) -> Array:
    """The score of a class, averaged over tokens where the model does not pool them."""
    return outputs[..., class_index].mean()


@partial(jax.jit, static_argnames="model")
def integrated_gradients(
    model: Model, params: Mapping[str, Any], image: Array, class_index: int | Array
) -> Array:  # H W c -> gh gw
    """What each patch adds to the score of a class, compared with an image of zeros (gray).

    Sundararajan, Taly & Yan (2017), along the line between the patch embeddings of the two images;
    without a ResNet that is the line between the images themselves. The patches sum to
    score(image) - score(gray), as closely as NUM_STEPS points resolve the line; negative values
    speak against the class.
    """
    both = jnp.stack([jnp.zeros_like(image), image])
    gray, given = capture(model, params, both, blocks=())[1].patch_embedding

    def score(embedding: Array) -> Array:
        variables = {"params": params, "perturbations": {"patch_embedding": embedding - given}}
        outputs = model.apply(variables, image[None], train=False)
        return class_score(cast(Array, outputs), class_index)

    def accumulate(total: Array, step: Array) -> tuple[Array, None]:
        place, weight = step
        return total + weight * jax.grad(score)(gray + place * (given - gray)), None

    roots, weights = np.polynomial.legendre.leggauss(NUM_STEPS)  # on -1…1
    roots = (roots + 1) / 2
    # Squared, so that points crowd near gray, where the score of a trained model rises.
    steps = jnp.asarray([roots**2, roots * weights], given.dtype).T
    mean_gradient, _ = jax.lax.scan(accumulate, jnp.zeros_like(given), steps)
    return ((given - gray) * mean_gradient).sum(-1)
