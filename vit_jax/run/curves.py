"""curves.png: loss, accuracy and learning rate over the steps of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vit_jax.atomic import replacing

# Okabe and Ito's colours, which everyone can tell apart.
_LINES = {
    "train": ("#0072B2", "training"),
    "test": ("#D55E00", "test"),
    "test_ema": ("#009E73", "test, averaged weights"),
}
_PANELS = (
    ("Loss", ("train/loss", "test/loss", "test_ema/loss"), "log"),
    ("Test accuracy (%)", ("test/accuracy", "test_ema/accuracy"), "linear"),
    ("Learning rate", ("train/learning_rate",), "linear"),
)


def draw_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws the rows of metrics.jsonl in place of the picture that was there."""
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    for axes, (title, names, scale) in zip(figure.subplots(1, 3), _PANELS, strict=True):
        for name in names:
            points = {row["step"]: row[name] for row in rows if name in row}
            if not points:
                continue
            color, label = _LINES[name.split("/")[0]]
            factor = 100 if "accuracy" in name else 1
            values = [factor * value for value in points.values()]
            marker = "o" if len(points) < 25 else None
            axes.plot([*points], values, color=color, label=label, marker=marker, ms=3, lw=1.5)
        axes.set(title=title, xlabel="Step", yscale=scale)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(frameon=False)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120)
