"""Command lines: every command's own options with values that nobody expects.

Options are found in the commands' parsers and in the table of config options, so a new one is tried
without a line here. Everything happens in the room: it is the home, the cache and the current
directory, the network is a closed port, and the files there that nobody may replace are compared
afterwards.
"""

import argparse
import contextlib
import functools
import importlib
import io
import os
import random
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from benchmarks.fuzz.seeds import Seeds
from benchmarks.fuzz.trial import DONE, REFUSED, Trial, Wrong
from vit_jax.__main__ import COMMANDS
from vit_jax.cli import recipe
from vit_jax.cli.command import Command
from vit_jax.config import flat_config
from vit_jax.parallel import hosts

CODES = {"predict": (0, 1, 3), "explain": (0, 1, 3)}  # of others 0 and 1
MOST_LINES, MOST_CHARACTERS = 12, 5_000  # a line for each file that cannot be read

_WORDS = r"""
0 -1 -0.0 1 2 3 7 1.5 8, 1,2,3 1e308 1e-400 nan inf -inf 2147483648 99999999999999999999 0x10 1_0
١٢ ² None True no () (1,) {'a':1} ' " \ * [z- $x_$ %s {0} we[/b]ird -- = - b16 ViT-B_16 testing
digits test train[:10%] train[5: bfloat16 int32 good.npz picture.png folder device loop empty text
missing/x out out.npz out.png folder/out ~ ~nobody/x . .. s3://b/x http://x
"""
ODD = (*_WORDS.split(), "", " ", "\n", "é", "\udcff", "\x1b[31m", "(0, 0)", "[1, 2]", "a" * 5_000)
_LIKELY = {  # a pipe is fine where someone names it for a list of labels, say, and waits for it
    **dict.fromkeys(("checkpoint", "source"), ("good.npz",) * 9 + ("fifo",)),
    "images": ("picture.png", "folder", "fifo"),
    "out": ("out",),
}
_NEVER = ("coordinator", "num_processes", "process_id", "topology")  # wait, or compile for long


def odd(rng: random.Random, good: Seeds, room: Path) -> Trial:
    name = rng.choice((*COMMANDS, "plan", "train"))  # which take all the config options
    return prepared(name, _arguments(name, rng), good, room)


def prepared(name: str, argv: list[str], good: Seeds, room: Path) -> Trial:
    here = room / "a" / "b" / "here"
    _furnish(here, good)
    return Trial(f"{name} {shlex.join(argv)}", functools.partial(_run, name, argv, here))


def _arguments(name: str, rng: random.Random) -> list[str]:
    argv = [word for action in _actions(name) for word in _words(action, rng)]
    if _command(name).default_recipe and name != "data":
        options = rng.sample(_config_options(), rng.choice((1, 1, 2)))
        argv += [f"--config.{option}={rng.choice(ODD)}" for option in options]
        argv += [f"--config={rng.choice(ODD)}"] if rng.random() < 0.05 else []
    if name == "train":  # it must end before it trains
        argv += ["--workdir=out", "--config.pretrained=missing/x"]
    return argv


def _words(action: argparse.Action, rng: random.Random) -> list[str]:
    """An argument, or an option now and then; with a value that is likely, allowed or odd."""
    if isinstance(action, argparse._SubParsersAction):
        name = rng.choice(list(action.choices))
        return [name, *(w for inner in _listed(action.choices[name]) for w in _words(inner, rng))]
    if action.dest in _NEVER or (action.option_strings and rng.random() < 0.8):
        return []
    likely = _LIKELY.get(action.dest)
    value = rng.choice(likely if likely and rng.random() < 0.6 else ODD)
    if action.choices and rng.random() < 0.7:
        value = rng.choice(list(action.choices))
    if not action.option_strings:
        return [value]
    return (
        [action.option_strings[0]] if action.nargs == 0 else [f"{action.option_strings[0]}={value}"]
    )


def _command(name: str) -> Command:
    module = "vit_jax.data.__main__" if name == "data" else f"vit_jax.{name}"
    return importlib.import_module(module).main.__self__


@functools.cache
def _actions(name: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser()
    _command(name).add_arguments(parser)
    return _listed(parser)


def _listed(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help"]


@functools.cache
def _config_options() -> list[str]:
    return list(flat_config(recipe.quickstart()))


def _run(name: str, argv: list[str], here: Path) -> str:
    before = _looks(here)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with _settled(here), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = _command(name).main(argv)
        except SystemExit as e:  # --help
            code = e.code
    err.flush()
    said = err.buffer.getvalue().decode()  # pyright: ignore
    if code not in CODES.get(name, (0, 1)):
        raise Wrong(f"exit code {code}")
    if "Traceback" in said:
        raise Wrong(f"a traceback: {said[-300:]}")
    if code and (said.count("\n") > MOST_LINES or len(said) > MOST_CHARACTERS):
        raise Wrong(f"{len(said.splitlines())} lines of {len(said)} characters: {said[:300]}")
    if code and not said.strip():
        raise Wrong(f"exit code {code} without a word")
    after = _looks(here)
    precious = [file for file in before if code or not stat.S_ISREG(before[file][0])]
    if lost := [file for file in precious if after.get(file) != before[file]]:
        raise Wrong(f"replaced: {', '.join(lost)}")
    if code and (left := [file for file in after if "partial" in file]):
        raise Wrong(f"left behind: {', '.join(left)}")
    return REFUSED if code == 1 else DONE  # 3 is done, but for some files


@contextlib.contextmanager
def _settled(here: Path) -> Iterator[None]:
    """The process as a user's shell in `here`, without a network and with nothing to read."""
    closed = "http://127.0.0.1:9"
    environment = {"HOME": str(here), "VIT_JAX_CACHE": str(here / "cache")}
    environment |= dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), closed)
    previous = Path.cwd()
    os.chdir(here)
    try:
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(sys, "stdin", io.StringIO()),
            mock.patch.object(hosts, "connect"),  # it must be the first thing a process does
        ):
            yield
    finally:
        os.chdir(previous)


def _furnish(here: Path, good: Seeds) -> None:
    (here / "folder" / "cat").mkdir(parents=True)
    (here / "good.npz").write_bytes(good.checkpoints["npz_card"]["model.npz"])
    picture = next(name for name in good.pictures if name.endswith(".png"))
    for name in ("picture.png", "folder/cat/1.png"):
        (here / name).write_bytes(good.pictures[picture])
    (here / "empty").touch()
    (here / "text").write_text("a\nb\n")
    (here / "loop").symlink_to("loop")
    for name in ("fifo", "folder/cat/2.png"):
        os.mkfifo(here / name)
    with contextlib.suppress(OSError):  # only root may
        os.mknod(here / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _looks(here: Path) -> dict[str, tuple[int, int, bytes]]:
    """What every file is: its kind, its device if it is one, its content."""
    found = {}
    for path in sorted(here.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        if not stat.S_ISDIR(about.st_mode) or path.name == "folder":
            found[str(path.relative_to(here))] = (
                stat.S_IFMT(about.st_mode),
                about.st_rdev,
                content,
            )
    return found
