"""How many images per second a model classifies: the reference's measurement of speed.

    python -m benchmarks.inference_time ViT-B_32 [--batch 16] [--resolution 224] [--out FILE.csv]

Times batches of 1, 2, 4, … up to --batch, prints a line for each, and writes a CSV table.
"""

from vit_jax.cli.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

from vit_jax import models

COLUMNS = ("model_name", "height", "width", "batch", "images_per_second")


def measure(name: str, largest: int, side: int, seconds: float) -> Iterator[tuple]:
    """A row of the table for each batch size; the fastest run within `seconds` counts."""
    model = models.get_model(name, num_classes=1_000)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, side, side, 3)))
    apply = jax.jit(lambda variables, images: model.apply(variables, images, train=False))
    batch = 1
    while batch <= largest:
        images = jnp.zeros((batch, side, side, 3))
        apply(variables, images).block_until_ready()
        best, deadline = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            start = time.perf_counter()
            apply(variables, images).block_until_ready()
            best = min(best, time.perf_counter() - start)
        yield name, side, side, batch, round(batch / best, 2)
        batch *= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="ViT-B_32, b32, Mixer-B_16, …")
    parser.add_argument("--batch", type=int, default=16, help="the largest batch [16]")
    parser.add_argument("--resolution", type=int, default=224, help="side of the images [224]")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each batch [3]")
    parser.add_argument("--out", type=Path, default="inference_time.csv")
    args = parser.parse_args()
    name = models.find_model(args.model)
    rows = []
    for row in measure(name, args.batch, args.resolution, args.seconds):
        print(f"{name}, batch {row[-2]}: {row[-1]} images/s", flush=True)
        rows.append(row)
    with args.out.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    print(f"Best: {max(row[-1] for row in rows)} images/s. Wrote {args.out}.")


if __name__ == "__main__":
    main()
