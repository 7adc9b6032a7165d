"""SIGTERM and Ctrl-C at every moment of a command: one line, and the exit code that is true."""

import io
import logging
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.run.test_train import load_recipe
from vit_jax import checkpoint, signals, train
from vit_jax.__main__ import COMMANDS
from vit_jax.run.stopping import Preempted

ROOT = Path(__file__).parents[1]
OPTIONS = ("--config=tests/run/recipe.py", "--config.eval_every=0", "--config.checkpoint_every=0")
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"  # minutes outside of Python, as in XLA
TRAIN = """
import hashlib, sys
from vit_jax import signals
signals.begin("train", resumes_in="--workdir")
from vit_jax import train
from vit_jax.run.checkpoints import RunCheckpoints

def there(*_, **__):
    print("There.", file=sys.stderr, flush=True)
    {wait}

{place} = there
sys.exit(train.main())
"""


def disturb(program, *arguments, at, send, twice_at=None):
    """Runs a program, sends a signal when it says `at`, again at `twice_at`; its code and lines."""
    process = subprocess.Popen(
        [sys.executable, *program, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if (at and at in line) or (twice_at and twice_at in line):
                process.send_signal(send)
                at = None if at and at in line else at
        return process.wait(timeout=60), lines
    finally:
        process.kill()
        process.wait()


# Before there is anything to save


@pytest.mark.parametrize(
    ("name", "send", "step", "code", "line"),
    [
        ("train", "SIGTERM", None, 75, "train: stopped by SIGTERM. Start it again to go on.\n"),
        ("train", "SIGINT", None, 130, "train: stopped by Ctrl-C.\n"),
        ("train", "SIGINT", "5", 75, "train: stopped by Ctrl-C. Start it again to go on.\n"),
        ("predict", "SIGTERM", None, 143, "predict: stopped by SIGTERM.\n"),
        ("predict", "SIGINT", None, 130, "predict: stopped by Ctrl-C.\n"),
    ],
)
def test_a_signal_during_imports_is_one_line(name, send, step, code, line, tmp_path):
    if step:
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
    program = ("-X", "importtime", "-m", f"vit_jax.{name}")
    arguments = ("--workdir", str(tmp_path))
    ended, lines = disturb(program, *arguments, at="| argparse", send=signal.Signals[send])
    assert ended == code
    assert [said for said in lines if not said.startswith("import time:")] == [line]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_begins_with_its_signals(name):
    """The rest of its imports, and all that it does, come after."""
    text = (ROOT / "vit_jax" / ("data/__main__.py" if name == "data" else f"{name}.py")).read_text()
    first = 'from vit_jax import signals\n\nif __name__ == "__main__":'
    assert text.split('"""\n\n', 1)[1].startswith(first)
    assert f'signals.begin("{name}"' in text


def test_a_signal_does_not_wait_for_a_compilation(tmp_path):
    program = TRAIN.format(place="train.compiled", wait=IN_C)
    arguments = (f"--workdir={tmp_path}", *OPTIONS)
    code, lines = disturb(("-c", program), *arguments, at="There.", send=signal.SIGTERM)
    assert (code, lines[-1]) == (75, "train: stopped by SIGTERM. Start it again to go on.\n")
    assert lines[-2] == "There.\n"
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize(("send", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_leaves_nothing_half_written(send, code, tmp_path):
    program = f"""
import sys, time
from vit_jax import signals
signals.begin("try")
from vit_jax.atomic import replacing
from vit_jax.cli.command import Command

def run(_):
    with replacing({str(tmp_path / "out")!r}) as partial:
        partial.write_text("half")
        print("There.", file=sys.stderr, flush=True)
        time.sleep(60)

sys.exit(Command("try", "", lambda _: None, run).main([]))
"""
    ended, lines = disturb(("-c", program), at="There.", send=signal.Signals[send])
    by = "Ctrl-C" if send == "SIGINT" else send
    assert (ended, lines) == (code, ["There.\n", f"try: stopped by {by}.\n"])
    assert not list(tmp_path.iterdir())


# While a run trains


def test_a_second_ctrl_c_stops_a_run_that_is_still_saving(tmp_path):
    program = TRAIN.format(place="RunCheckpoints.save", wait=IN_C)
    arguments = (f"--workdir={tmp_path}", *OPTIONS)
    code, lines = disturb(
        ("-c", program), *arguments, at="step 5/", send=signal.SIGINT, twice_at="There."
    )
    assert (code, lines[-1]) == (130, "train: stopped by Ctrl-C.\n")
    assert [line for line in lines if line.startswith("Got SIGINT: saving, then stopping.")]


def test_a_signal_during_an_evaluation_waits_for_its_result_and_saves_this_step(
    tmp_path, monkeypatch
):
    evaluate = train.evaluate

    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # some launchers send it twice
        return evaluate(*args)

    monkeypatch.setattr(train, "evaluate", interrupted)
    with pytest.raises(Preempted, match="Saved step 10"):
        train.train_and_evaluate(load_recipe(), tmp_path)
    assert (tmp_path / "checkpoints" / "10").is_dir()
    assert "test/accuracy" in (tmp_path / "metrics.jsonl").read_text()


def test_a_signal_after_the_last_step_changes_nothing(tmp_path, monkeypatch):
    finish = train.Results.finish

    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)
        finish(*args)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(train.Results, "finish", interrupted)
    params = train.train_and_evaluate(load_recipe(), tmp_path)
    jax.tree.map(np.testing.assert_array_equal, checkpoint.load(tmp_path), params)


def test_a_signal_after_a_command_has_ended_changes_nothing():
    program = """
import os, signal
from vit_jax import signals
signals.begin("try")
from vit_jax.cli.command import Command
code = Command("try", "", lambda _: None, lambda _: print("Done.")).main([])
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
raise SystemExit(code)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "Done.\n", "")


# The parts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_a_second_ctrl_c_does_what_it_always_did(number, capfd):
    def before(*_):
        raise InterruptedError

    previous = signal.signal(signal.SIGINT, before)
    try:
        with signals.stop_on_signals() as stop:
            assert not stop(1)
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGTERM)
            assert stop(2)
            with pytest.raises(InterruptedError):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, previous)
    assert capfd.readouterr().err.count(f"Got {number.name}: saving, then stopping.") == 1


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
        with signals.stop_on_signals() as stop:
            log.warning("a line")
            assert stop(1)
    finally:
        log.removeHandler(handler)
    logged = capfd.readouterr().err
    assert "Got SIGTERM: saving" in logged
    assert "Logging error" not in logged


def test_a_forked_process_keeps_its_signals_to_itself():
    program = """
import os, signal, time
from vit_jax import signals
signals.begin("try")
if not (child := os.fork()):
    time.sleep(60)
time.sleep(0.1)
os.kill(child, signal.SIGTERM)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
time.sleep(0.1)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
