"""Compile time of a train step by depth, with and without a scan over the layers.

    python -m benchmarks.compile [--out FILE]

ViT-S/16 with 4 to 32 layers. Every program is compiled afresh, in turns, best of N.
"""

import time

import jax
import jax.numpy as jnp

from benchmarks import machine
from vit_jax import models

DEPTHS = (4, 8, 16, 32)
ROUNDS = 2


def measure() -> dict:
    jax.config.update("jax_enable_compilation_cache", False)
    cases = [(scan, depth) for scan in (True, False) for depth in DEPTHS]
    seconds = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            seconds[case].append(compile_seconds(*case))
    best = {case: round(min(times), 2) for case, times in seconds.items()}
    return {
        "compile seconds": {
            name: {depth: best[scan, depth] for depth in DEPTHS}
            for name, scan in (("scanned", True), ("unrolled", False))
        },
        "scanned, 32 layers / 4": round(best[True, 32] / best[True, 4], 3),
    }


def compile_seconds(scan: bool, depth: int) -> float:
    config = models.full_model_config("ViT-S_16")
    config.transformer.num_layers = depth
    config.scan = scan
    model = models.VisionTransformer(num_classes=1_000, **config)
    images = jax.ShapeDtypeStruct((8, 224, 224, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    if scan:
        params = jax.eval_shape(models.stack_blocks, params)

    def loss(params, images):
        return model.apply({"params": params}, images, train=True).mean()

    jax.clear_caches()
    start = time.perf_counter()
    jax.jit(jax.grad(loss)).lower(params, images).compile()
    return time.perf_counter() - start


if __name__ == "__main__":
    machine.command(__doc__, measure)
