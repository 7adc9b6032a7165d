"""Two processes train one model over gloo: real ones, with two fake devices each."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from vit_jax import checkpoint, models
from vit_jax.parallel import hosts

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "run" / "recipe.py"
OPTIONS = (
    *("--config.total_steps=24", "--config.eval_every=0", "--config.checkpoint_every=0"),
    *("--config.optimizer=sgd", "--config.base_lr=0.1", "--config.optim_dtype=float32"),
    *("--config.progress_every=1", "--config.model.hidden_size=64"),
    "--config.model.transformer.mlp_dim=64",
)


def start(workdir, cache, *options, devices=2):
    command = [sys.executable, "-m", "vit_jax.train", f"--config={RECIPE}", f"--workdir={workdir}"]
    return subprocess.Popen(
        [*command, *OPTIONS, f"--config.compilation_cache={cache}", *options],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)},
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_two(workdir, cache):
    several = (f"--coordinator=127.0.0.1:{free_port()}", "--num_processes=2")
    options = ("--config.parallel.strategy=fsdp", *several)
    return [start(workdir, cache, *options, f"--process_id={i}") for i in range(2)]


def finish(processes):
    errors = [process.communicate(timeout=900)[1] for process in processes]
    return [process.returncode for process in processes], errors


READING = """
import sys
import jax, numpy as np
from vit_jax import checkpoint, models
from vit_jax.checkpoint.npz import Archive
from vit_jax.parallel.mesh import arrange, gather_to_host, state_shardings

path, coordinator, process = sys.argv[1:]
jax.distributed.initialize(coordinator, 2, int(process))
read, bytes_read = Archive.read, []
def counted(*args):
    array = read(*args)
    bytes_read.append(array.nbytes)
    return array
Archive.read = counted
mesh = arrange(jax.devices(), 4, 1)
with checkpoint.open(path) as found, jax.set_mesh(mesh):
    target = checkpoint.recover_tree(list(found.shapes), list(found.shapes.values()))
    fitted = found.fit(target, keep_head=True)
    params = gather_to_host(fitted.restore(state_shardings(mesh, target)))
with np.load(path) as file:
    (name,) = [name for name in file if name.endswith("Dense_0/kernel")]
    whole = sum(file[name].nbytes for name in file)
    kernel = params["Transformer"]["encoderblock_0"]["MlpBlock_0"]["Dense_0"]["kernel"]
    assert np.array_equal(kernel, file[name])
print(sum(bytes_read) / whole)
"""


def test_each_process_reads_the_part_of_a_checkpoint_that_it_holds(tmp_path):
    model = models.get_model(
        "testing", num_classes=8, hidden_size=128, transformer={"mlp_dim": 512}
    )
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    params = jax.tree.map(lambda s: np.random.default_rng(0).random(s.shape, np.float32), shapes)
    checkpoint.save(params, tmp_path / "model.npz")
    program = [sys.executable, "-c", READING, str(tmp_path / "model.npz")]
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [*program, address, str(i)],
            cwd=ROOT,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    for out, _ in results:  # half, and the small arrays, which every device holds
        assert 0.5 <= float(out.split()[-1]) < 0.6


def test_two_processes_stop_together_and_end_as_one_process_would(tmp_path):
    alone = start(tmp_path / "alone", tmp_path / "cache", devices=1)
    assert finish([alone])[0] == [0]

    processes = start_two(tmp_path / "two", tmp_path / "cache")
    for line in processes[0].stderr:
        if line.startswith("step 3/"):
            processes[1].send_signal(signal.SIGTERM)
            break
    codes, errors = finish(processes)
    assert codes == [75, 75], errors
    (saved,) = {text.split("Saved step ")[1].split()[0] for text in errors}  # the same of both
    assert checkpoint.load(tmp_path / "two" / "checkpoints" / saved)

    codes, errors = finish(start_two(tmp_path / "two", tmp_path / "cache"))
    assert codes == [0, 0], errors
    assert f"Resumed at step {saved}" in errors[0]
    assert "step 24" in errors[0]
    assert "step 24" not in errors[1]  # one process speaks
    ours, theirs = (checkpoint.load(tmp_path / name / "model.npz") for name in ("two", "alone"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
    evaluations = {
        (tmp_path / name / "train.log").read_text().split("Finished: ")[-1].split(", after")[0]
        for name in ("two", "alone")
    }
    assert len(evaluations) == 1  # the same accuracy of the same number of examples


def test_a_process_that_dies_stops_the_other_with_a_message():
    script = """if True:
        import sys, time
        from vit_jax.parallel import hosts
        hosts.HEARTBEAT = 10
        hosts.connect(sys.argv[1], 2, int(sys.argv[2]))
        hosts.wait_for_all("start")
        print("started", flush=True)
        time.sleep(600)
    """
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", script, address, str(index)],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in processes] == ["started\n"] * 2
        processes[1].kill()
        _, told = processes[0].communicate(timeout=120)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode != 0
    assert "unhealthy (stopped sending heartbeats):\n1\n" in told, told
    assert "Fatal Python error" not in told  # no stack of ours to bury the message


def test_a_process_whose_others_never_start_ends_with_one_line():
    script = """if True:
        import sys
        from vit_jax.parallel import hosts
        hosts.JOINING = 2
        hosts.connect(sys.argv[1], 2, 1)
    """
    address = f"127.0.0.1:{free_port()}"
    ended = subprocess.run(
        [sys.executable, "-c", script, address],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        f"train: after 2 seconds not all of the processes have joined at {address}"
    )


def test_flags_of_several_processes_go_together():
    with pytest.raises(ValueError, match="--process_id=0…N-1 go together; given were host:1, None"):
        hosts.connect("host:1", None, None)
