"""Our forward pass and train step compared with plain linen and timm, in one run, as ratios.

    python -m benchmarks.model [--model ViT-S_16 --mode train --batch 16 --dtype float32]
        [--peers_python=PYTHON_WITH_TORCH_AND_TIMM] [--out FILE]

Each contestant has a process of its own, compiled and warm. They take turns, so that other load on
the machine affects them all alike; the best of all turns counts. `vit_jax` runs with huge pages, as
our commands do; plain linen runs both without them, as a user runs it today, and with them. Rates
are compared with what NumPy's sgemm reaches in the same turns.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

from benchmarks import machine
from benchmarks.contestants import SGEMM_SIZE
from vit_jax import models
from vit_jax.cli.huge_pages import TUNABLE

STUB = pathlib.Path(__file__).parents[2] / "shared" / "tools"
HUGE_PAGES = {"GLIBC_TUNABLES": TUNABLE}


class Contestant:
    def __init__(self, name: str, specification: dict, *, python=sys.executable, environment=None):
        self.seconds: list[float] = []
        clean = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
        program = ["-m", "benchmarks.contestants"]
        if python != sys.executable:  # an environment without our package
            program = [str(pathlib.Path(__file__).with_name("contestants.py"))]
        self._process = subprocess.Popen(
            [python, *program, name, json.dumps(specification)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean | (environment or {}),
        )
        self.compile_seconds = float(self._answer().removeprefix("ready"))

    def turn(self) -> None:
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.seconds.append(float(self._answer()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return line


def measure(
    model: str,
    mode: str,
    batch: int,
    *,
    resolution: int = 224,
    dtype: str = "float32",
    calls: int = 2,
    rounds: int = 4,
    peers_python: str | None = None,
) -> dict:
    specification = {
        "model": model,
        "mode": mode,
        "batch": batch,
        "resolution": resolution,
        "dtype": dtype,
        "calls": calls,
    }
    with_stub = specification | {"torchvision_stub": str(STUB)}
    contestants = {
        "sgemm": Contestant("sgemm", specification | {"calls": 2}),
        "vit_jax": Contestant("vit_jax", specification, environment=HUGE_PAGES),
        "linen": Contestant("linen", specification),
        "linen, huge pages": Contestant("linen", specification, environment=HUGE_PAGES),
    }
    if peers_python:
        for name in ("timm eager", "timm compiled"):
            contestants[name] = Contestant(name, with_stub, python=peers_python)
    for _ in range(rounds):
        for contestant in contestants.values():
            contestant.turn()
    for contestant in contestants.values():
        contestant.close()

    machine_rate = 2 * SGEMM_SIZE**3 / min(contestants.pop("sgemm").seconds)
    work = specification["batch"] * flops_per_image(specification)
    best = {name: min(c.seconds) for name, c in contestants.items()}
    return specification | {
        "sgemm GFLOP/s": round(machine_rate / 1e9, 1),
        "contestants": {
            name: {
                "img/s": round(specification["batch"] / seconds, 2),
                "of sgemm": round(work / seconds / machine_rate, 3),
                "vit_jax is faster by": round(seconds / best["vit_jax"], 3),
                "compile seconds": contestants[name].compile_seconds,
                "img/s of each turn": [
                    round(specification["batch"] / s, 2) for s in contestants[name].seconds
                ],
            }
            for name, seconds in best.items()
        },
    }


def flops_per_image(specification: dict) -> float:
    """Only matrix products count; a train step has three times as many as a forward pass."""
    config = models.full_model_config(specification["model"])
    height, width = config.patches.size
    d, m = config.hidden_size, config.transformer.mlp_dim
    patches = (specification["resolution"] // height) * (specification["resolution"] // width)
    n = patches + 1
    block = 2 * n * d * (4 * d + 2 * m) + 4 * n * n * d
    forward = 2 * patches * height * width * 3 * d + config.transformer.num_layers * block
    return forward * (3 if specification["mode"] == "train" else 1)


def table(results: dict) -> str:
    rows = [
        f"{results['model']} {results['mode']}, batch {results['batch']}, "
        f"{results['resolution']} px, {results['dtype']}; sgemm {results['sgemm GFLOP/s']} GFLOP/s"
    ]
    for name, row in results["contestants"].items():
        rows.append(
            f"  {name:<18} {row['img/s']:8.2f} img/s  {row['of sgemm']:.2f} of sgemm  "
            f"vit_jax is {row['vit_jax is faster by']:.2f}×"
        )
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-S_16")
    parser.add_argument("--mode", choices=("forward", "train"), default="train")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--resolution", type=int, default=224)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", type=int, default=2, help="calls per turn; the best counts")
    parser.add_argument("--peers_python", help="a Python that has torch and timm")
    parser.add_argument("--out")
    args = parser.parse_args()
    options = vars(args)
    out = options.pop("out")
    results = measure(**options)
    machine.report(results, out)
    print(table(results))


if __name__ == "__main__":
    main()
