"""`vit_jax`, or `python -m vit_jax`, lists the commands and runs one.

`vit_jax NAME …` is `python -m vit_jax.NAME …`. Nothing slow is imported before a name is given.
"""

import difflib
import runpy
import sys

from vit_jax import __version__, signals

COMMANDS = {
    "train": "Fine-tunes or pre-trains a model.",
    "plan": "Says what a recipe needs before anything is paid for: sizes, memory, time.",
    "data": "Shows a data set: classes, counts, sizes and a contact sheet.",
    "predict": "Classifies images.",
    "evaluate": "Measures how good a model is.",
    "explain": "Shows what a model looks at.",
    "export": "Writes a model that runs without vit_jax.",
    "convert": "Converts a checkpoint from any format we read to any we write.",
    "catalog": "Lists the published checkpoints and fetches them.",
}


def main() -> int:
    """Returns the exit code, or raises SystemExit with the one of the command that ran."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        signals.begin(name)  # `data` is a package: what it imports comes before its first line
        sys.argv = [name, *arguments]
        runpy.run_module(f"vit_jax.{name}", run_name="__main__", alter_sys=True)
    elif name in ("-h", "--help"):
        rows = "\n".join(f"  {name:<10}{description}" for name, description in COMMANDS.items())
        print(f"usage: vit_jax COMMAND …, or python -m vit_jax.COMMAND …\n\n{rows}\n")
        print("vit_jax COMMAND --help describes a command, vit_jax --version prints the version.")
    elif name == "--version":
        print(f"vit_jax {__version__}")
    else:
        near = difflib.get_close_matches(name, COMMANDS)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(COMMANDS)}."
        print(f"vit_jax: there is no command {name!r}. {hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
