"""Recorded behaviour of google-research/vision_transformer, as tests want it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import checkpoint, models

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("vit_token", "vit_gap", "vit_prelogits", "vit_token_unpooled", "hybrid", "mixer")


class Golden(NamedTuple):
    path: Path
    config: dict[str, Any]
    num_classes: int
    images: np.ndarray
    outputs: np.ndarray

    def model(self, **overrides):
        return models.build_model({**self.config, **overrides}, self.num_classes)

    def params(self):
        return checkpoint.load(self.path)


def golden(name: str) -> Golden:
    about = json.loads((GOLDEN / f"{name}.json").read_text())
    with np.load(GOLDEN / f"{name}.io.npz") as io:
        return Golden(
            GOLDEN / f"{name}.npz",
            about["model"],
            about["num_classes"],
            io["images"],
            io["outputs"],
        )


def load_with_card(path, **options) -> tuple[dict[str, Any], checkpoint.Card]:
    with checkpoint.open(path, **options) as found:
        return found.params(), found.card


def make_card(*, model, num_classes, **fields) -> checkpoint.Card:
    """`model` is the model's configuration."""
    return checkpoint.Card(models.build_model(dict(model), num_classes), **fields)


def random_params(model, images, scale: float = 0.2):
    """Weights for a model, none of them zero, so that every weight matters; nothing is compiled."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return rng.normal(mean, scale, leaf.shape).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)
