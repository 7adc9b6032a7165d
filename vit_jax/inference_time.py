"""How many images a second a model classifies: the reference's speed measurement."""

import csv
import logging
import time

import jax
import jax.numpy as jnp
import ml_collections
from etils import epath

from vit_jax.data import preprocessing

log = logging.getLogger("vit_jax.inference_time")
SECONDS = 3.0  # of timing for each batch size


def inference_time(config: ml_collections.ConfigDict, model, workdir: epath.PathLike) -> None:
    """Times batches of 1, 2, 4, … up to config.batch_eval; a row each in inference_time.csv."""
    height, width = preprocessing(config).crop
    images = jnp.zeros((1, height, width, config.pp.channels))
    variables = jax.jit(model.init)(jax.random.key(config.seed), images)
    apply = jax.jit(lambda variables, images: model.apply(variables, images, train=False))
    rows, batch = [], 1
    while batch <= config.batch_eval:
        images = jnp.zeros((batch, height, width, config.pp.channels))
        apply(variables, images).block_until_ready()
        best, deadline = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < deadline:
            start = time.perf_counter()
            apply(variables, images).block_until_ready()
            best = min(best, time.perf_counter() - start)
        rows.append((config.model.model_name, height, width, batch, round(batch / best, 2)))
        log.info("batch %d: %.2f images/s", batch, batch / best)
        batch *= 2
    path = epath.Path(workdir) / "inference_time.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("model_name", "height", "width", "batch", "images_per_second"))
        writer.writerows(rows)
    log.info("Best: %.2f images/s. Wrote %s.", max(row[-1] for row in rows), path)
