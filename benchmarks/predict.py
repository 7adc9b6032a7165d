"""Speed of predict on a folder of JPEGs, compared with decoding plus the bare model; its memory.

    python -m benchmarks.predict [--images 500] [--out benchmarks/results/predict.json]

Bare: all files are decoded by the same code in as many threads, then all batches go through the
jitted model, and the two times are added. Predict: the whole command, from listing the files to
printing, with its programs compiled beforehand. They take turns in one process; the best round
counts. Memory: the peak of a separate process, for a fifth of the files, for all of them, and for
all of them four times over.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import vit_jax
from benchmarks import input as input_benchmark
from benchmarks import machine
from vit_jax import checkpoint, classifier, models, predict

ROUNDS = 4
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--photos", type=Path, help="a folder of JPEGs to use, at 500 x 375")
    parser.add_argument("--model", default="ViT-Ti_16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder, weights = Path(directory) / "images", Path(directory) / "model.npz"
        folder.mkdir()
        input_benchmark.make_files(folder, options)
        make_checkpoint(options.model, weights)
        figures = measure(folder, weights)
        figures["peak memory, MB"] = memory(folder, weights, options.images)
    figures |= {"model": options.model, "images": options.images, "batch": BATCH}
    figures |= machine.about(("jax", "flax", "numpy", "simplejpeg", "pillow"))
    print(json.dumps(figures, indent=1))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


def make_checkpoint(name: str, path: Path) -> None:
    model = models.get_model(name, num_classes=1_000)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 224, 224, 3)))["params"]
    checkpoint.save(params, path)


def measure(folder: Path, weights: Path) -> dict:
    loaded = vit_jax.load(weights)
    paths = sorted(folder.glob("*/*.jpg"))
    with contextlib.redirect_stdout(open(os.devnull, "w")):  # noqa: PTH123
        rounds = [one_round(loaded, paths, folder, weights) for _ in range(ROUNDS + 1)][1:]
    decode, forward, command = (min(column) for column in zip(*rounds, strict=True))
    rates = {
        "decode": len(paths) / decode,
        "forward": len(paths) / forward,
        "bare: decode, then forward": len(paths) / (decode + forward),
        "predict": len(paths) / command,
    }
    return {
        "images a second": {name: round(rate, 1) for name, rate in rates.items()},
        "predict / bare": round((decode + forward) / command, 3),
        "seconds in every round: decode, forward, predict": [
            [round(part, 2) for part in row] for row in rounds
        ],
    }


def one_round(loaded, paths: list[Path], folder: Path, weights: Path) -> tuple[float, float, float]:
    start = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = list(pool.map(lambda path: loaded.transform(path.read_bytes()), paths))
    decoded = time.perf_counter()
    batches = [np.stack(images[i : i + BATCH]) for i in range(0, len(images), BATCH)]
    batches = [classifier.pad(batch, BATCH) for batch in batches]
    stacked = time.perf_counter()
    for batch in batches:
        classifier._probabilities(loaded.model, "softmax", loaded.params, batch).block_until_ready()
    forwarded = time.perf_counter()
    code = predict.main([str(weights), str(folder), f"--batch_size={BATCH}"])
    assert code == 0
    return decoded - start, forwarded - stacked, time.perf_counter() - forwarded


def memory(folder: Path, weights: Path, images: int) -> dict:
    """Peak resident memory of the command, by the number of files."""
    paths = sorted(map(str, folder.glob("*/*.jpg")))
    peaks = {}
    for count in (images // 5, images, 4 * images):
        names = "\n".join((paths * 4)[:count])
        program = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        command = [sys.executable, "-m", "vit_jax.predict", str(weights), "-", "--format=csv"]
        result = subprocess.run(
            [sys.executable, "-c", program, *command],
            input=names,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[f"{count} files"] = round(int(result.stdout.splitlines()[-1]) / 1024)
    return peaks


if __name__ == "__main__":
    main()
