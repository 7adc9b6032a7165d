"""What a figure was measured with: commit, machine, versions."""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Callable


def about(packages=("jax", "flax", "numpy", "orbax-checkpoint")) -> dict:
    def git(*arguments):
        result = subprocess.run(["git", *arguments], capture_output=True, text=True)
        return result.stdout.strip()

    dirty = " (with uncommitted changes)" if git("status", "--porcelain", "vit_jax") else ""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": git("rev-parse", "--short", "HEAD") + dirty,
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def command(doc: str, measure: Callable[[], dict]) -> None:
    """A benchmark whose only option is the file to save its figures in."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", help="a JSON file for the figures")
    out = parser.parse_args().out
    report(measure(), out)


def report(figures: dict, out: str | None) -> None:
    """Prints figures with what they were measured with, and saves them in `out` if given."""
    text = json.dumps(figures | about(), indent=1)
    print(text)
    if out:
        pathlib.Path(out).write_text(text + "\n")


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
