"""Files appear whole or not at all, and what killed processes left is cleared away."""

import errno
import os
import subprocess
import sys

import pytest

from vit_jax.atomic import clear_leftovers, disk_errors, replacing, writer

HERE = writer().partition("@")[2]


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_killed_process_leaves_the_old_file_and_the_next_writer_clears_up(tmp_path):
    path = tmp_path / "model.npz"
    path.write_text("old")
    program = f"""
import os
from vit_jax.atomic import replacing
with replacing({str(path)!r}) as partial:
    partial.write_text("ne")
    os._exit(9)
"""
    subprocess.run([sys.executable, "-c", program])
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    with replacing(path) as partial:
        partial.write_text("new")
    assert [file.name for file in tmp_path.iterdir()] == ["model.npz"]
    assert path.read_text() == "new"


def test_what_others_still_write_is_left_alone(tmp_path):
    names = {
        f".model.{os.getpid()}@{HERE}.partial.npz": True,  # this process, of another file perhaps
        f".model.{os.getppid()}@{HERE}.partial.npz": True,
        f".model.{gone()}@{HERE}.partial.npz": False,
        f".model.{gone()}@another-host.partial.npz": True,
        f".old.{gone()}@another-host.partial.npz": False,
        f".folder.{gone()}@{HERE}.partial": False,
        ".weights.npz.partial": True,  # a download that goes on
        "model.npz": True,
    }
    for name in names:
        (tmp_path / name).mkdir() if "folder" in name else (tmp_path / name).touch()
        if name.startswith(".old"):
            os.utime(tmp_path / name, (0, 0))
    clear_leftovers(tmp_path)
    stayed = {file.name for file in tmp_path.iterdir()}
    assert stayed == {name for name, stays in names.items() if stays}


def test_one_file_may_be_written_while_another_is(tmp_path):
    with replacing(tmp_path / "a") as a:
        a.write_text("a")
        with replacing(tmp_path / "b") as b:
            b.write_text("b")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    "raised",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError(f"RESOURCE_EXHAUSTED: …{'page ' * 1000}: No space left on device [28]"),
    ],
)
def test_a_full_disk_is_one_error_with_the_file(raised, tmp_path):
    with pytest.raises(OSError) as found, replacing(tmp_path / "out") as partial:
        partial.with_name(f"{partial.name}.orbax-checkpoint-tmp").mkdir()
        raise raised
    assert found.value.filename == str(tmp_path / "out")
    assert found.value.strerror == os.strerror(errno.ENOSPC)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_behind_another_error_is_found_and_other_errors_are_left_alone():
    inner = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "inner")
    said = "Disk quota exceeded: make room: 'inner'"
    with pytest.raises(OSError, match=said), disk_errors("run", ": make room"):
        raise RuntimeError("the save failed") from inner
    with pytest.raises(KeyError), disk_errors("run"):
        raise KeyError("ours")
