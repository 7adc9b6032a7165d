"""The checkpoints of a training run: its state and its card, saved as one.

    WORKDIR/checkpoints/STEP/{state,card}

The state says how far the run is in its data too: `step` is all that `data.train_batches` needs.
Orbax writes each step under a temporary name and renames it when it is whole, so a run that is
killed at any moment leaves its last good step.
"""

from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint.card import Card
from vit_jax.run.workdir import CHECKPOINTS
from vit_jax.training.state import TrainState


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
            epath.Path(workdir) / CHECKPOINTS,
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

    def save(self, step: int, state: TrainState, *, card: Card) -> None:
        """Starts saving and returns; the card's metrics, if any, decide which step is best."""
        if step == self.latest_step:
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), card=ocp.args.JsonSave(card.to_json())
            ),
            metrics=dict(card.metrics) or None,
        )

    def restore(self, abstract_state: TrainState) -> TrainState:
        """The newest state, in the shapes, dtypes and shardings of `abstract_state`.

        Leaves without a sharding land on the first device. Steps saved by older versions also have
        an item `data` with the place in the data, which is not read: it is `state.step`.
        """
        first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or first),
            abstract_state,
        )
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        return self._manager.restore(self.latest_step, args=wanted)["state"]

    def close(self) -> None:
        """Waits until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> "RunCheckpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
