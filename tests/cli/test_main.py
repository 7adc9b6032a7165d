"""`vit_jax` and `python -m vit_jax`: the list of commands, and each of them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vit_jax
from vit_jax.__main__ import COMMANDS

PACKAGE = Path(vit_jax.__file__).parent


def run(*arguments):
    command = [sys.executable, "-m", "vit_jax", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def source(name):
    return PACKAGE / "data" / "__main__.py" if name == "data" else PACKAGE / f"{name}.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name):
    doc = ast.get_docstring(ast.parse(source(name).read_text()))
    assert doc.startswith(COMMANDS[name])


def test_every_command_is_listed():
    files = {path.stem for path in PACKAGE.glob("*.py") if "__name__ ==" in path.read_text()}
    assert files - {"main", "__main__"} | {"data"} == set(COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_without_a_name_the_commands_are_listed(arguments):
    done = run(*arguments)
    assert done.returncode == 0
    for name, description in COMMANDS.items():
        assert f"{name:<10}{description}" in done.stdout


def test_listing_the_commands_imports_nothing_slow():
    program = (
        "import sys; sys.argv = ['vit_jax']; from vit_jax.__main__ import main; main(); "
        "sys.exit(bool({'jax', 'numpy', 'absl', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_the_version_is_printed():
    assert run("--version").stdout == f"vit_jax {vit_jax.__version__}\n"


def test_a_wrong_name_is_one_line_with_near_matches():
    done = run("evalute")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "vit_jax: there is no command 'evalute'. Did you mean evaluate?\n"


def test_a_command_runs_with_its_arguments_and_exit_code(tmp_path):
    done = run("convert", str(tmp_path / "gone.npz"), "out.npz")
    assert done.returncode == 1
    assert done.stderr == f"convert: There is no checkpoint at {tmp_path / 'gone.npz'}.\n"
