"""What all commands share."""

from vit_jax.cli import command as commands


def test_the_systems_own_errors_name_the_file_and_the_reason(tmp_path, capsys):
    assert commands.explained("convert", lambda: tmp_path.read_bytes()) == 1
    assert capsys.readouterr().err == f"convert: {tmp_path}: Is a directory.\n"
