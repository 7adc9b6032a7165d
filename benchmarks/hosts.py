"""Trains with several processes on this machine, disturbs them, and compares with one process.

    python -m benchmarks.hosts [--only TEXT]       # results in benchmarks/results/hosts.json

Processes communicate over gloo, each with fake CPU devices. Every scenario ends with the weights of
a complete run; `difference` is the largest difference from those of one process on one device.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks.machine import about

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "hosts.json"
RECIPE = ROOT / "tests" / "run" / "recipe.py"
OPTIONS = ("--config.optimizer=sgd", "--config.base_lr=0.1", "--config.optim_dtype=float32")


@dataclasses.dataclass(frozen=True)
class Launch:
    """One start of the job; `disturb` is sent to one process, once there is a checkpoint."""

    processes: int
    devices: int  # of each process
    strategy: str
    tensor: int = 1
    disturb: signal.Signals | None = None


SCENARIOS = {
    "2 processes × 4 devices, pmap": [Launch(2, 4, "pmap")],
    "2 processes × 4 devices, fsdp": [Launch(2, 4, "fsdp")],
    "4 processes × 2 devices, fsdp": [Launch(4, 2, "fsdp")],
    "4 processes × 2 devices, fsdp with tensor 2": [Launch(4, 2, "fsdp", tensor=2)],
    "SIGTERM to one of 4, then all again": [
        Launch(4, 2, "fsdp", disturb=signal.SIGTERM),
        Launch(4, 2, "fsdp"),
    ],
    "kill -9 one of 4, then all again": [
        Launch(4, 2, "fsdp", disturb=signal.SIGKILL),
        Launch(4, 2, "fsdp"),
    ],
    "8 devices, then 2, then 1, each stopped by SIGTERM": [
        Launch(2, 4, "fsdp", disturb=signal.SIGTERM),
        Launch(1, 2, "pmap", disturb=signal.SIGTERM),
        Launch(1, 1, "jit"),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only scenarios with this in their name")
    only = parser.parse_args().only
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"scenarios": {}}
    with tempfile.TemporaryDirectory() as scratch:
        alone = run("alone", [Launch(1, 1, "jit")], pathlib.Path(scratch))
        for name, launches in SCENARIOS.items():
            if only in name:
                found = run(name, launches, pathlib.Path(scratch))
                found["difference"] = distance(found.pop("weights"), alone["weights"])
                found["same_evaluation"] = found["evaluation"] == alone["evaluation"]
                print(name, json.dumps(found), flush=True)
                results["scenarios"][name] = found
                results["about"] = about(("jax", "jaxlib", "orbax-checkpoint"))
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def run(name: str, launches: list[Launch], scratch: pathlib.Path) -> dict:
    workdir = scratch / re.sub(r"\W+", "-", name)
    told = [start(launch, workdir, scratch / "compiled") for launch in launches]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    evaluation = [row for row in map(json.loads, lines) if "test/accuracy" in row][-1]
    kept = {"step": evaluation["step"], "accuracy": evaluation["test/accuracy"]}
    with np.load(workdir / "model.npz") as file:
        weights = {key: file[key] for key in file.files if file[key].dtype == np.float32}
    return {"launches": told, "evaluation": kept, "weights": weights}


def start(launch: Launch, workdir: pathlib.Path, cache: pathlib.Path) -> dict:
    """Starts all processes, disturbs one, waits for them to end, and returns what happened."""
    port = free_port()
    processes = [
        subprocess.Popen(
            command(launch, workdir, cache, port, index),
            cwd=ROOT,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": str(launch.devices), "NPROC": "16"},
            stderr=subprocess.PIPE if index == 0 else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for index in range(launch.processes)
    ]
    told, disturbed, before = [], None, last_step(workdir)
    for line in processes[0].stderr:
        told.append(line.strip())
        if launch.disturb and disturbed is None and last_step(workdir) > before:
            processes[-1].send_signal(launch.disturb)
            disturbed = time.monotonic()
    codes = [process.wait() for process in processes]
    ended = {"seconds_to_stop": round(time.monotonic() - disturbed, 1)} if disturbed else {}
    said = [t for t in told if re.search(r"Saved step|Resumed|Finished|unhealthy|heartbeat", t)]
    return {
        "processes": launch.processes,
        "devices": launch.processes * launch.devices,
        "strategy": launch.strategy,
        "signal": launch.disturb.name if launch.disturb else None,
        "exit_codes": codes,
        "last_checkpoint": last_step(workdir),
        **ended,
        "said": [text.replace(str(workdir), "WORKDIR")[:200] for text in said[:3]],
    }


def last_step(workdir: pathlib.Path) -> int:
    """The newest checkpoint's step; 0 if there is none."""
    steps = (workdir / "checkpoints").glob("*")
    return max((int(path.name) for path in steps if path.name.isdigit()), default=0)


def command(launch: Launch, workdir, cache, port: int, index: int) -> list[str]:
    several = (f"--coordinator=127.0.0.1:{port}", f"--num_processes={launch.processes}")
    several = (*several, f"--process_id={index}") if launch.processes > 1 else ()
    return [
        *(sys.executable, "-m", "vit_jax.train", f"--config={RECIPE}", f"--workdir={workdir}"),
        *OPTIONS,
        f"--config.compilation_cache={cache}",
        f"--config.parallel.strategy={launch.strategy}",
        f"--config.parallel.tensor={launch.tensor}",
        *several,
    ]


def distance(a: dict, b: dict) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(x - y).max()) for x, y in zip(a.values(), b.values(), strict=True))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
