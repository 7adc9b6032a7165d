"""What a process may take of a machine, by figures that the test writes."""

import psutil
import pytest

from tests.run.recipe import get_config
from vit_jax.planning import footprint
from vit_jax.planning.host_memory import available_memory
from vit_jax.train import train_and_evaluate

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root directory to write control groups into, on a machine with 64 of 128 GiB free."""
    memory = type("Memory", (), {"available": 64 * GIB, "total": 128 * GIB})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    def write(files):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        return tmp_path

    return write


def test_without_control_groups_it_is_what_the_machine_has_left(machine):
    assert available_memory(machine({})) == 64 * GIB


V2 = {"proc/self/cgroup": "0::/jobs/one"}
V1 = {"proc/self/cgroup": "5:devices:/\n4:cpuacct,memory:/one\n0::/"}


@pytest.mark.parametrize(
    ("files", "room"),
    [
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/one/memory.max": 16 * GIB,
                "sys/fs/cgroup/jobs/one/memory.current": 10 * GIB,
                "sys/fs/cgroup/jobs/one/memory.stat": f"anon 5\ninactive_file {3 * GIB}",
            },
            9 * GIB,
        ),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/one/memory.max": "max",
                "sys/fs/cgroup/jobs/one/memory.current": 10 * GIB,
                "sys/fs/cgroup/jobs/memory.max": 12 * GIB,  # the group around it
                "sys/fs/cgroup/jobs/memory.current": 10 * GIB,
                "sys/fs/cgroup/jobs/memory.stat": "anon 5",
            },
            2 * GIB,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/one/memory.limit_in_bytes": 4 * GIB,
                "sys/fs/cgroup/memory/one/memory.usage_in_bytes": 1 * GIB,
                "sys/fs/cgroup/memory/one/memory.stat": "cache 7\ntotal_inactive_file 0",
            },
            3 * GIB,
        ),
        (
            {
                **V2,  # as seen in a container, whose group is the root of what it sees
                "sys/fs/cgroup/memory.max": 2 * GIB,
                "sys/fs/cgroup/memory.current": 3 * GIB,
                "sys/fs/cgroup/memory.stat": "anon 5",
            },
            0,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 2**63}, 64 * GIB),
    ],
)
def test_the_tightest_control_group_decides(machine, files, room):
    assert available_memory(machine(files)) == room


def test_here_it_is_some_of_the_memory():
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_a_run_that_would_be_killed_for_its_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(footprint, "available_memory", lambda: 8 * 10_000_000)  # eight devices
    config = get_config()
    config.batch, config.batch_eval = 2048, 65_536
    with pytest.raises(ValueError, match=r"Training .*accum_steps=\d+ .*Evaluation .*batch_eval"):
        train_and_evaluate(config, tmp_path)
