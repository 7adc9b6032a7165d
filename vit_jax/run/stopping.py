"""Reasons to stop before the last step: it was asked to (`signals`), or the loss is not finite."""

import math
from collections.abc import Mapping

import jax
from jax import Array


class Preempted(Exception):  # noqa: N818 (not an error: the run goes on when it is started again)
    """The run was asked to stop, and its state is saved."""


class LossWatch:
    """Holds each step's metrics, still on the device, until they are checked."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Mapping[str, Array]]] = []
        self._finite: dict[str, float] = {}  # the newest metrics

    def add(self, step: int, metrics: Mapping[str, Array]) -> None:
        self._pending.append((step, metrics))

    def check(self, latest_checkpoint: int | None) -> dict[str, float]:
        """The newest metrics; raises at the first step whose loss or gradient is not finite."""
        pending, self._pending = self._pending, []
        for step, metrics in jax.device_get(pending):
            metrics = {name: float(value) for name, value in metrics.items()}
            bad = ", ".join(f"{n} {v}" for n, v in metrics.items() if not math.isfinite(v))
            if bad:
                before, back = "nothing before it was finite", "There is no checkpoint yet."
                if self._finite:
                    finite = ", ".join(f"{n} {v:.4g}" for n, v in self._finite.items())
                    before = f"step {step - 1} still had {finite}"
                if latest_checkpoint is not None:
                    back = f"The last good checkpoint is step {latest_checkpoint}."
                raise ValueError(
                    f"The run diverged at step {step}: {bad}; {before}. {back} Nothing later was "
                    "saved. Try a lower base_lr, a longer warmup_steps or a lower grad_norm_clip."
                )
            self._finite = metrics
        return self._finite
