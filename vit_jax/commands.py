"""What the commands share: a user's error is one line and exit code 1, never a traceback."""

import re
import sys
from collections.abc import Callable

from absl import app, flags


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
    return re.sub(r"^\w*Error: ", "", last)
