"""How a command is declared, and what becomes of its errors.

A command's file ends with

    main = Command("predict", __doc__, add_arguments, run).main

    if __name__ == "__main__":
        sys.exit(main())
"""

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

import ml_collections
from absl import logging as absl_logging

from vit_jax import signals
from vit_jax.cli import recipe
from vit_jax.cli.options import Parser
from vit_jax.config import describe_options
from vit_jax.printable import prepare_streams, printable

_LONGEST = 4_000  # characters of an error


@dataclasses.dataclass(frozen=True)
class Command:
    """A user's mistake (ValueError, OSError) is one line on standard error and exit code 1.

    --debug, or VIT_JAX_DEBUG=1 in the environment, shows the traceback above that line.

    A command with a `default_recipe` also takes --config FILE[:ARGUMENTS] and --config.NAME=VALUE.
    Its `run` finds the resulting config in `args.config`; without --config FILE, the values start
    from those of `default_recipe()`.
    """

    name: str
    doc: str | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    default_recipe: Callable[[], ml_collections.ConfigDict] | None = None
    after_error: Callable[[int], None] | None = None  # gets the exit code once the line is printed

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command with these arguments, or the process's own; returns the exit code."""
        argv = list(sys.argv[1:] if argv is None else argv)
        debug = "--debug" in argv or os.environ.get("VIT_JAX_DEBUG", "0") not in ("", "0")
        prepare_streams()
        try:
            with _libraries_kept_quiet(not debug), signals.tidying_up():
                code = self.run(self.parse(argv)) or 0
                sys.stdout.flush()
                return code
        except (ValueError, OSError) as error:
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                return 0
            if debug:
                traceback.print_exc()
            print(f"{self.name}: {one_line(error)}", file=sys.stderr)
            if self.after_error:
                self.after_error(1)
            return 1
        except KeyboardInterrupt:
            return signals.stopped()

    def parse(self, argv: list[str]) -> argparse.Namespace:
        parser = Parser(f"python -m vit_jax.{self.name}", description=self.doc)
        args = argparse.Namespace()
        argv = [word for word in argv if word != "--debug"]  # it may stand anywhere
        if self.default_recipe:  # declared for --help; recipe.read takes them off `argv`
            parser.epilog = describe_options()
            parser.add_argument("--config", metavar="FILE[:ARGUMENTS]", help="recipe to start from")
            parser.add_argument("--config.NAME", metavar="VALUE", help="set an option listed below")
            if not {"-h", "--help"} & set(argv):
                args.config, argv = recipe.read(argv, self.default_recipe)
        self.add_arguments(parser)
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        parser.refuse_unknown(argv)
        return parser.parse_args(argv, args)


@contextlib.contextmanager
def _libraries_kept_quiet(quiet: bool) -> Iterator[None]:
    """They raise what matters. Orbax also logs pages about it, and its threads leave tracebacks."""
    before = sys.unraisablehook
    absl_logging.set_verbosity(absl_logging.FATAL if quiet else absl_logging.WARNING)
    if quiet:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def _nobody_reads() -> bool:
    """Whether `head`, for example, has closed our standard output; if so, the rest is dropped."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def one_line(error: Exception) -> str:
    """What a user needs to know about an error; for the system's own, the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{os.fsdecode(error.filename)}: {error.strerror}."
    else:  # below this line JAX describes its own frames
        message = " ".join(str(error).partition("\n-----")[0].split())
    if len(message) > _LONGEST:  # it quotes a whole file, or a value that was pasted by mistake
        message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
    return printable(message)
