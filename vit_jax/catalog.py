"""Published checkpoints: which there are, and fetching them.

    python -m vit_jax.checkpoints list [TEXT]      all of them, or those with TEXT in their row
    python -m vit_jax.checkpoints show NAME        one in full, with its homes
    python -m vit_jax.checkpoints fetch NAME       download it into the cache and print its path
    python -m vit_jax.checkpoints augreg MODEL     AugReg's best i21k file of a model, by index.csv

The cache is --cache, or $VIT_JAX_CACHE, or ~/.cache/vit_jax. Give the printed path to
`python -m vit_jax.convert`, or to a recipe as --config.pretrained=PATH.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from vit_jax.checkpoint import augreg, catalog
from vit_jax.cli import command as commands


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError) as e:
        print(f"checkpoints: {commands.one_line(e)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("checkpoints: stopped; `fetch` again continues where it was", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vit_jax.checkpoints",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="all checkpoints, or those with TEXT in their row")
    listing.add_argument("text", nargs="?", default="", metavar="TEXT")
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", help="one checkpoint in full")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)

    fetch = commands.add_parser("fetch", help="download one into the cache and print its path")
    fetch.add_argument("name", metavar="NAME")
    fetch.add_argument("--offline", action="store_true", help="the cache or nothing")
    fetch.add_argument("--timeout", type=float, default=30.0, help="seconds of silence (30)")
    fetch.set_defaults(run=_fetch)

    best = commands.add_parser("augreg", help="AugReg's best i21k checkpoint of a model")
    best.add_argument("name", metavar="MODEL", help="B_16, R26_S_32, … or a whole file name")
    best.add_argument("--index", default=augreg.INDEX, help="index.csv: a path, https:// or gs://")
    best.set_defaults(run=_augreg)

    for command in (fetch, best):
        command.add_argument("--cache", help="the directory to keep downloads in")
        command.add_argument("--allow_http", action="store_true", help="http, not https alone")
    return parser


def _list(args: argparse.Namespace) -> None:
    found = [
        entry
        for entry in catalog.entries().values()
        if args.text.lower() in " ".join(map(str, dataclasses.astuple(entry))).lower()
    ]
    if not found:
        raise ValueError(f"No checkpoint has {args.text!r} in its row; `list` alone shows all.")
    print(f"{'name':44s} {'model':14s} {'px':>4s} {'classes':>7s} {'MiB':>5s} {'top-1':>6s}  homes")
    for entry in found:
        accuracy = f"{entry.accuracy:.2f}" if entry.accuracy else ""
        homes = "+".join("hub" if home.startswith("hub:") else "bucket" for home in entry.homes)
        print(
            f"{entry.name:44s} {entry.model:14s} {entry.resolution:4d} {entry.classes:7d} "
            f"{entry.mib:5d} {accuracy:>6s}  {homes}"
        )


def _show(args: argparse.Namespace) -> None:
    for field, value in dataclasses.asdict(catalog.find(args.name)).items():
        for item in value if isinstance(value, tuple) else (value,):
            if item not in (None, ""):
                print(f"{field:15s} {item}")


def _fetch(args: argparse.Namespace) -> None:
    with _progress() as progress:
        path = catalog.fetch(
            args.name,
            cache=args.cache,
            offline=args.offline,
            allow_http=args.allow_http,
            timeout=args.timeout,
            progress=progress,
        )
    if note := catalog.find(args.name).note:
        print(f"note: {note}", file=sys.stderr)
    print(path)


def _augreg(args: argparse.Namespace) -> None:
    row = augreg.best(args.name, args.index, cache=args.cache, allow_http=args.allow_http)
    for field, value in row.items():
        print(f"{field:22s} {value}")


@contextlib.contextmanager
def _progress() -> Iterator[catalog.Progress]:
    """A bar a file on a terminal; elsewhere a line a file, at every tenth of it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_progress()
        return
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        tasks = {}

        def update(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=have, total=total)

        yield update


def _plain_progress() -> catalog.Progress:
    told: dict[str, int] = {}

    def update(name: str, have: int, total: int | None) -> None:
        tenth = have * 10 // total if total else 0
        if tenth > told.get(name, -1):
            told[name] = tenth
            of = f" of {total / 2**20:.1f}" if total else ""
            print(f"{name}: {have / 2**20:.1f}{of} MiB", file=sys.stderr, flush=True)

    return update


if __name__ == "__main__":
    sys.exit(main())
