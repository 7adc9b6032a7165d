"""What the commands share: a user's error is one line and exit code 1, never a traceback."""

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from absl import app, flags
from absl import logging as absl_logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

log = logging.getLogger(__name__)


def parser(name: str, doc: str) -> argparse.ArgumentParser:
    """An argument parser whose --help is the command's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m vit_jax.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def size(text: str) -> tuple[int, int]:
    """224 or 256,192 as (height, width), for argparse."""
    sides = tuple(int(part) for part in text.split(","))
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise ValueError(text)
    return sides[0], sides[-1]


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def explained(name: str, function: Callable[[], int | None]) -> int:
    """Runs a command; its exit code. What a user got wrong is one line on standard error."""
    absl_logging.set_verbosity(absl_logging.WARNING)  # tfds and Orbax tell every file they open
    try:
        return function() or 0
    except BrokenPipeError:  # whoever read the output, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as e:
        print(f"{name}: {one_line(e)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def one_line(error: Exception) -> str:
    """What a user needs of an error; of the system's own, the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    said = str(error).partition("\n-----")[0]  # what JAX says below it is of its own frames
    return " ".join(said.split())


def check_writable(path: str | os.PathLike | None) -> None:
    """Refuses a file that could not be written in the end, before the work begins."""
    if path is None:
        return
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a directory; give the name of a file to write.")
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: there is no directory {folder}.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"{path} cannot be written: no permission. Choose another place.")


def check_directory(out: Path) -> None:
    """Refuses a directory that could not be made or written into, before the work begins."""
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file; --out takes a directory.")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{out} cannot be written: no permission. Choose another place, --out.")


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """A name to write to; what is written there becomes `path` if all goes well, else nothing."""
    path = Path(path).expanduser()
    partial = path.parent / f".{os.getpid()}.partial{path.suffix}"
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with the time left on a terminal, nothing elsewhere; call the result to advance it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Lines for a person go above the bar; those for a file or a program must not.
    options = {"transient": True, "redirect_stdout": sys.stdout.isatty()}
    with Progress(*columns, console=console, **options) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)


def use_compilation_cache(path: str = "auto") -> None:
    """Compiled programs are kept between runs, in the user's cache unless told otherwise."""
    if not path:
        return
    directory = Path.home() / ".cache" / "vit_jax" / "compiled" if path == "auto" else Path(path)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_compilation_cache_max_size", 2 * 2**30)
    log.info("Compiled programs are kept in %s.", directory)


def run(
    main: Callable[[list[str]], int | None], name: str, define_flags: Callable[[], None]
) -> None:
    """absl's `app.run` for a command with a --config flag, which may fail while it is defined."""

    def explained(function, *arguments):
        try:
            return function(*arguments)
        except (flags.Error, AttributeError, TypeError, ValueError, OSError) as e:
            sys.exit(f"{name}: {explain_flag_error(e)}")

    def parse(arguments):
        positional = flags.FLAGS(arguments)
        flags.FLAGS.config.dataset  # noqa: B018 (a recipe that did not load says so when looked at)
        return positional

    explained(define_flags)
    app.run(main, flags_parser=lambda arguments: explained(parse, arguments))


def explain_flag_error(error: Exception) -> str:
    """What went wrong with a flag or a recipe, without the traceback ml_collections puts in it."""
    text = str(error)
    if isinstance(error, AttributeError) and (key := re.search(r"'(\w+)\\*'", text)):
        near = re.search(r'Did you mean "(\w+)"', text)
        hint = f" Did you mean {near[1]!r}?" if near else " --help lists all options."
        return f"there is no option {key[1]!r} in the config.{hint}"
    last = text.strip().splitlines()[-1].strip()
    last = re.sub(r"^\w*Error: ", "", last)
    return re.sub(r"^\[Errno \d+\] (.+): '(.*)'$", r"\2: \1.", last)
