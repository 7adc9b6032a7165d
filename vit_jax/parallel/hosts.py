"""Several processes, one run. JAX finds them, watches them and lets them agree; this asks it to.

A process that dies is missed at once if it was the first, else after `HEARTBEAT` seconds, and then
JAX ends every other one with a message: the job's launcher may start all of them again.
"""

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

HEARTBEAT = 60  # seconds without a sign of life after which a process counts as dead
PATIENCE = 3600  # seconds that living ones wait for each other, for example to compile


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the job's other processes, as the flags or the cluster say; alone where neither does.

    JAX knows SLURM, GKE, Cloud TPU and Open MPI. Must come before anything touches a device.
    """
    given = (coordinator, num_processes, process_id)
    watched = {"heartbeat_timeout_seconds": HEARTBEAT}
    if any(value is not None for value in given):
        if None in given:
            raise ValueError(
                "--coordinator=HOST:PORT, --num_processes=N and --process_id=0…N-1 go together; "
                f"given were {coordinator}, {num_processes} and {process_id}."
            )
        method = {"cluster_detection_method": "deactivate"}
        jax.distributed.initialize(coordinator, num_processes, process_id, **method, **watched)
    else:
        try:
            jax.distributed.initialize(**watched)
        except ValueError as e:
            if "coordinator_address" not in str(e):
                raise
            return
    # JAX aborts where another process died, and says so; a Python stack would bury the message.
    faulthandler.disable()


def is_first() -> bool:
    """Whether this is the process that writes logs and exports."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Waits until every process has done `what`, which need not take all of them equally long.

    Collectives have less patience: gloo's give up where one process comes 30 seconds late.
    """
    multihost.get_barrier_sync_fn()(key=what, timeout_ms=1000 * PATIENCE)


class AgreedStop:
    """After a SIGTERM to any process, true in all of them at the same step."""

    def at(self, step: int) -> bool:
        """To be asked after every step."""
        return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def stop_together() -> Iterator[AgreedStop]:
    """JAX listens for SIGTERM and tells the others; Ctrl-C counts as one."""
    previous = signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield AgreedStop()
    finally:
        signal.signal(signal.SIGINT, previous)


def leave(code: int) -> None:
    """Ends a process that failed, without waiting for the others as an orderly exit would."""
    if jax.process_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
