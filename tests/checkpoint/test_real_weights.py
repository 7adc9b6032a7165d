"""A real trained ViT on real photographs."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import checkpoint, models

pytestmark = pytest.mark.shared


def read_photo(path):
    """Shorter side to 256 with antialiasing, the central 224×224, values in [-1, 1]."""
    with Image.open(path) as image:
        scale = 256 / min(image.size)
        image = image.convert("RGB").resize(
            [round(side * scale) for side in image.size], Image.Resampling.BILINEAR
        )
        left, top = ((side - 224) // 2 for side in image.size)
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
    return pixels / 127.5 - 1


def test_the_eight_photographs_get_the_references_top_five(shared):
    real = shared / "real"
    labels = (real / "labels.txt").read_text().splitlines()
    expected = json.loads((real / "expected_top5.json").read_text())
    params = checkpoint.load(real / "Ti_16-tinyimagenet200.npz")
    model = models.get_model("ViT-Ti_16", num_classes=len(labels))
    images = np.stack([read_photo(real / "photos" / name) for name in expected])
    logits = jax.jit(lambda p, x: model.apply({"params": p}, x))(params, images)
    probabilities = np.asarray(jax.nn.softmax(logits))
    for row, (name, top5) in zip(probabilities, expected.items(), strict=True):
        best = np.argsort(-row)[:5]
        assert [labels[i] for i in best] == [label for label, _ in top5], name
        # recorded to four decimals; the resize may differ in the last bit of a pixel
        np.testing.assert_allclose(row[best], [p for _, p in top5], atol=2e-3)
