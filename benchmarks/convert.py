"""Time and memory of a conversion, compared with a plain copy of the same bytes.

    python -m benchmarks.convert [--model ViT-L_16] [--repeats 5] [--out
    benchmarks/results/convert.json]

Each repeat times `np.fromfile(a).tofile(b)` of the source file, the same in pieces of 16 MiB, and
the conversion, in changing order, so that all run under the same conditions. Memory is the peak
resident set of a process that does a single conversion, including the interpreter and its
libraries, as a multiple of the size of the weights.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import machine
from vit_jax import checkpoint, models

ROUTES = (("timm", "npz"), ("npz", "timm"), ("hf", "npz"), ("npz", "hf"), ("timm", "hf"))
NAMES = {"npz": "model.npz", "timm": "model.safetensors", "hf": "hf"}


def make_source(model_name: str, path: Path) -> int:
    """A random model as an official .npz; returns the size of its weights in bytes."""
    config = models.model_config(model_name).to_dict()
    model = models.build_model(config, 1000)
    card = checkpoint.Card(model, (14, 14), source="random")
    image = jax.ShapeDtypeStruct((1, *card.image_size, 3), np.float32)
    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x)["params"], image)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), shapes)
    checkpoint.save(params, path, card=card)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def weights_file(path: Path) -> Path:
    return path / "model.safetensors" if path.is_dir() else path


def copy(source: Path, target: Path) -> float:
    start = time.perf_counter()
    np.fromfile(weights_file(source), np.uint8).tofile(target)
    return time.perf_counter() - start


def copy_in_pieces(source: Path, target: Path) -> float:
    """In pieces of 16 MiB: like a conversion, it does not need memory for the whole file."""
    start = time.perf_counter()
    with weights_file(source).open("rb") as a, target.open("wb") as b:
        while (piece := np.fromfile(a, np.uint8, 16 << 20)).size:
            piece.tofile(b)
    return time.perf_counter() - start


def convert(source: Path, target: Path, to: str) -> float:
    start = time.perf_counter()
    checkpoint.convert(source, target, to=to)
    return time.perf_counter() - start


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def peak_memory(source: Path, target: Path, to: str) -> dict[str, float]:
    program = [
        sys.executable,
        "-m",
        "benchmarks.convert",
        "--convert",
        str(source),
        str(target),
        to,
    ]
    found = subprocess.run(program, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def one_conversion(source: str, target: str, to: str) -> None:
    before = peak_resident()
    checkpoint.convert(source, target, to=to)
    print(json.dumps({"before": before, "peak": peak_resident()}))


def peak_resident() -> int:
    """In bytes. Not from getrusage, whose peak a child process inherits from its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-L_16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--convert", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.convert:
        one_conversion(*args.convert)
        return
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        sources = {kind: work / name for kind, name in NAMES.items()}
        size = make_source(args.model, sources["npz"])
        for kind in ("timm", "hf"):
            checkpoint.convert(sources["npz"], sources[kind], to=kind)
        results = {}
        for source, to in ROUTES:
            target = work / "out" / NAMES[to]
            target.parent.mkdir(exist_ok=True)
            runs = {
                "copy": lambda a=sources[source]: copy(a, work / "copy"),
                "copy in pieces": lambda a=sources[source]: copy_in_pieces(a, work / "copy"),
                "convert": lambda a=sources[source], b=target, to=to: convert(a, b, to),
            }
            seconds = {name: [] for name in runs}
            for repeat in range(args.repeats):
                names = list(runs)
                for name in names[repeat % 3 :] + names[: repeat % 3]:
                    seconds[name].append(runs[name]())
                    remove(work / "copy")
                    remove(target)
            memory = peak_memory(sources[source], target, to)
            remove(target)
            medians = {name: statistics.median(values) for name, values in seconds.items()}
            results[f"{source} -> {to}"] = {
                **{f"{name} s": round(value, 2) for name, value in medians.items()},
                "convert / copy": round(medians["convert"] / medians["copy"], 2),
                "convert / copy in pieces": round(
                    medians["convert"] / medians["copy in pieces"], 2
                ),
                "peak memory / size": round(memory["peak"] / size, 2),
                "of that the interpreter": round(memory["before"] / size, 2),
            }
            print(f"{source} -> {to}", results[f"{source} -> {to}"], flush=True)
    if args.out:
        about = {**machine.about(), "model": args.model, "bytes": size}
        args.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
