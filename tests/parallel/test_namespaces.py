"""Three hosts, each in a network namespace, train one model. They die in every way; it goes on."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
HOSTS = 3
OPTIONS = (
    *("--config.total_steps=18", "--config.eval_every=0", "--config.checkpoint_every=2"),
    *("--config.batch=24", "--config.batch_eval=24", "--config.model.hidden_size=24"),
    *("--config.model.transformer.num_layers=1", "--config.parallel.strategy=fsdp"),
    *("--coordinator=first:1234", f"--num_processes={HOSTS}"),
)
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # so that compiling takes half the time
}


def ip(*words: str, program: str = "ip") -> None:
    try:
        subprocess.run([program, *words], check=True, capture_output=True, text=True)
    except FileNotFoundError as e:
        raise OSError(f"there is no program {program}") from e
    except subprocess.CalledProcessError as e:
        raise OSError(f"{program} {' '.join(words)}: {e.stderr.strip()}") from e


class Network:
    """A namespace with a switch, and one for each host, whose own name resolves to loopback."""

    def __init__(self) -> None:
        self.switch = f"vit{os.getpid()}s"
        self.hosts = [f"vit{os.getpid()}h{i}" for i in range(HOSTS)]

    def build(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch0", "up")
        for i, host in enumerate(self.hosts):
            ip("netns", "add", host)
            here, there = ("link", "add", f"port{i}"), ("peer", "name", "eth0", "netns", host)
            ip("-n", self.switch, *here, "type", "veth", *there)
            self.join(i)
            ip("-n", host, "addr", "add", f"10.61.0.{i + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", host, "link", "set", device, "up")
            names = Path("/etc/netns") / host / "hosts"  # what `ip netns exec` puts on /etc/hosts
            names.parent.mkdir(parents=True)
            first = "127.0.1.1" if i == 0 else "10.61.0.1"
            names.write_text(
                f"127.0.0.1 localhost\n127.0.1.1 {os.uname().nodename}\n{first} first\n"
            )
        self.slow(0)
        ip("-n", self.switch, "qdisc", "del", "dev", "port0", "root", program="tc")

    def join(self, host: int) -> None:
        ip("-n", self.switch, "link", "set", f"port{host}", "master", "switch0", "up")

    def cut(self, host: int) -> None:
        """Packets vanish, and nobody is told."""
        ip("-n", self.switch, "link", "set", f"port{host}", "nomaster")

    def slow(self, host: int) -> None:
        limit = ("tbf", "rate", "1mbit", "burst", "32kbit", "latency", "400ms")
        device = ("dev", f"port{host}", "root")
        ip("-n", self.switch, "qdisc", "add", *device, *limit, program="tc")

    def remove(self) -> None:
        for name in (*self.hosts, self.switch):
            with contextlib.suppress(OSError):
                ip("netns", "del", name)
            with contextlib.suppress(OSError):
                (Path("/etc/netns") / name / "hosts").unlink()
                (Path("/etc/netns") / name).rmdir()


class Job:
    """The processes of test hosts; `run` starts the command on each and waits for their ends."""

    def __init__(self, network: Network, scratch: Path) -> None:
        self.network, self.scratch, self.runs = network, scratch, 0
        self.processes = [
            subprocess.Popen(
                ["ip", "netns", "exec", host, sys.executable, str(ROOT / "tests/parallel/host.py")],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for host in network.hosts
        ]

    def run(self, workdir: str, victim: int = -1, what: int | str = 0, after_step: int = 0):
        """Exit codes, and what each process has said."""
        self.runs += 1
        told = [self.scratch / f"{self.runs}.{i}" for i in range(HOSTS)]
        recipe, cut = ROOT / "tests/run/recipe.py", self.scratch / f"{self.runs}.cut"
        for i, process in enumerate(self.processes):
            arguments = [f"--config={recipe}", f"--workdir={self.scratch / workdir}", *OPTIONS]
            arguments += [f"--config.compilation_cache={self.scratch / 'compiled'}"]
            disturb = [str(cut) if what == "cut" else what, after_step] if i == victim else None
            order = {"output": str(told[i]), "disturb": disturb}
            order["arguments"] = [*arguments, f"--process_id={i}"]
            print(json.dumps(order), file=process.stdin, flush=True)
        deadline, codes = time.monotonic() + 600, list[int]()
        for process in self.processes:
            while not select.select([process.stdout], [], [], 0.1)[0]:
                assert time.monotonic() < deadline, [path.read_text() for path in told]
                if cut.exists():
                    cut.unlink()
                    self.network.cut(victim)
            codes.append(int(process.stdout.readline()))
        return codes, [path.read_text() for path in told]

    def end(self) -> None:
        for process in self.processes:
            process.stdin.close()
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path):
    network = Network()
    try:
        network.build()
    except OSError as error:
        network.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    job = Job(network, tmp_path)
    yield job
    job.end()
    network.remove()


@pytest.mark.slow
def test_a_run_goes_on_after_every_kind_of_death_and_ends_the_same(job):
    codes, told = job.run("straight")
    assert codes == [0, 0, 0], told

    codes, told = job.run("disturbed", 2, signal.SIGKILL, after_step=5)
    assert codes == [1, 1, -9], told
    for text in told[:2]:  # one line, and nothing else
        lines = [line for line in text.splitlines() if line.startswith("train: ")]
        assert len(lines) == 1 and "start all again" in lines[0], text
        assert "Traceback" not in text and "stack trace" not in text, text

    codes, told = job.run("disturbed", 0, signal.SIGKILL, after_step=7)
    assert "Resumed at step" in told[0], told
    assert 0 not in codes, told
    for text in told[1:]:
        assert "start all again" in text or "the leader task" in text, text

    codes, told = job.run("disturbed", 2, "cut", after_step=9)
    assert "Resumed at step" in told[0], told
    assert 0 not in codes, told
    for text in told[:2]:
        assert "stopped sending heartbeats):\n2\n" in text, text
    job.network.join(2)

    codes, told = job.run("disturbed", 1, signal.SIGTERM, after_step=11)
    assert codes == [75, 75, 75], told
    assert all("Saved step" in text for text in told), told

    job.network.slow(1)
    codes, told = job.run("disturbed")
    assert codes == [0, 0, 0], told
    assert "Resumed at step" in told[0], told

    paths = (job.scratch / name / "model.npz" for name in ("straight", "disturbed"))
    straight, disturbed = (dict(np.load(path)) for path in paths)
    assert straight.keys() == disturbed.keys()
    different = [name for name in straight if not np.array_equal(straight[name], disturbed[name])]
    assert not different
