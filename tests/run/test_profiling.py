"""Profiled steps: a whole trace whatever happens to the run."""

import logging

import jax
import jax.numpy as jnp
import pytest

from vit_jax.run.profiling import Profiler


def take_steps(directory, steps, profile, stop_after=None):
    with Profiler(directory, profile) as profiler:
        for step in steps:
            with profiler.step(step):
                jax.block_until_ready(jnp.arange(step).sum())
            if step == stop_after:
                raise KeyboardInterrupt


def traces(directory):
    return list(directory.glob("plugins/profile/*/*"))


@pytest.fixture
def logged(caplog):
    ours = "vit_jax.run.profiling"
    caplog.set_level(logging.INFO, ours)
    return lambda: [record.getMessage() for record in caplog.records if record.name == ours]


def test_a_run_that_resumes_inside_the_steps_profiles_the_rest(tmp_path, logged):
    take_steps(tmp_path, range(6, 12), profile=(5, 8))
    assert traces(tmp_path)
    assert logged() == [f"Profiled steps 6 to 8 into {tmp_path}."]


def test_a_run_that_stops_inside_the_steps_leaves_a_whole_trace(tmp_path, logged):
    with pytest.raises(KeyboardInterrupt):
        take_steps(tmp_path, range(1, 12), profile=(2, 8), stop_after=3)
    assert traces(tmp_path)
    assert logged() == [f"Profiled steps 2 to 3 into {tmp_path}."]
    take_steps(tmp_path, range(1, 4), profile=(2, 3))  # nothing is left open


@pytest.mark.parametrize("profile", [(0, 0), (5, 3), (7, 9)])
def test_steps_that_do_not_come_are_not_profiled(tmp_path, profile):
    take_steps(tmp_path, range(1, 6), profile)
    assert not traces(tmp_path)
