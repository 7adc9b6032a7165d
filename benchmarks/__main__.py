"""Runs the benchmarks of speed, startup and memory, one after the other, into one file.

    python -m benchmarks [--only PATTERN] [--peers_python=PYTHON_WITH_TORCH_AND_TIMM]

Writes benchmarks/results/DATE-MACHINE.json after each, then draws docs/performance.png and prints
the table for docs/performance.md. Takes most of an hour on two cores; nothing else should run.
`python -m benchmarks.compare OLD NEW` says what got slower between two such files.
"""

import argparse
import json
import pathlib
import re
from functools import partial

from benchmarks import compile as compiling
from benchmarks import loop, machine, memory, model, pictures, startup

RESULTS = pathlib.Path(__file__).parent / "results"


def suite(peers_python: str | None) -> dict:
    measure = partial(model.measure, peers_python=peers_python)
    return {
        "forward ViT-B_16": partial(measure, "ViT-B_16", "forward", 8, rounds=8),
        "train ViT-S_16": partial(measure, "ViT-S_16", "train", 16, rounds=8),
        "forward ViT-Ti_16": partial(measure, "ViT-Ti_16", "forward", 16, rounds=3),
        "forward ViT-B_32": partial(measure, "ViT-B_32", "forward", 16, rounds=3),
        "forward ViT-L_16": partial(measure, "ViT-L_16", "forward", 4, rounds=3),
        "forward ViT-B_16 384": partial(
            measure, "ViT-B_16", "forward", 2, resolution=384, rounds=3
        ),
        "train ViT-Ti_16": partial(measure, "ViT-Ti_16", "train", 16, rounds=3),
        "train ViT-B_32": partial(measure, "ViT-B_32", "train", 16, rounds=3),
        "memory": memory.measure,
        "compile": compiling.measure,
        "startup": startup.measure,
        "loop": loop.measure,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=".", help="a pattern for the names to run")
    parser.add_argument("--peers_python", help="a Python that has torch and timm")
    args = parser.parse_args()
    about = machine.about()
    name = re.sub(r"\W+", "-", about["machine"]).strip("-")
    path = RESULTS / f"{about['date']}-{name}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for title, measure in suite(args.peers_python).items():
        if re.search(args.only, title):
            print(f"{title}…", flush=True)
            results[title] = measure() | {"commit": machine.about()["commit"]}
            path.write_text(json.dumps(about | results, indent=1) + "\n")
    pictures.draw(results, pathlib.Path("docs/performance.png"))
    print(pictures.table(results))
    print(f"Saved in {path}.")


if __name__ == "__main__":
    main()
