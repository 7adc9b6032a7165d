"""The table and picture of docs/performance.md, from a file that `python -m benchmarks` wrote.

python -m benchmarks.pictures RESULTS.json
"""

import argparse
import json
import pathlib

from matplotlib.figure import Figure

COLORS = {  # Okabe and Ito's, which colour-blind readers can distinguish too
    "vit_jax": "#0072B2",
    "linen": "#E69F00",
    "linen, huge pages": "#F0E442",
    "timm eager": "#999999",
    "timm compiled": "#009E73",
}


def table(results: dict) -> str:
    """Markdown: images per second, and in brackets how many times as fast vit_jax is."""
    names = [name for name in COLORS if any(name in row for row in _speeds(results).values())]
    lines = ["| | sgemm share | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for title, row in _speeds(results).items():
        cells = [f"{row['vit_jax']['of sgemm']:.2f}"]
        for name in names:
            if name not in row:
                cells.append("")
                continue
            ratio = "" if name == "vit_jax" else f" ({row[name]['vit_jax is faster by']:.2f}×)"
            cells.append(f"{row[name]['img/s']:.2f}{ratio}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(results: dict, path: pathlib.Path) -> None:
    """Speed of each contestant as a share of what sgemm reaches, one group per model."""
    speeds = _speeds(results)
    if not speeds:
        return
    figure = Figure(figsize=(10, 0.9 + 0.75 * len(speeds)), layout="constrained")
    axes = figure.subplots()
    names = [name for name in COLORS if any(name in row for row in speeds.values())]
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [g for g, row in enumerate(speeds.values()) if name in row]
        shares = [row[name]["of sgemm"] for row in speeds.values() if name in row]
        bars = axes.barh([g + i * height for g in places], shares, height, color=COLORS[name])
        bars.set_label(name)
    axes.set_yticks([g + 0.4 - height / 2 for g in range(len(speeds))], list(speeds))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the sgemm rate of the same run")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, frameon=False)
    figure.savefig(path, dpi=120)


def _speeds(results: dict) -> dict[str, dict]:
    return {
        title: row["contestants"]
        for title, row in results.items()
        if isinstance(row, dict) and "contestants" in row
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path)
    results = json.loads(parser.parse_args().results.read_text())
    draw(results, pathlib.Path("docs/performance.png"))
    print(table(results))


if __name__ == "__main__":
    main()
