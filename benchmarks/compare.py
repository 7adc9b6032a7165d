"""Says what got slower between two files that `python -m benchmarks` wrote.

    python -m benchmarks.compare OLD.json NEW.json [--tolerance 0.05]

Compares peak memory and the figures that are ratios within one run (to plain linen, to timm, to
sgemm, of depths, of imports); times of two runs also depend on what else the machine was doing.
The exit code is 1 if something got worse by more than the tolerance.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator

DIRECTIONS = {  # 1 where more is better
    "of sgemm": 1,
    "vit_jax is faster by": 1,
    "loop / bare": -1,
    "vit_jax.models / flax.linen": -1,
    "scanned, 32 layers / 4": -1,
    "MB": -1,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=0.05)
    args = parser.parse_args()
    old, new = (dict(figures(json.loads(path.read_text()))) for path in (args.old, args.new))
    worse = 0
    for name in sorted(old.keys() & new.keys()):
        change = gain(name, old[name], new[name])
        if abs(change) > args.tolerance:
            word = "better" if change > 0 else "WORSE"
            worse += change < 0
            print(
                f"{word:<7} {abs(change):6.1%}  {', '.join(name)}: {old[name]:g} -> {new[name]:g}"
            )
    print(f"{len(old.keys() & new.keys())} figures compared, {worse} got worse.")
    sys.exit(worse > 0)


def figures(tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """The comparable numbers of a results file, each with its path."""
    if isinstance(tree, list):
        tree = {_label(i, item): item for i, item in enumerate(tree)}
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from figures(value, (*path, str(name)))
    elif path and path[-1] in DIRECTIONS and (path[-1] != "of sgemm" or "vit_jax" in path):
        yield path, float(tree)


def gain(path: tuple[str, ...], old: float, new: float) -> float:
    """The relative change, positive where the new one is better."""
    return (new / old) ** DIRECTIONS[path[-1]] - 1


def _label(index: int, item) -> str:
    """Rows of a list are identified by what was measured, not by their index."""
    if not isinstance(item, dict):
        return str(index)
    return " ".join(f"{k}={v}" for k, v in item.items() if k not in ("MB", "tokens"))


if __name__ == "__main__":
    main()
