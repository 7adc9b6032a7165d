"""Several processes, one run. JAX finds them, watches them and makes them agree; this asks it to.

The death of a process is noticed at once if it was the first, else after `HEARTBEAT` seconds. JAX
then ends all others with a message, and the job's launcher can start them all again.
"""

import contextlib
import faulthandler
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import distributed
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from vit_jax import signals

log = logging.getLogger(__name__)

HEARTBEAT = 60  # seconds without a sign of life after which a process counts as dead
JOINING = 300  # seconds that a process waits for the others to start
LINGER = 3  # seconds that the first process outlives an error
PATIENCE = 3600  # seconds that processes wait for each other, for example to compile
_job = distributed.global_state
_FIRST = "vit_jax/first"  # where the others find the first process


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the job's other processes, found by the flags or by the cluster; else runs alone.

    JAX knows SLURM, GKE, Cloud TPU and Open MPI. Call it before anything touches a device.
    """
    given = (coordinator, num_processes, process_id)
    by_flags = given != (None, None, None)
    if by_flags and (
        not re.fullmatch(r"\S+:\d{1,5}", coordinator or "")
        or process_id not in range(num_processes or 0)
    ):
        raise ValueError(
            "--coordinator=HOST:PORT, --num_processes=N and --process_id=0…N-1 go together; "
            f"given were {coordinator}, {num_processes} and {process_id}."
        )
    try:
        with _patience_to_join():
            jax.distributed.initialize(
                *given,
                cluster_detection_method="deactivate" if by_flags else None,
                heartbeat_timeout_seconds=HEARTBEAT,
                initialization_timeout=2 * JOINING,
            )
    except ValueError as e:
        if by_flags or "coordinator_address" not in str(e):
            raise
        return  # no cluster
    _listen_where_others_are()
    # When another process dies, JAX says so and aborts; a Python stack would bury the message.
    faulthandler.disable()


@contextlib.contextmanager
def _patience_to_join() -> Iterator[None]:
    """Ends the process with a line if it waits here too long; JAX would abort with a stack."""

    def end() -> None:
        told = f"train: after {JOINING} seconds not all of the processes have joined at "
        told += f"{_job.coordinator_address}. Is the command running for every one of them, and "
        os.write(2, f"{told}can each machine reach that address?\n".encode())
        os._exit(1)

    timer = threading.Timer(JOINING, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _listen_where_others_are() -> None:
    """Has collectives of CPUs listen on the address from which this machine reaches the first one.

    JAX has them listen on what the machine's name resolves to. On Debian and its kin that is
    127.0.1.1, where no other machine can connect. If the first process is called by such a name,
    it listens where the second one finds it.
    """
    client: Any = _job.client
    collectives = getattr(jax.config, "jax_cpu_collectives_implementation", "")
    if _job.num_processes == 1 or collectives != "gloo":
        return
    first, port = str(_job.coordinator_address).rsplit(":", 1)
    family, kind, _, _, to = socket.getaddrinfo(first.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(to)  # sends nothing
        address = probe.getsockname()[0]
    if _job.process_id == 1:
        client.key_value_set(_FIRST, to[0])
    elif _job.process_id == 0 and ipaddress.ip_address(address).is_loopback:
        address = client.blocking_key_value_get(_FIRST, 1000 * PATIENCE)

    # JAX has no public way to say it; a JAX that has changed here listens as it always did.
    try:
        from jax._src import xla_bridge
        from jax._src.lib import _jax  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        from jax.extend import backend

        listen, make_client = _jax.make_gloo_tcp_collectives, xla_bridge.make_cpu_client
    except (ImportError, AttributeError) as e:
        log.warning("Collectives listen on what this machine's name resolves to (%s).", e)
        return

    def make() -> Any:
        return make_client(listen(client, hostname=address))

    backend.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


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


def cannot_wait(error: BaseException | None) -> bool:
    """Whether after this error there is no use in waiting for others: they failed, or wait too."""
    return _job.num_processes > 1 and isinstance(error, jax.errors.JaxRuntimeError | OSError)


def leave(code: int) -> None:
    """Ends a failed process without waiting for the others, as an orderly exit would.

    The first one lets others that failed with it end by themselves: without it JAX aborts them.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        if _job.process_id == 0:
            time.sleep(LINGER)
        os._exit(code)
