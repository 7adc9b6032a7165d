"""What stops a run before its last step: signals, once and twice."""

import io
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.run.stopping import stop_on_signals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_does_what_it_always_did(number, capfd):
    def before(*_):
        raise InterruptedError

    previous = signal.signal(number, before)
    try:
        with stop_on_signals() as stop:
            assert not stop(1)
            signal.raise_signal(number)
            assert stop(2)
            with pytest.raises(InterruptedError):
                signal.raise_signal(number)
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, previous)
    assert f"Got {number.name}: saving, then stopping." in capfd.readouterr().err


def test_a_second_ctrl_c_stops_a_run_that_is_still_saving(tmp_path):
    program = f"""
import sys, threading
from vit_jax import train
from vit_jax.run.checkpoints import RunCheckpoints

def save(*_, **__):
    print("A save without end.", file=sys.stderr, flush=True)
    threading.Event().wait()

RunCheckpoints.save = save
sys.exit(train.main(["--config={ROOT}/tests/run/recipe.py", "--workdir={tmp_path}/run",
                     "--config.total_steps=100000", "--config.checkpoint_every=0"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in process.stderr:
            if "Compiled in" in line or "A save without end" in line:
                process.send_signal(signal.SIGINT)
            if "A save without end" in line:
                break
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Saved step" not in rest


def test_a_signal_in_the_middle_of_a_line_of_the_log_is_noted(capfd):
    """A buffered stream cannot be entered twice, so the handler must not use one."""

    class Interrupted(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            if not stop(1):
                signal.raise_signal(signal.SIGTERM)
            return len(data)

    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(Interrupted())))
    log = logging.getLogger("vit_jax")
    log.addHandler(handler)
    try:
        with stop_on_signals() as stop:
            log.warning("a line")
            assert stop(1)
    finally:
        log.removeHandler(handler)
    logged = capfd.readouterr().err
    assert "Got SIGTERM: saving" in logged
    assert "Logging error" not in logged
