"""Reader processes: they live as long as the iterator that they read for.

If one of them is killed, the iterator raises; if the iterator is closed, or its process ends in
any way, they end too.
"""

import atexit
import contextlib
import dataclasses
import functools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from multiprocessing import resource_tracker
from typing import Any

import grain
from absl import flags

_GRACE = 1  # seconds for a reader to end by itself: it may be in the middle of a large batch


@dataclasses.dataclass(frozen=True)
class ReadByWorkers:
    """Elements of `dataset`, each read by one of `num_workers` processes, in the same order.

    Their arrays are in shared memory; `finish` makes of them what is iterated over.

    A reader keeps a connection to `life` and ends when it breaks. Nobody needs to accept it, and
    the system breaks it even if this process is killed. Grain alone would leave the readers behind,
    and on closing wait up to 25 seconds for each of them in turn.
    """

    dataset: grain.IterDataset[Any]
    num_workers: int
    finish: Callable[[grain.IterDataset[Any]], grain.IterDataset[Any]]

    def __iter__(self) -> Generator[Any, None, None]:
        if not flags.FLAGS.is_parsed():  # grain hands the flags to its workers
            flags.FLAGS.mark_as_parsed()
        # A killed reader leaves shared memory. Python's tracker frees it, and need not say so.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        resource_tracker.ensure_running()
        if threading.current_thread() is not threading.main_thread():
            # Readers inherit this. Ctrl-C reaches them too, but it is for the run to answer.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        options = grain.multiprocessing.MultiprocessingOptions(self.num_workers)
        with socket.create_server(("127.0.0.1", 0), backlog=self.num_workers) as life:
            end_with = functools.partial(_end_with, life.getsockname()[1])
            iterator = iter(self.finish(self.dataset.mp_prefetch(options, end_with)))
            atexit.register(life.close)
            try:
                yield from iterator
            except RuntimeError as error:
                if code := re.search(r"exit code (-?\d+)", str(error)):
                    raise ChildProcessError(_explain(int(code[1]))) from error
                raise
            finally:
                atexit.unregister(life.close)
                life.close()
                iterator.close()


def _end_with(port: int, *_: int) -> None:
    """Runs in a reader, and ends it soon after the other side of the connection has gone."""

    def watch(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        time.sleep(_GRACE)
        os._exit(0)

    connection = socket.create_connection(("127.0.0.1", port))
    threading.Thread(target=watch, args=[connection], daemon=True).start()


def _explain(code: int) -> str:
    if code >= 0:
        return f"a reader process ended with exit code {code}; it may have said why above."
    name = signal.Signals(-code).name
    return (
        f"a reader process was killed by {name}, perhaps because memory ran out. Start the run "
        "again with fewer config.reader_workers, or fewer config.reader_threads for each."
    )
