"""Recipes on the command line: --config FILE[:ARGUMENTS] and --config.NAME=VALUE.

ml_collections reads the values, so that each takes the type of the option it replaces.
"""

import difflib
import re
import runpy
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_collections
from absl import flags
from ml_collections.config_flags import DEFINE_config_dict

from vit_jax.cli.options import Parser

_PACKAGE = Path(__file__).parents[1]
_INSTALLED, _CLONE = _PACKAGE / "configs", _PACKAGE.parent / "configs"
RECIPES = _INSTALLED if _INSTALLED.is_dir() else _CLONE

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]+)(=.*)?", re.DOTALL)


def read(
    argv: list[str], default: Callable[[], ml_collections.ConfigDict]
) -> tuple[ml_collections.ConfigDict, list[str]]:
    """The config that `argv` describes, locked, and the arguments that are not about it."""
    parser = Parser(add_help=False)
    parser.add_argument("--config")
    parser.refuse_unknown([word for word in argv if word.startswith("--config=")])
    args, rest = parser.parse_known_args(argv)
    config = default() if args.config is None else load(args.config)
    rest = _joined(config, rest)
    values = flags.FlagValues()
    values.set_gnu_getopt()  # options may follow other arguments
    try:
        DEFINE_config_dict("config", config, flag_values=values, sys_argv=rest)
        return config, values(["", *rest], known_only=True)[1:]
    except (flags.Error, AttributeError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def quickstart() -> ml_collections.ConfigDict:
    return load("quickstart.py")


def load(recipe: str) -> ml_collections.ConfigDict:
    """Runs FILE[:ARGUMENTS]. `vit.py` and `configs/vit.py` are found from any directory."""
    file, colon, arguments = recipe.partition(".py:")  # C:\vit.py:b16 has two colons
    path = Path(f"{file}.py" if colon else recipe)
    if not path.exists() and path.parent in (Path(), Path("configs")):
        path = RECIPES / path.name
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in RECIPES.glob("*.py")))
        raise ValueError(
            f"{recipe}: No such file or directory. The recipes that come with vit_jax are {known}."
        )
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
        if not callable(get_config):
            raise ValueError("it has no function get_config, which makes a recipe of a file")
        config = get_config(arguments) if colon else get_config()
        if not isinstance(config, ml_collections.ConfigDict):
            kind = type(config).__name__
            raise ValueError(f"get_config returned a {kind}, not an ml_collections.ConfigDict")
        return config
    except (Exception, SystemExit) as error:  # whatever a file may do
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        said = " ".join(f"{kind}{error}".split())
        raise ValueError(f"{path}{_line_in(path, error)}: {said}") from error


def _line_in(path: Path, error: BaseException) -> str:
    """The last line of the file that an error came through, or '' if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""


def _joined(config: ml_collections.ConfigDict, argv: list[str]) -> list[str]:
    """--config.NAME VALUE as --config.NAME=VALUE; raises if there is no option of a NAME.

    absl would take `--config.pp.crop 384` for a switch, because a crop may be of any type.
    """
    options = dict(_options(config))
    problems, joined, words = [], [], iter(argv)
    for word in words:
        if found := _OVERRIDE.fullmatch(word):
            name, value = found.groups()
            if name not in options:
                near = difflib.get_close_matches(name, options, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else "--help lists all options."
                problems.append(f"there is no option {name!r} in the config. {hint}")
            elif value is None and options[name] is not bool:
                following = next(words, None)
                if following is None:
                    problems.append(f"{word} needs a value.")
                word = f"{word}={following}"
        joined.append(word)
    if problems:
        raise ValueError(" ".join(problems))
    return joined


def _options(config: ml_collections.ConfigDict, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Every option and its type, with dots in the names of nested ones."""
    for name, value in config.items():
        yield f"{prefix}{name}", config.get_type(name)
        if isinstance(value, ml_collections.ConfigDict):
            yield from _options(value, f"{prefix}{name}.")
