"""What the time of a forward pass or train step is spent on.

    python -m benchmarks.parts [--model ViT-S_16 --mode train --batch 16 --layers 6] [--out FILE]

Three figures, in turns in one process, best of N: the model; its matrix products alone, each shape
by itself under XLA, as often as it occurs in the model; and the time they would take at the rate of
NumPy's sgemm. The second minus the third is what XLA's products lose; the first minus the second is
everything else. Then the model again, with one kind of operation left out at a time.
"""

from vit_jax.cli.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()

import argparse
import collections
import math
import time
from collections.abc import Callable, Iterator
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import machine
from benchmarks.contestants import SGEMM_SIZE
from vit_jax import models
from vit_jax.models import layers

LEFT_OUT = {
    "GELU": lambda: mock.patch.dict(layers.GELU, tanh=lambda x: x),
    "LayerNorm": lambda: mock.patch.object(nn.LayerNorm, "__call__", lambda _, x: x),
    "softmax": lambda: mock.patch("jax.nn.softmax", lambda x, axis: x),
}


Product = tuple[str, tuple[int, ...], tuple[int, ...]]  # einsum, shapes of its two operands


def measure(name: str, mode: str, batch: int, num_layers: int, rounds: int) -> dict:
    config = models.full_model_config(name)
    config.transformer.num_layers = num_layers
    calls = compiled_models(config, mode, batch)
    counts = collections.Counter(products(config, mode, batch))
    calls |= {product: compiled_product(*product) for product in counts}
    a = np.random.default_rng(0).standard_normal((SGEMM_SIZE, SGEMM_SIZE), np.float32)
    calls["sgemm"] = lambda: a @ a

    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for title, call in calls.items():
            for _ in range(3):
                start = time.perf_counter()
                call()
                best[title] = min(best[title], time.perf_counter() - start)

    rate = 2 * SGEMM_SIZE**3 / best["sgemm"]
    ideal = sum(count * flops(*product) for product, count in counts.items()) / rate
    alone = sum(count * best[product] for product, count in counts.items())
    rows = {"model": best["model"], "its products alone": alone, "the same at sgemm's rate": ideal}
    rows |= {title: best[title] for title in best if str(title).startswith("without")}
    return {
        "what": f"{name}, {num_layers} layers, {mode}, batch {batch}",
        "ms": {title: round(1e3 * seconds, 1) for title, seconds in rows.items()},
        "of sgemm": {title: round(ideal / rows[title], 3) for title in list(rows)[:2]},
        "sgemm GFLOP/s": round(rate / 1e9, 1),
    }


def compiled_models(config, mode: str, batch: int) -> dict[str, Callable]:
    """The model, and the model without each of LEFT_OUT."""
    model = models.VisionTransformer(num_classes=1_000, **config)
    images = jax.random.normal(jax.random.key(0), (batch, 224, 224, 3))
    labels = jnp.arange(batch)
    params = jax.jit(model.init)(jax.random.key(0), images[:1])["params"]

    def forward(params):
        return model.apply({"params": params}, images, train=mode == "train")

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(forward(params), labels).mean()

    def compiled() -> Callable:
        function = forward if mode == "forward" else jax.grad(loss)
        program = jax.jit(lambda params: function(params)).lower(params).compile()
        return lambda: jax.block_until_ready(program(params))

    calls = {"model": compiled()}
    for part, left_out in LEFT_OUT.items():
        with left_out():
            calls[f"without {part}"] = compiled()
    return calls


def products(config, mode: str, batch: int) -> Iterator[Product]:
    """Every matrix product of the model but that of the head, which is small."""
    d, m, h = config.hidden_size, config.transformer.mlp_dim, config.transformer.num_heads
    num_patches, patch = (224 // config.patches.size[0]) ** 2, config.patches.size[0] ** 2 * 3
    n = num_patches + 1
    train = mode == "train"
    yield from dense(batch * num_patches, patch, d, train, is_first=True)
    for _ in range(config.transformer.num_layers):
        for inputs, outputs in ((d, 3 * d), (d, d), (d, m), (m, d)):
            yield from dense(batch * n, inputs, outputs, train)
        tokens, weights = (batch * h, n, d // h), (batch * h, n, n)
        yield "bqe,bke->bqk", tokens, tokens
        yield "bqk,bke->bqe", weights, tokens
        if train:  # gradients of the weights, the values, the queries and the keys
            yield "bqe,bke->bqk", tokens, tokens
            yield "bqk,bqe->bke", weights, tokens
            yield "bqk,bke->bqe", weights, tokens
            yield "bqk,bqe->bke", weights, tokens


def dense(rows, inputs, outputs, train: bool, *, is_first: bool = False) -> Iterator[Product]:
    yield "rk,kn->rn", (rows, inputs), (inputs, outputs)
    if train:
        yield "rk,rn->kn", (rows, inputs), (rows, outputs)
    if train and not is_first:  # the gradient with respect to the image is not needed
        yield "rn,kn->rk", (rows, outputs), (inputs, outputs)


def compiled_product(einsum: str, left: tuple[int, ...], right: tuple[int, ...]) -> Callable:
    a, b = (jax.random.normal(jax.random.key(0), shape) for shape in (left, right))
    program = jax.jit(lambda a, b: jnp.einsum(einsum, a, b)).lower(a, b).compile()
    return lambda: program(a, b).block_until_ready()


def flops(einsum: str, left: tuple[int, ...], right: tuple[int, ...]) -> int:
    names = einsum.partition("->")[0].split(",")
    sizes = dict(zip(names[0] + names[1], (*left, *right), strict=True))
    return 2 * math.prod(sizes.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-S_16")
    parser.add_argument("--mode", choices=("forward", "train"), default="train")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out")
    args = parser.parse_args()
    figures = measure(args.model, args.mode, args.batch, args.layers, args.rounds)
    machine.report(figures, args.out)


if __name__ == "__main__":
    main()
