"""A trace of a few training steps, for TensorBoard's profiler."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import jax

log = logging.getLogger(__name__)


class Profiler(contextlib.AbstractContextManager["Profiler"]):
    """Traces the steps from `first` to `last` into `directory`/plugins; (0, 0) traces nothing.

    It goes around the loop, and `step` around each step: a run that stops inside these steps
    leaves a whole trace of those it took, and one that resumes inside them traces the rest.
    """

    def __init__(self, directory: Path, first_and_last: tuple[int, int]):
        self._directory, (self._first, self._last) = directory, first_and_last
        self._traced: list[int] = []  # steps of the trace that is open

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        if 0 < self._first <= step <= self._last:
            if not self._traced:
                jax.profiler.start_trace(str(self._directory))
            self._traced.append(step)
        yield
        if step == self._last:
            self._stop()

    def _stop(self) -> None:
        if self._traced:
            jax.effects_barrier()
            jax.profiler.stop_trace()
            steps, self._traced = self._traced, []
            log.info("Profiled steps %d to %d into %s.", steps[0], steps[-1], self._directory)

    def __exit__(self, *_: object) -> None:
        self._stop()
