"""Recorded behaviour of google-research/vision_transformer, as tests want it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

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
        module = models.MlpMixer if "num_blocks" in self.config else models.VisionTransformer
        return module(num_classes=self.num_classes, **{**self.config, **overrides})

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
