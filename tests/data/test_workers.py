"""Reader processes and the process that they read for end together."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.data import prefetch_to_device, train_batches

ROOT = Path(__file__).parents[2]


def test_a_killed_reader_ends_the_iteration_and_the_other_readers(numbered, config_for):
    batches = prefetch_to_device(train_batches(config_for(numbered, reader_workers=2)))
    next(batches)
    readers = multiprocessing.active_children()
    for reader in readers:
        reader.terminate()  # as Ctrl-C does, and as clusters do to all processes of a job
    for _ in range(20):
        next(batches)  # it is for the run to decide
    readers[0].kill()
    with pytest.raises(ChildProcessError, match=r"killed by SIGKILL.*fewer config.reader_workers"):
        for _ in range(1000):
            next(batches)
    assert not set(readers) & set(multiprocessing.active_children())


def test_readers_do_not_outlive_a_killed_process(numbered):
    script = f"""if True:
        import multiprocessing, time
        from vit_jax.config import default_config
        from vit_jax.data import train_batches
        config = default_config()
        config.dataset, config.pp.crop, config.batch = {str(numbered)!r}, 8, 4
        config.reader_workers = 1
        batches = train_batches(config)
        next(batches)
        print(len(multiprocessing.active_children()), flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "1\n"
    process.kill()
    process.communicate(timeout=60)  # the reader has the same output, and holds it until it ends
