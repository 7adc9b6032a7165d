"""What a wheel and an sdist contain: all that the commands need, and no links."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import vit_jax

ROOT = Path(__file__).parents[2]
DATA = ["py.typed", "checkpoint/catalog.csv", "explanation/page.html"]


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git checkout")
    return result.stdout.splitlines()


def build(kind, folder, root=ROOT):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (path,) = Path(folder).glob(f"vit_jax-{vit_jax.__version__}*")
    return path


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("sdist", tmp_path_factory.mktemp("sdist"))


def expected():
    """The names in a wheel of everything in the working tree that it must have."""
    package = [
        path for path in (ROOT / "vit_jax").rglob("*") if path.suffix in (".py", ".txt", ".gz")
    ]
    names = {path.relative_to(ROOT).as_posix() for path in package}
    names |= {f"vit_jax/{name}" for name in DATA}
    names |= {f"vit_jax/configs/{path.name}" for path in (ROOT / "configs").glob("*.py")}
    return names | {"vit_jax/checkpoints/fashion_mnist_vit.npz"}


def test_a_wheel_has_all_that_the_commands_need(tmp_path):
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == expected()
        (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert "vit_jax = vit_jax.__main__:main" in wheel.read(entry_points).decode()


def test_a_wheel_made_from_the_sdist_is_the_same(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.islnk() or member.issym()]
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    with zipfile.ZipFile(build("wheel", tmp_path / "wheel", root)) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected()


def test_every_tracked_file_of_the_package_is_expected_in_the_wheel():
    tracked = {name for name in git("ls-files", "vit_jax") if (ROOT / name).exists()}
    assert tracked <= expected()


def test_the_repository_has_no_links():
    """Windows checks them out as text files."""
    assert not [line for line in git("ls-files", "-s") if line.startswith("120000")]
