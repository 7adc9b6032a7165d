"""MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019), on the device, for a whole batch at once.

The partner of an example is the one at its place in the reversed batch: in an even batch no example
is its own partner, and no permutation has to be drawn.
"""

import jax
import jax.numpy as jnp
from jax import Array


def mix(
    key: Array, images: Array, targets: Array, *, mixup: float, cutmix: float
) -> tuple[Array, Array]:
    """Mixes images `b h w c` and targets `b k`, with one share for the whole batch.

    `mixup` and `cutmix` are the parameters of their Beta distributions, 0 for off; with both on,
    each batch gets one or the other.
    """
    if not mixup and not cutmix:
        return images, targets
    choose, draw, place = jax.random.split(key, 3)
    if mixup and cutmix:
        return jax.lax.cond(
            jax.random.bernoulli(choose),
            lambda: _mixup(draw, images, targets, mixup),
            lambda: _cutmix(draw, place, images, targets, cutmix),
        )
    if mixup:
        return _mixup(draw, images, targets, mixup)
    return _cutmix(draw, place, images, targets, cutmix)


def _mixup(key: Array, images: Array, targets: Array, alpha: float) -> tuple[Array, Array]:
    share = jax.random.beta(key, alpha, alpha)
    return _blend(images, share.astype(images.dtype)), _blend(targets, share)


def _cutmix(
    draw: Array, place: Array, images: Array, targets: Array, alpha: float
) -> tuple[Array, Array]:
    """Pastes a rectangle of the partner; targets follow its area inside the image."""
    _, h, w, _ = images.shape
    side = jnp.sqrt(1 - jax.random.beta(draw, alpha, alpha))
    centre = jax.random.uniform(place, (2,)) * jnp.array([h, w])
    half = side * jnp.array([h, w]) / 2
    low, high = jnp.round(centre - half), jnp.round(centre + half)
    rows, columns = jnp.arange(h), jnp.arange(w)
    pasted = ((rows >= low[0]) & (rows < high[0]))[:, None] & (
        (columns >= low[1]) & (columns < high[1])
    )
    images = jnp.where(pasted[None, :, :, None], images[::-1], images)
    return images, _blend(targets, 1 - pasted.mean())


def _blend(x: Array, share: Array) -> Array:
    return share * x + (1 - share) * x[::-1]
