"""One contestant of benchmarks.model, in a process of its own, waiting for its turns.

    python -m benchmarks.contestants NAME SPECIFICATION

Prints "ready SECONDS" (the time to build and compile). Then, for each line on standard input, it
makes the specified number of calls and prints the seconds of the fastest. Torch contestants run in
another environment, so this file imports a library only where it is needed.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable


def main() -> None:
    name, specification = sys.argv[1], json.loads(sys.argv[2])
    start = time.perf_counter()
    call = CONTESTANTS[name](specification)
    call()
    print(f"ready {time.perf_counter() - start:.2f}", flush=True)
    for _ in sys.stdin:
        print(min(timed(call) for _ in range(specification["calls"])), flush=True)


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def sgemm(specification) -> Callable[[], None]:
    """What the machine can do: one large float32 product, of `SGEMM_SIZE` cubed."""
    import numpy as np

    a, b = np.random.default_rng(0).standard_normal((2, SGEMM_SIZE, SGEMM_SIZE), np.float32)
    return lambda: np.matmul(a, b)


SGEMM_SIZE = 4096


def ours(specification) -> Callable[[], None]:
    from vit_jax import models

    config = models.full_model_config(specification["model"])
    config.dtype = specification["dtype"]
    return _jax_call(models.VisionTransformer(num_classes=1_000, **config), specification)


def linen(specification) -> Callable[[], None]:
    from benchmarks.baseline import PlainViT
    from vit_jax import models

    config = models.full_model_config(specification["model"])
    sizes = {name: config.transformer[name] for name in ("num_layers", "mlp_dim", "num_heads")}
    model = PlainViT(
        num_classes=1_000,
        patch_size=tuple(config.patches.size),
        hidden_size=config.hidden_size,
        dtype=specification["dtype"],
        **sizes,
    )
    return _jax_call(model, specification)


def _jax_call(model, specification) -> Callable[[], None]:
    """Forward pass, or train step: loss, gradient, and SGD with momentum, as torch runs it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    size, batch = specification["resolution"], specification["batch"]
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.standard_normal((batch, size, size, 3), np.float32))
    labels = jnp.asarray(rng.integers(0, 1_000, batch))
    params = jax.jit(model.init)(jax.random.key(0), images[:1])["params"]
    if specification["mode"] == "forward":
        forward = jax.jit(lambda p, x: model.apply({"params": p}, x, train=False))
        return lambda: forward(params, images).block_until_ready()

    optimizer = optax.sgd(1e-3, momentum=0.9)

    def step(params, state):
        def loss(p):
            logits = model.apply({"params": p}, images, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    kept = [params, optimizer.init(params)]

    def call():
        *kept[:], value = compiled(*kept)
        value.block_until_ready()

    return call


def timm_eager(specification) -> Callable[[], None]:
    return _timm(specification, compiled=False)


def timm_compiled(specification) -> Callable[[], None]:
    return _timm(specification, compiled=True)


def _timm(specification, *, compiled: bool) -> Callable[[], None]:
    sys.path.insert(0, specification["torchvision_stub"])
    importlib.import_module("torchvision_stub")  # timm imports it, but its ViTs do not use it
    import timm
    import torch

    size, batch = specification["resolution"], specification["batch"]
    dtype = getattr(torch, specification["dtype"])
    model = timm.create_model(TIMM_NAMES[specification["model"]], img_size=size, num_classes=1_000)
    model = model.to(dtype)
    torch.manual_seed(0)
    images = torch.randn(batch, 3, size, size, dtype=dtype)
    labels = torch.randint(0, 1_000, (batch,))
    if specification["mode"] == "forward":
        run = torch.compile(model.eval()) if compiled else model.eval()

        def forward():
            with torch.inference_mode():
                run(images)

        return forward

    run = torch.compile(model.train()) if compiled else model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(run(images).float(), labels).backward()
        optimizer.step()

    return step


TIMM_NAMES = {
    "ViT-Ti_16": "vit_tiny_patch16_224",
    "ViT-S_16": "vit_small_patch16_224",
    "ViT-B_32": "vit_base_patch32_224",
    "ViT-B_16": "vit_base_patch16_224",
    "ViT-L_16": "vit_large_patch16_224",
}
CONTESTANTS = {
    "sgemm": sgemm,
    "vit_jax": ours,
    "linen": linen,
    "timm eager": timm_eager,
    "timm compiled": timm_compiled,
}

if __name__ == "__main__":
    main()
