"""CIFAR-10 from pretrained weights and from scratch, with the same settings: table and curves.

    python -m benchmarks.transfer WEIGHTS TFDS_DATA_DIR RUNS [--draw_only] [--picture OUT.png]

Trains the two models one after the other in RUNS/pretrained and RUNS/scratch (about a quarter of an
hour each on two cores), and prints the accuracies for the table in docs/experiments.md.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from matplotlib.figure import Figure

SETTINGS = {
    "pp.train": "train[:10000]",
    "pp.crop": 128,
    "batch": 64,
    "batch_eval": 200,
    "accum_steps": 1,
    "total_steps": 250,
    "warmup_steps": 25,
    "optimizer": "adamw",
    "base_lr": 3e-4,
    "weight_decay": 0.01,
    "augment.crop_area": "(0.5,1.0)",
    "eval_every": 125,
    "checkpoint_every": 0,
}
COLORS = {"pretrained": "#0072B2", "scratch": "#D55E00"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", help="a ViT-Ti/16 to start from")
    parser.add_argument("tfds_data_dir", help="where CIFAR-10 is prepared")
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("--draw_only", action="store_true", help="draw runs that exist already")
    parser.add_argument("--picture", default="docs/cifar10.png")
    args = parser.parse_args()
    if not args.draw_only:
        train(args.runs / "pretrained", args.tfds_data_dir, {"pretrained": args.weights})
        train(args.runs / "scratch", args.tfds_data_dir, {})
    metrics = {name: read_metrics(args.runs / name) for name in COLORS}
    draw(metrics, args.picture)
    for name, rows in metrics.items():
        last = [row for row in rows if "test/accuracy" in row][-1]
        print(f"{name}: {last['test/accuracy']:.2%} of the test images at step {last['step']}")


def train(workdir: pathlib.Path, data_dir: str, more: dict) -> None:
    options = {**SETTINGS, "tfds_data_dir": data_dir, **more}
    command = [sys.executable, "-m", "vit_jax.train", "--config=configs/vit.py:ti16,cifar10"]
    command += [f"--config.{name}={value}" for name, value in options.items()]
    subprocess.run([*command, f"--workdir={workdir}"], check=True)


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def draw(metrics: dict[str, list[dict]], path: str) -> None:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = {"train/loss": "Training loss", "test/accuracy": "Test accuracy (%)"}
    for axes, (key, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name, rows in metrics.items():
            points = [(row["step"], row[key]) for row in rows if key in row]
            steps, values = zip(*points, strict=True)
            if key == "test/accuracy":
                values = [100 * value for value in values]
            axes.plot(steps, values, color=COLORS[name], marker="o", markersize=3, label=name)
        axes.set_title(title)
        axes.set_xlabel("Step")
        axes.set_xlim(0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(0, 100)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
