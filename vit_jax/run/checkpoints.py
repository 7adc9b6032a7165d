"""The checkpoints of a training run: its state, its card and its scores, saved as one.

    WORKDIR/checkpoints/STEP/{state,card,metrics,checksums.json}

The state says how far the run is in its data too: `step` is all that `data.train_batches` needs.
Orbax writes each step under a temporary name, we add checksums of its files, and Orbax renames it,
so a run that is killed at any moment leaves its last good step. When a run is opened again, its
newest step is checked; if that is damaged it becomes STEP.damaged, and the one before it is taken.
"""

import contextlib
import logging
from collections.abc import Mapping

import orbax.checkpoint as ocp
from etils import epath

from vit_jax.atomic import is_remote
from vit_jax.checkpoint import checksums, orbax_directory
from vit_jax.checkpoint.card import Card
from vit_jax.parallel import hosts
from vit_jax.run.workdir import CHECKPOINTS
from vit_jax.training.state import TrainState

log = logging.getLogger(__name__)


class RunCheckpoints(contextlib.AbstractContextManager["RunCheckpoints"]):
    """Saves in the background; keeps the newest and the best."""

    def __init__(self, workdir: epath.PathLike, *, keep: int, best_metric: str):
        def score(metrics: Mapping[str, float]) -> float:
            value = metrics[best_metric]
            return -value if best_metric.endswith("loss") else value

        self._folder, self._saving = epath.Path(workdir) / CHECKPOINTS, 0
        if hosts.is_first():
            _set_damaged_aside(self._folder)
        hosts.wait_for_all("checked the checkpoints")
        policies = ocp.checkpoint_managers
        newest = policies.LatestN(max(1, keep))
        best = policies.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([newest, best]),
            best_fn=score,
            enable_async_checkpointing=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._add_checksums),
            # On a network file system, other hosts may for a while see what was just renamed.
            single_host_load_and_broadcast=True,
            cleanup_tmp_directories=not is_remote(workdir),  # steps that a kill left half-written
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

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
        self._manager.wait_until_finished()
        self._saving = step
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

    def _add_checksums(self) -> None:
        """Called in Orbax's thread when all files of the step are written, before it is complete:
        it still has a temporary name or, on gs://, lacks the file that marks it.
        """
        for path in self._folder.iterdir():
            if path.name == str(self._saving) or path.name.startswith(f"{self._saving}.orbax-"):
                checksums.write(path)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not hosts.cannot_wait(error):
            self._manager.close()  # waits until everything is on disk


def _set_damaged_aside(folder: epath.Path) -> None:
    """Renames damaged steps until the newest one is whole, and every one has readable scores."""
    if not orbax_directory.complete_steps(folder):
        return
    whole, damaged = orbax_directory.newest_whole(folder)
    for step in orbax_directory.complete_steps(folder):  # Orbax reads the scores of all
        if step < whole and (what := orbax_directory.damage(folder / str(step), under="metrics")):
            damaged[step] = what
    for step, what in damaged.items():
        aside = orbax_directory.set_aside(folder / str(step))
        text = "Step %d is damaged (%s) and is set aside as %s; the run goes on from step %d."
        log.warning(text, step, what, aside, whole)
