"""Reasons to stop before the last step: a signal, or a loss that is not finite."""

import contextlib
import math
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax import Array


class Preempted(Exception):  # noqa: N818 (not an error: the run goes on when it is started again)
    """The run was asked to stop, and its state is saved."""


class StopRequest:
    requested = False

    def at(self, step: int) -> bool:
        """Whether to stop after this step. With several processes it is JAX that decides."""
        del step
        return self.requested


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGTERM and Ctrl-C ask the run to save and stop; a second one stops at once.

    The answer goes straight to the file descriptor: a handler may run in the middle of a logging
    call, and Python's buffered streams refuse to be entered twice.
    """
    request = StopRequest()
    previous: dict[int, Any] = {}

    def ask(number: int, _: Any) -> None:
        request.requested = True
        name = signal.Signals(number).name
        os.write(2, f"Got {name}: saving, then stopping. Once more stops at once.\n".encode())
        for known, handler in previous.items():
            signal.signal(known, handler)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, ask)
    except ValueError:
        pass  # not the main thread, so the signals are for whoever started this one
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class LossWatch:
    """Holds each step's metrics, still on the device, until they are checked."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Mapping[str, Array]]] = []
        self.last_finite: tuple[int, dict[str, float]] | None = None

    def add(self, step: int, metrics: Mapping[str, Array]) -> None:
        self._pending.append((step, metrics))

    def check(self, latest_checkpoint: int | None) -> dict[str, float]:
        """The newest metrics; raises at the first step whose loss or gradient is not finite."""
        pending, self._pending = self._pending, []
        for step, metrics in jax.device_get(pending):
            metrics = {name: float(value) for name, value in metrics.items()}
            if not all(map(math.isfinite, metrics.values())):
                raise ValueError(self._message(step, metrics, latest_checkpoint))
            self.last_finite = (step, metrics)
        return self.last_finite[1] if self.last_finite else {}

    def _message(
        self, step: int, metrics: Mapping[str, float], latest_checkpoint: int | None
    ) -> str:
        bad = ", ".join(f"{n} {v}" for n, v in metrics.items() if not math.isfinite(v))
        before = "nothing before it was finite"
        if self.last_finite:
            finite = ", ".join(f"{n} {v:.4g}" for n, v in self.last_finite[1].items())
            before = f"step {self.last_finite[0]} still had {finite}"
        back = "There is no checkpoint yet."
        if latest_checkpoint is not None:
            back = f"The last good checkpoint is step {latest_checkpoint}."
        return (
            f"The run diverged at step {step}: {bad}; {before}. {back} Nothing later was saved. "
            "Try a lower base_lr, a longer warmup_steps or a lower grad_norm_clip."
        )
