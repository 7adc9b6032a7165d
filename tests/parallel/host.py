"""A host of test_namespaces.py: starts `vit_jax.train` as often as it is told to.

Each line of its input is one start, as JSON: the command's arguments, a file for what it says, and
what happens to it after which step. The answer is the exit code. Starts are forks of this process,
which has done the imports.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from pathlib import Path

from vit_jax.parallel import hosts
from vit_jax.train import main

for late in ("sklearn.datasets", "matplotlib.pyplot"):  # which every start would import again
    importlib.import_module(late)
hosts.HEARTBEAT = 10
stop_together = hosts.stop_together


@contextlib.contextmanager
def disturbed(what: str | int, after_step: int):
    """In place of `stop_together`: a signal, or a file to make so that the test cuts the link."""
    with stop_together() as stop:

        def ask(step: int) -> bool:
            if step == after_step:
                os.kill(os.getpid(), what) if isinstance(what, int) else Path(what).touch()
                time.sleep(2)  # until it has happened
            return stop(step)

        yield ask


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 (orders are not for the command)
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if order["disturb"]:
            hosts.stop_together = lambda disturb=order["disturb"]: disturbed(*disturb)
        sys.exit(main(order["arguments"]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
