"""A command that computes on a CPU starts itself once more with huge pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.cli.huge_pages import TUNABLE, accelerators, wanted

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from vit_jax.cli.huge_pages import use_huge_pages
print(os.getpid())
use_huge_pages()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are set on Linux alone")


def run(*command, **environment):
    clean = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    return subprocess.run(
        [sys.executable, *command],
        env=clean | {"JAX_PLATFORMS": "cpu"} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


@on_linux
def test_the_process_starts_again_in_place_with_its_arguments():
    first, second, said = run("-c", PROGRAM, "a b", "--c=d")
    assert first == second  # the same process, so signals and exit codes reach whoever waits for it
    assert said == f"{TUNABLE} ['a b', '--c=d']"


@on_linux
def test_a_setting_of_the_user_is_left_alone():
    said = run("-c", PROGRAM, GLIBC_TUNABLES="glibc.malloc.check=0")
    assert said[1:] == ["glibc.malloc.check=0 []"]


@on_linux
@pytest.mark.parametrize(
    "command",
    [
        *(["-m", f"vit_jax.{name}"] for name in ("train", "main", "predict", "evaluate")),
        *(["-m", "vit_jax", name] for name in ("train", "predict", "evaluate")),
        ["-c", "from vit_jax.__main__ import main; main()", "train"],  # as the console script does
    ],
    ids=" ".join,
)
def test_the_commands_that_compute_have_huge_pages(command, tmp_path):
    """Python imports sitecustomize at each start: this one ends the second start and says so."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if setting := os.environ.get('GLIBC_TUNABLES'):\n"
        "    print(setting, sys.orig_argv[1:], flush=True)\n"
        "    os._exit(0)\n"
    )
    said = run(*command, "--some=arguments", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert said == [f"{TUNABLE} {[*command, '--some=arguments']}"]


@pytest.mark.parametrize(
    ("environ", "devices", "platform", "expected"),
    [
        ({}, [], "linux", True),
        ({}, [], "darwin", False),
        ({"GLIBC_TUNABLES": ""}, [], "linux", False),
        ({}, ["/dev/nvidia0"], "linux", False),
        ({"JAX_PLATFORMS": ""}, ["/dev/nvidia0"], "linux", False),
        ({"JAX_PLATFORMS": "cpu"}, ["/dev/nvidia0"], "linux", True),
        ({"JAX_PLATFORMS": "cpu,cuda"}, ["/dev/nvidia0"], "linux", True),
        ({"JAX_PLATFORMS": "tpu,cpu"}, [], "linux", False),
        ({"JAX_PLATFORMS": "cuda"}, [], "linux", False),
    ],
)
def test_huge_pages_are_for_linux_and_the_cpu(environ, devices, platform, expected):
    assert wanted(environ, [Path(device) for device in devices], platform) == expected


@pytest.mark.parametrize("device", ["nvidia0", "nvidia12", "kfd", "accel3", "vfio/0"])
def test_the_device_file_of_an_accelerator_is_found(device, tmp_path):
    (tmp_path / "vfio").mkdir()
    (tmp_path / device).touch()
    assert accelerators(tmp_path) == [tmp_path / device]


def test_other_device_files_are_no_accelerators(tmp_path):
    for name in ("accel", "vfio"):  # an Intel laptop has /dev/accel/accel0, which JAX cannot use
        (tmp_path / name).mkdir()
    for name in ("null", "vfio/vfio", "accel/accel0", "nvidiactl", "nvidia-modeset"):
        (tmp_path / name).touch()
    assert accelerators(tmp_path) == []
