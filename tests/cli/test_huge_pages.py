"""A command starts itself once more with huge pages: once, and with the same arguments."""

import os
import subprocess
import sys

import pytest

from vit_jax.cli.huge_pages import TUNABLE

PROGRAM = """
import os, sys
from vit_jax.cli.huge_pages import use_huge_pages
print(os.getpid())
use_huge_pages()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are set on Linux alone")


def run(**environment):
    clean = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "a b", "--c=d"],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_the_process_starts_again_in_place_with_its_arguments():
    first, second, said = run()
    assert first == second  # the same process, so signals and exit codes reach who waits for it
    assert said == f"{TUNABLE} ['a b', '--c=d']"


def test_a_setting_of_the_user_is_left_alone():
    assert run(GLIBC_TUNABLES="glibc.malloc.check=0")[1:] == [
        "glibc.malloc.check=0 ['a b', '--c=d']"
    ]
