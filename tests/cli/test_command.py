"""What every command does with its arguments, its errors and its exit code."""

import functools
import subprocess
import sys

import pytest

from vit_jax.cli import options
from vit_jax.cli.command import Command
from vit_jax.config import OPTIONS, default_config


def command(run, **fields):
    def add_arguments(parser):
        parser.add_argument("--size", type=options.size)
        parser.add_argument("--count", type=options.count)
        parser.add_argument("--fraction", type=options.fraction)

    return Command("try", "Tries.", add_arguments, run, **fields)


def fail(_):
    raise ValueError("it was\nwrong")


def test_an_error_is_one_line_and_exit_code_1(capsys):
    assert command(fail).main([]) == 1
    assert capsys.readouterr().err == "try: it was wrong\n"


@pytest.mark.parametrize("kind", [ValueError, functools.partial(FileNotFoundError, 2, "gone")])
def test_a_long_error_is_cut_in_the_middle(kind, capsys):
    def paste(_):
        raise kind(f"{'a' * 100_000} is not a number")

    assert command(paste).main([]) == 1
    said = capsys.readouterr().err
    assert len(said) < 5_000
    assert said.startswith("try: aaa")
    assert "aaa is not a number" in said


def test_the_systems_own_errors_name_the_file_and_the_reason(tmp_path, capsys):
    assert command(lambda _: tmp_path.read_bytes()).main([]) == 1
    assert capsys.readouterr().err == f"try: {tmp_path}: Is a directory.\n"


@pytest.mark.parametrize(("argv", "variable"), [(["--debug"], "0"), ([], "1")])
def test_debug_shows_the_traceback_above_the_line(argv, variable, capsys, monkeypatch):
    monkeypatch.setenv("VIT_JAX_DEBUG", variable)
    assert command(fail).main(argv) == 1
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "try: it was wrong"


def test_our_own_mistakes_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        command(lambda _: 1 / 0).main([])


def test_what_comes_after_an_error_gets_the_exit_code(capsys):
    codes = []
    assert command(fail, after_error=codes.append).main([]) == 1
    assert codes == [1]


def test_a_command_may_choose_its_exit_code():
    assert command(lambda _: 75).main([]) == 75
    assert command(lambda _: None).main([]) == 0


def test_ctrl_c_is_130_without_a_word(capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    assert command(interrupt).main([]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_seen_enough_is_no_error():
    program = (
        "import sys; from vit_jax.cli.command import Command; "
        "sys.exit(Command('try', '', lambda _: None, lambda _: print('line')).main([]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 0)


def test_another_broken_pipe_is_an_error(capsys):
    def lose_connection(_):
        raise BrokenPipeError(32, "Broken pipe")

    assert command(lose_connection).main([]) == 1
    assert capsys.readouterr().err == "try: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["more"], "unrecognized arguments: more. See --help."),
        (["--siez=3", "more"], "there is no option --siez (did you mean --size?). See --help."),
        (["--coun=3"], "there is no option --coun (did you mean --count?). See --help."),
        (["--zzz"], "there is no option --zzz. See --help."),
        (["--=3"], "there is no option --. See --help."),
        (["--size=3,4,5"], "argument --size: '3,4,5' is neither one side nor HEIGHT,WIDTH"),
        (["--size=0"], "argument --size: '0' is neither one side nor HEIGHT,WIDTH"),
        (["--size=100000"], "argument --size: '100000' is neither one side nor HEIGHT,WIDTH"),
        (["--size="], "--size is empty. See --help."),
        (["--count=-1"], "argument --count: '-1' is not a whole number from 1 to 1,000,000."),
        (["--count", "-1"], "argument --count: '-1' is not a whole number from 1 to 1,000,000."),
        (["--count=--"], "argument --count: '--' is not a value."),
        (["--count=1e3"], "argument --count: '1e3' is not a whole number"),
        (["--count=" + "9" * 5000], "argument --count: '999"),
        (["--fraction=2"], "argument --fraction: '2' is not a number above 0 and at most 1."),
        (["--fraction=nan"], "argument --fraction: 'nan' is not a number above 0 and at most 1."),
    ],
)
def test_wrong_arguments_are_one_line(argv, message, capsys):
    assert command(lambda _: pytest.fail("it ran")).main(argv) == 1
    assert capsys.readouterr().err.startswith(f"try: {message}")


def test_an_option_of_a_subcommand_is_known_and_guessed():
    def add_arguments(parser):
        parser.add_subparsers().add_parser("go").add_argument("--far", action="store_true")

    run = Command("try", "Tries.", add_arguments, lambda _: None)
    assert run.main(["go", "--far"]) == 0
    with pytest.raises(ValueError, match=r"no option --fra \(did you mean --far\?\)"):
        run.parse(["go", "--fra"])


def test_words_after_two_dashes_are_no_options():
    run = Command("try", "Tries.", lambda p: p.add_argument("words", nargs="*"), lambda _: None)
    assert run.main(["--", "--zzz"]) == 0


def test_options_have_their_types():
    seen = {}
    argv = ["--size=256,192", "--count", "3", "--fraction=0.5"]
    assert command(lambda args: seen.update(vars(args))).main(argv) == 0
    assert (seen["size"], seen["count"], seen["fraction"]) == ((256, 192), 3, 0.5)


# Commands that take a recipe


def test_a_command_with_a_recipe_gets_the_config():
    seen = {}
    run = command(lambda args: seen.update(vars(args)), default_recipe=default_config)
    assert run.main(["--config.batch=3", "--count=2", "--config.pp.crop", "(32,48)"]) == 0
    assert (seen["config"].batch, seen["config"].pp.crop, seen["count"]) == (3, (32, 48), 2)


def assert_lists_every_option(text):
    lines = text.splitlines()
    for name, option in OPTIONS.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert option.meaning in line
        assert line.endswith(f"[{option.default!r}]")


def test_help_lists_every_option_with_its_default_and_meaning(capsys):
    with pytest.raises(SystemExit) as stopped:
        command(fail, default_recipe=default_config).main(["--config=gone.py", "--help"])
    assert stopped.value.code == 0
    assert_lists_every_option(capsys.readouterr().out)


def test_help_of_train_lists_every_option_with_its_default_and_meaning():
    program = [sys.executable, "-m", "vit_jax.train", "--help"]
    assert_lists_every_option(subprocess.run(program, capture_output=True, text=True).stdout)
