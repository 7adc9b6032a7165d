"""The checkpoints of a training run: its state, its card and its scores, saved as one.

    WORKDIR/checkpoints/STEP/{state,card,metrics}

The state says how far the run is in its data too: `step` is all that `data.train_batches` needs.
Orbax writes each step under a temporary name and renames it when it is whole, so a run that is
killed at any moment leaves its last good step.
"""

import contextlib
from collections.abc import Mapping

import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint.card import Card
from vit_jax.run.workdir import CHECKPOINTS
from vit_jax.training.state import TrainState


class RunCheckpoints(contextlib.AbstractContextManager["RunCheckpoints"]):
    """Saves in the background; keeps the newest and the best."""

    def __init__(self, workdir: epath.PathLike, *, keep: int, best_metric: str):
        def score(metrics: Mapping[str, float]) -> float:
            value = metrics[best_metric]
            return -value if best_metric.endswith("loss") else value

        policies = ocp.checkpoint_managers
        newest = policies.LatestN(max(1, keep))
        best = policies.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([newest, best]),
            best_fn=score,
            enable_async_checkpointing=True,
        )
        self._manager = ocp.CheckpointManager(epath.Path(workdir) / CHECKPOINTS, options=options)

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
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state), card=ocp.args.JsonSave(card.to_json())
        )
        self._manager.save(step, args=items, metrics=dict(card.metrics) or None)

    def restore(self, abstract_state: TrainState) -> TrainState:
        """The newest state, in the shapes, dtypes and shardings of `abstract_state`.

        Steps saved by older versions also have an item `data` with the place in the data, which is
        not read: it is `state.step`.
        """
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state))
        return self._manager.restore(self.latest_step, args=wanted)["state"]

    def __exit__(self, *_: object) -> None:
        self._manager.close()  # waits until everything is on disk
