"""The checkpoints of a training run: state, the data's place and the card, saved as one.

    WORKDIR/checkpoints/STEP/{state,data,card}

Orbax writes each step under a temporary name and renames it when it is whole, so a run that is
killed at any moment leaves its last good step.
"""

from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint.card import Card

DIRECTORY = "checkpoints"


class RunCheckpoints:
    """Saves in the background; keeps the newest and the best."""

    def __init__(self, workdir: epath.PathLike, *, keep: int, best_metric: str):
        def score(metrics: Mapping[str, float]) -> float:
            value = metrics[best_metric]
            return -value if best_metric.endswith("loss") else value

        policies = ocp.checkpoint_managers
        newest = policies.LatestN(max(1, keep))
        best = policies.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
        self._manager = ocp.CheckpointManager(
            epath.Path(workdir) / DIRECTORY,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy([newest, best]),
                best_fn=score,
                enable_async_checkpointing=True,
            ),
        )

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    @property
    def best_step(self) -> int | None:
        return self._manager.best_step()

    def save(
        self,
        step: int,
        state: Any,
        *,
        data: Mapping[str, Any],
        card: Card,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to save and returns; `metrics`, where there are any, decide which step is best."""
        if step == self.latest_step:
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                data=ocp.args.JsonSave(dict(data)),
                card=ocp.args.JsonSave(card),
            ),
            metrics=dict(metrics) if metrics else None,
        )

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]]:
        """The newest state, in the shapes, dtypes and shardings of `like`, and the data's place.

        Leaves of `like` without a sharding land on the first device.
        """
        first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or first), like
        )
        restored = self._manager.restore(
            self.latest_step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore()
            ),
        )
        return restored["state"], restored["data"]

    def close(self) -> None:
        """Waits until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> "RunCheckpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
