"""What a run has to show: its newest scores, the card of its checkpoints, and its final report."""

import logging
import time
from typing import Any

from etils import epath

from vit_jax import checkpoint, data, models
from vit_jax.config import data_options
from vit_jax.evaluation.report import class_table
from vit_jax.evaluation.scores import Scores
from vit_jax.parallel import hosts
from vit_jax.parallel.mesh import gather_to_host
from vit_jax.preprocessing import Preprocessing
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.run.report import Report, duration
from vit_jax.run.workdir import Workdir
from vit_jax.training.program import Program
from vit_jax.training.state import TrainState

log = logging.getLogger("vit_jax.train")
_NEXT = """\
  python -m vit_jax.evaluate {workdir}
  python -m vit_jax.predict {workdir} IMAGE …
  python -m vit_jax.explain {workdir} IMAGE …
  python -m vit_jax.export {workdir} OUT
  python -m vit_jax.convert {exported} OUT --to orbax|timm|hf    (if that can hold the model)
  tensorboard --logdir {workdir}"""


class Results:
    """The newest scores, and what a checkpoint of the run says about itself."""

    def __init__(self, program: Program, train: data.Source, preprocessing: Preprocessing):
        self._program, self._train, self._preprocessing = program, train, preprocessing
        self._grid = program.grid  # raises now, not when hours of work are to be saved
        self.step = 0
        self.scores: Scores | None = None
        self.started = time.monotonic()

    def add(self, step: int, scores: Scores) -> Scores:
        self.step, self.scores = step, scores
        return scores

    def card(self, step: int | None) -> checkpoint.Card:
        """The card of a checkpoint at this step, with the scores if the newest are of this step."""
        return checkpoint.Card(
            self._program.model,
            self._grid,
            self._program.image_shape[-1],
            class_names=tuple(self._train.class_names),
            preprocessing=self._preprocessing,
            source=f"vit_jax.train on {self._train.name}",
            metrics=self.scores.metrics() if self.scores and step == self.step else {},
            data=data_options(self._program.config),
        )

    def finish(
        self, state: TrainState, directory: Workdir, checkpoints: RunCheckpoints, report: Report
    ) -> None:
        """Exports the weights, and logs how the run went and what to try next."""
        assert self.scores is not None
        if best := checkpoints.best_step:
            log.info("The best checkpoint is step %s.", f"{best:,}")
        log.info("%s", class_table(self.scores, self._train.class_names))
        directory.check()
        exported = directory.path / "model.npz"
        _export(state.params, exported, self.card(self.step))
        if state.ema is not None:
            _export(state.ema, directory.path / "model_ema.npz", self.card(None))
        report.draw()
        directory.sync()
        right = f"{100 * self.scores.accuracy:.2f} % of {self.scores.count:,} examples"
        took = duration(time.monotonic() - self.started)
        commands = _NEXT.format(workdir=directory.path, exported=exported)
        text = "Finished: %s, after %s. The weights are in %s. Next:\n%s"
        log.info(text, right, took, exported, commands)


def _export(params: Any, path: epath.Path, card: checkpoint.Card) -> None:
    params = models.unstack_blocks(gather_to_host(params))
    if hosts.is_first():
        checkpoint.save(params, path, card=card)
