"""Lists the published checkpoints and fetches them.

    python -m vit_jax.catalog list [TEXT]      all of them, or those with TEXT in their row
    python -m vit_jax.catalog show NAME        one in full, with its homes
    python -m vit_jax.catalog fetch NAME       download it into the cache and print its path
    python -m vit_jax.catalog augreg MODEL     AugReg's best i21k file of a model, by index.csv

The cache is --cache, or $VIT_JAX_CACHE, or ~/.cache/vit_jax. A name is
itself a checkpoint to every command, and to a recipe as --config.pretrained=NAME.
"""

from vit_jax import signals

if __name__ == "__main__":
    signals.begin("catalog")  # before slow imports

import argparse
import dataclasses
import sys

from vit_jax.checkpoint import augreg, catalog
from vit_jax.cli.command import Command
from vit_jax.cli.options import seconds
from vit_jax.cli.progress import download_progress
from vit_jax.printable import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, dest="action", metavar="COMMAND")
    listing = actions.add_parser("list", help="all checkpoints, or those with TEXT in their row")
    listing.add_argument("text", nargs="?", default="", metavar="TEXT")
    show = actions.add_parser("show", help="one checkpoint in full")
    fetch = actions.add_parser("fetch", help="download one into the cache and print its path")
    for action in (show, fetch):
        action.add_argument("name", metavar="NAME")
    fetch.add_argument("--offline", action="store_true", help="use the cache only")
    fetch.add_argument("--timeout", type=seconds, default=30.0, help="seconds of silence [30]")
    best = actions.add_parser("augreg", help="AugReg's best i21k checkpoint of a model")
    best.add_argument("name", metavar="MODEL", help="B_16, R26_S_32, … or a whole file name")
    best.add_argument("--index", default=augreg.INDEX, help="index.csv: a path, https:// or gs://")
    for action in (fetch, best):
        action.add_argument("--cache", help="directory that keeps the downloads")
        action.add_argument("--allow_http", action="store_true", help="allow http beside https")


def run(args: argparse.Namespace) -> int | None:
    actions = {"list": list_entries, "show": show_entry, "fetch": fetch_entry, "augreg": show_best}
    return actions[args.action](args)


def list_entries(args: argparse.Namespace) -> None:
    found = [
        entry
        for entry in catalog.entries().values()
        if args.text.lower() in " ".join(map(str, dataclasses.astuple(entry))).lower()
    ]
    if not found:
        raise ValueError(
            f"No checkpoint has {args.text!r} in its row; `vit_jax catalog list` shows all."
        )
    print(f"{'name':44s} {'model':14s} {'px':>4s} {'classes':>7s} {'MiB':>5s} {'top-1':>6s}  homes")
    for entry in found:
        accuracy = f"{entry.accuracy:.2f}" if entry.accuracy else ""
        homes = "+".join("hub" if home.startswith("hub:") else "bucket" for home in entry.homes)
        print(
            f"{entry.name:44s} {entry.model:14s} {entry.resolution:4d} {entry.classes:7d} "
            f"{entry.mib:5d} {accuracy:>6s}  {homes}"
        )


def show_entry(args: argparse.Namespace) -> None:
    for field, value in dataclasses.asdict(catalog.find(args.name)).items():
        for item in value if isinstance(value, tuple) else (value,):
            if item not in (None, ""):
                print(f"{field:15s} {item}")


def fetch_entry(args: argparse.Namespace) -> int | None:
    try:
        with download_progress() as progress:
            path = catalog.fetch(
                args.name,
                cache=args.cache,
                offline=args.offline,
                allow_http=args.allow_http,
                timeout=args.timeout,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("catalog: stopped; the next `fetch` continues from here", file=sys.stderr)
        return 130
    if note := catalog.find(args.name).note:
        print(f"note: {note}", file=sys.stderr)
    print(path)
    return 0


def show_best(args: argparse.Namespace) -> None:
    row = augreg.best(args.name, args.index, cache=args.cache, allow_http=args.allow_http)
    for field, value in row.items():
        print(printable(f"{field:22s} {value}"))


main = Command("catalog", __doc__, add_arguments, run).main

if __name__ == "__main__":
    sys.exit(main())
