"""The checkpoints of a training run: state, the data's place and the card, saved as one.

    WORKDIR/checkpoints/STEP/{state,data,card}

Orbax writes each step under a temporary name and renames it when it is whole, so a run that is
killed at any moment leaves its last good step.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint.card import Card, check_card
from vit_jax.models import unstack_blocks

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


def find_step(path: epath.PathLike) -> epath.Path | None:
    """The step directory that a path means: a step, or the newest of a workdir; None if neither."""
    path = epath.Path(path)
    if (path / "state").is_dir() and (path / "card").is_dir():
        return path
    parent = path / DIRECTORY if (path / DIRECTORY).is_dir() else path
    steps = [int(child.name) for child in parent.iterdir() if child.name.isdigit()]
    return find_step(parent / str(max(steps))) if steps else None


def read_step(path: epath.Path, *, ema: bool = False) -> tuple[dict[str, Any], Card]:
    """Parameters (NumPy, published names) and card of a step, without the optimizer's state."""
    part = "ema" if ema else "params"
    path = path.resolve() if not str(path).startswith(("gs:", "s3:")) else path
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            # of the handler: the checkpointer's own `metadata` warns of a file that steps lack
            tree = {part: ocp.PyTreeCheckpointHandler().metadata(path / "state").tree[part]}
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            args = ocp.args.PyTreeRestore(item=tree, restore_args=as_numpy, partial_restore=True)
            params = checkpointer.restore(path / "state", args=args)[part]
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
            card = checkpointer.restore(path / "card", args=ocp.args.JsonRestore())
    except Exception as e:  # Orbax and tensorstore raise many kinds for a damaged directory
        raise ValueError(f"The checkpoint {path} cannot be read: {e}") from e
    check_card(card, where=f"The card of {path}")
    return unstack_blocks(params), card
