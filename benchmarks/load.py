"""Time and memory to load an official ViT-B/16 file.

    python -m benchmarks.load [--out benchmarks/results/load.json]

Writes a 343 MB file, then compares, in turns within one run, best of N: reading its arrays with
NumPy, `checkpoint.load`, and restoring it through Orbax onto the device. Peak memory is that of a
fresh process above its baseline after imports, as a multiple of the size of the parameters.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks import machine

ROUNDS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="write the figures to this JSON file")
    parser.add_argument("--model", default="ViT-B_16")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.model, args.path)
        return

    with tempfile.TemporaryDirectory() as directory:
        path = str(pathlib.Path(directory) / "model.npz")
        size = make_file(args.model, path)
        figures = {
            "model": args.model,
            "bytes": size,
            **times(args.model, path),
            "peak": {way: peak(way, args.model, path) for way in ("load", "restore")},
        }
    figures |= machine.about()
    print(json.dumps(figures, indent=1))
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(figures, indent=1) + "\n")


def make_file(name: str, path: str) -> int:
    import jax

    from vit_jax import checkpoint

    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s: rng.standard_normal(s.shape, np.float32), abstract_params(name))
    checkpoint.save(params, path)
    return sum(x.nbytes for x in jax.tree.leaves(params))


def abstract_params(name: str):
    import jax
    import jax.numpy as jnp

    from vit_jax import models

    model = models.get_model(name, num_classes=1000)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), images)["params"]


def ways(name: str, path: str):
    import jax

    from vit_jax import checkpoint

    target = abstract_params(name)

    def numpy():
        with np.load(path) as file:
            return {key: file[key] for key in file.files}

    def load():
        return checkpoint.load(path)

    def restore():
        checkpointer = checkpoint.OfficialCheckpointer()
        args = checkpoint.OfficialRestore(target)
        return jax.block_until_ready(checkpointer.restore(path, args=args))

    return {"numpy": numpy, "load": load, "restore": restore}


def times(name: str, path: str) -> dict[str, float]:
    contestants = ways(name, path)
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(ROUNDS):
        for way, run in contestants.items():
            start = time.perf_counter()
            result = run()
            best[way] = min(best[way], time.perf_counter() - start)
            del result
    return {
        "seconds": {way: round(value, 3) for way, value in best.items()},
        "load / numpy": round(best["load"] / best["numpy"], 2),
        "restore / numpy": round(best["restore"] / best["numpy"], 2),
    }


def peak(way: str, name: str, path: str) -> float:
    """Peak memory of a process that does nothing else, above its baseline, as a multiple of the
    size of the parameters.
    """
    options = ["--child", way, "--model", name, "--path", path]
    command = [sys.executable, "-m", "benchmarks.load", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout.splitlines()[-1])


def child(way: str, name: str, path: str) -> None:
    import jax
    import jax.numpy as jnp

    run = ways(name, path)[way]
    jnp.ones(3).block_until_ready()  # the runtime's own memory belongs to the baseline
    baseline = resident()
    params = run()
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(round((peak - baseline) / size, 3))


def resident() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
