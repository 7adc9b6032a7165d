"""Several processes, one run. JAX finds them, watches them and makes them agree; this asks it to.

The death of a process is noticed at once if it was the first, else after `HEARTBEAT` seconds. JAX
then ends all others with a message, and the job's launcher can start them all again.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from vit_jax import signals

HEARTBEAT = 60  # seconds without a sign of life after which a process counts as dead
PATIENCE = 3600  # seconds that processes wait for each other, for example to compile


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the job's other processes, found by the flags or by the cluster; else runs alone.

    JAX knows SLURM, GKE, Cloud TPU and Open MPI. Call it before anything touches a device.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given):
        if (
            coordinator is None
            or num_processes is None
            or not re.fullmatch(r"\S+:\d{1,5}", coordinator)
            or process_id not in range(num_processes)
        ):
            raise ValueError(
                "--coordinator=HOST:PORT, --num_processes=N and --process_id=0…N-1 go together; "
                f"given were {coordinator}, {num_processes} and {process_id}."
            )
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    else:
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError as e:
            if "coordinator_address" not in str(e):
                raise
            return
    # When another process dies, JAX says so and aborts; a Python stack would bury the message.
    faulthandler.disable()


def is_first() -> bool:
    """Whether this is the process that writes logs and exports."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Waits until every process has done `what`, however long it takes some of them.

    Collectives are less patient: gloo's give up when a process is 30 seconds late.
    """
    multihost.get_barrier_sync_fn()(key=what, timeout_ms=1000 * PATIENCE)


@contextlib.contextmanager
def stop_together() -> Iterator[Callable[[int], bool]]:
    """A function to ask after every step: is it the one to stop after? All processes agree on it.

    JAX listens for a SIGTERM to any process and tells the others; Ctrl-C counts as one.
    """
    previous = signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with signals.asking_first():
            yield multihost_utils.reached_preemption_sync_point
    finally:
        signal.signal(signal.SIGINT, previous)


def leave(code: int) -> None:
    """Ends a failed process without waiting for the others, as an orderly exit would."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
