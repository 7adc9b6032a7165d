"""Peak memory beyond the weights, by batch size and sequence length.

    python -m benchmarks.memory [--model ViT-B_16] [--out FILE]

Each case runs in a process of its own. Its peak is the kernel's own count (VmHWM), from when the
weights are in memory to the end of the second call.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from benchmarks import machine

CASES = [
    # mode, resolution, batch, remat
    ("forward", 224, 1, None),
    ("forward", 224, 8, None),
    ("forward", 512, 1, None),
    ("forward", 1024, 1, None),
    ("forward", 1448, 1, None),  # twice the tokens of 1,024 pixels
    ("train", 224, 1, None),
    ("train", 224, 8, None),
    ("train", 224, 8, "full"),
    ("train", 1024, 1, "full"),
]


def measure(model: str = "ViT-B_16") -> dict:
    rows = []
    for mode, resolution, batch, remat in CASES:
        case = {"mode": mode, "resolution": resolution, "batch": batch, "remat": remat}
        command = [sys.executable, "-m", "benchmarks.memory", "--one", json.dumps(case)]
        result = subprocess.run(
            [*command, "--model", model], capture_output=True, text=True, check=True
        )
        rows.append(case | json.loads(result.stdout))
    return {"model": model, "MB over the weights": rows}


def one(model_name: str, case: dict) -> dict:
    import jax
    import jax.numpy as jnp

    from vit_jax import models

    config = models.full_model_config(model_name)
    config.remat = case["remat"]
    model = models.VisionTransformer(num_classes=1_000, **config)
    side = case["resolution"] // 16 * 16
    images = jnp.ones((case["batch"], side, side, 3))
    shapes = jax.eval_shape(model.init, jax.random.key(0), images[:1])["params"]
    params = jax.tree.map(lambda s: jnp.full(s.shape, 0.01, s.dtype), shapes)

    def forward(params):
        return model.apply({"params": params}, images, train=case["mode"] == "train")

    def loss_gradient(params):
        return jax.grad(lambda p: forward(p).mean())(params)

    run = jax.jit(forward if case["mode"] == "forward" else loss_gradient)
    compiled = run.lower(params).compile()
    jax.block_until_ready(params)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    for _ in range(2):
        jax.block_until_ready(compiled(params))
    tokens = (side // 16) ** 2 + 1
    return {"tokens": tokens, "MB": round((_status("VmHWM") - before) / 1e3)}


def _status(name: str) -> int:
    """In kB."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-B_16")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.model, json.loads(args.one))))
    else:
        machine.report(measure(args.model), args.out)


if __name__ == "__main__":
    main()
