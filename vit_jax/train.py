"""Fine-tunes or pre-trains a model.

    python -m vit_jax.train --config configs/NAME.py[:arguments] --workdir DIR [--config.key=value
    …]

Without --config it runs configs/quickstart.py. Started again with the same command, a run goes on
where it was, and ends as if it had never stopped. Exit codes: 0 finished, 75 asked to stop by
SIGTERM or Ctrl-C (saved; start it again to go on), 1 an error, told in one line.
"""

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
from absl import flags
from absl import logging as absl_logging
from etils import epath
from ml_collections import config_flags

from vit_jax import checkpoint, commands, data, models
from vit_jax.config import data_options, describe_options
from vit_jax.inference_time import inference_time
from vit_jax.training import metrics as evaluation
from vit_jax.training.optim import make_optimizer
from vit_jax.training.report import Report, class_table, duration, logging_to
from vit_jax.training.state import TrainState
from vit_jax.training.step import make_train_step
from vit_jax.training.stopping import LossWatch, Preempted, stop_on_signals
from vit_jax.training.workdir import open_workdir

__doc__ += describe_options()

log = logging.getLogger("vit_jax.train")  # also when this file is __main__
EXIT_PREEMPTED = 75
RECIPES = Path(__file__).parent / "configs"
_NEXT = """\
  python -m vit_jax.evaluate {workdir}
  python -m vit_jax.predict {workdir} IMAGE …
  python -m vit_jax.explain {workdir} IMAGE …
  python -m vit_jax.export {workdir} OUT
  python -m vit_jax.convert {exported} OUT --to orbax|timm|hf|npz
  tensorboard --logdir {workdir}"""


def train_and_evaluate(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> Any:
    """Trains as `config` says, in `workdir`, and returns the final parameters."""
    config = with_style_of_pretrained(config)
    with (
        open_workdir(workdir, config) as directory,
        logging_to(directory.local / "train.log"),
        stop_on_signals() as stop,
    ):
        commands.use_compilation_cache(config.compilation_cache)
        train = data.open_source(config)
        test = data.open_source(config, config.pp.test, train.class_names)
        run = Run(config, train, test)
        with (
            checkpoint.RunCheckpoints(
                directory.path, keep=config.keep_checkpoints, best_metric=config.best_metric
            ) as checkpoints,
            _report(directory.local, config, checkpoints) as report,
        ):
            state, place = run.first_state_or(checkpoints)
            steps = range(int(state.step) + 1, config.total_steps + 1)
            batches = run.training_batches(place)
            step_fn = run.compile_step(state) if steps else None
            watch, results = LossWatch(), {}

            for step in steps:
                with profiling(directory.local, step, config.profile_steps):
                    state, step_metrics = step_fn(state, next(batches))
                watch.add(step, step_metrics)
                last = step == config.total_steps
                if due(step, config.progress_every) or last:
                    report.progress(step, watch.check(checkpoints.latest_step))
                if due(step, config.eval_every) or last:
                    with report.pause():
                        results = {step: run.evaluate(state, report)}
                if due(step, config.checkpoint_every) or last or stop.requested:
                    watch.check(checkpoints.latest_step)  # nothing bad is saved over good
                    with report.pause():
                        scores = results.get(step)
                        card = run.card(scores)
                        checkpoints.save(
                            step, state, data=batches.get_state(), card=card, metrics=scores
                        )
                        directory.sync()
                if stop.requested and not last:
                    raise Preempted(f"Saved step {step:,} in {workdir}; start it again to go on.")

            batches.close()
            run.finish(state, results, directory, checkpoints, report)
            return state.params


class Run:
    """What stays the same during a run: the model, the data, the compiled functions."""

    def __init__(self, config: ml_collections.ConfigDict, train: data.Source, test: data.Source):
        """Builds the model and says what this run is."""
        if train.multi_label and config.loss != "sigmoid":
            raise ValueError(
                f"{train.name} gives an image several labels; use --config.loss=sigmoid, "
                f"not {config.loss!r}."
            )
        self.config, self.train, self.test = config, train, test
        self.preprocessing = data.preprocessing(config)
        self.model = build_model(config, len(train.class_names))
        self._images = jnp.zeros((1, *self.preprocessing["crop"], config.pp.channels))
        log.info("%s", describe(config, self.model, self._images, train, test))
        shapes = jax.eval_shape(self.model.init, jax.random.key(0), self._images)["params"]
        shapes = _stacked_if_scanned(config, shapes)
        self.optimizer = make_optimizer(config, shapes)
        self._abstract_state = jax.eval_shape(self._state, shapes)
        self._eval_step = jax.jit(evaluation.make_eval_step(self.model, config.loss))
        self._started = time.monotonic()

    def first_state_or(
        self, checkpoints: checkpoint.RunCheckpoints
    ) -> tuple[TrainState, dict[str, Any]]:
        """The state and the data's place to begin with: a checkpoint's, if the run has one."""
        if checkpoints.latest_step is None:
            params = initial_params(self.config, self.model, self._images)
            return self._state(params), {"next_step": 0}
        state, place = checkpoints.restore(self._abstract_state)
        log.info("Resumed at step %s.", f"{int(state.step):,}")
        return state, place

    def _state(self, params: Any) -> TrainState:
        return TrainState.create(params, self.optimizer, with_ema=self.config.ema_decay > 0)

    def training_batches(self, place: dict[str, Any]) -> Iterator[dict[str, jax.Array]]:
        batches = data.train_batches(self.config, self.train, start_step=place["next_step"])
        return data.prefetch_to_device(
            batches, self.config.prefetch, preprocessing=self.preprocessing
        )

    def compile_step(self, state: TrainState):
        """The step as a compiled program; says how long that took."""
        step_fn = make_train_step(self.config, self.model, self.optimizer)
        batch = self._batch_shapes()
        log.info("Compiling the train step…")
        start = time.monotonic()
        compiled = jax.jit(step_fn, donate_argnums=0).lower(state, batch).compile()
        log.info("Compiled in %.1f s.", time.monotonic() - start)
        return compiled

    def _batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        size = self.config.batch
        images = (size, *self.preprocessing["crop"], self.config.pp.channels)
        classes = (len(self.train.class_names),)
        labels = (size, *classes) if self.train.multi_label else (size,)
        kind = jnp.float32 if self.train.multi_label else jnp.int32
        return {
            "image": jax.ShapeDtypeStruct(images, jnp.float32),
            "label": jax.ShapeDtypeStruct(labels, kind),
        }

    def evaluate(self, state: TrainState, report: Report) -> dict[str, Any]:
        """Metrics over every test example, of the averaged weights too where there are any."""
        step, results = int(state.step), self._evaluate(state.params)
        report.evaluation(step, results)
        if state.ema is not None:
            report.evaluation(step, self._evaluate(state.ema), prefix="test_ema")
        return results

    def _evaluate(self, params: Any) -> dict[str, Any]:
        batches = data.prefetch_to_device(
            iter(data.eval_batches(self.config, self.test)),
            self.config.prefetch,
            preprocessing=self.preprocessing,
        )
        return evaluation.evaluate(self._eval_step, params, batches)

    def card(self, results: dict[str, Any] | None) -> checkpoint.Card:
        """What a checkpoint of this run says about itself."""
        stride = checkpoint.patch_stride(self.config.model.to_dict())
        crop = self.preprocessing["crop"]
        scores = {k: v for k, v in (results or {}).items() if isinstance(v, float)}
        return checkpoint.make_card(
            model=self.config.model,
            num_classes=len(self.train.class_names),
            class_names=self.train.class_names,
            grid=[side // step for side, step in zip(crop, stride, strict=True)],
            channels=self.config.pp.channels,
            preprocessing=self.preprocessing,
            source=f"vit_jax.train on {self.train.name}",
            data=data_options(self.config),
            metrics=scores,
        )

    def finish(self, state, results, directory, checkpoints, report) -> None:
        """Exports the weights, and says how it went and what to try next."""
        # A finished run that is started again has told its numbers already.
        final = results.get(int(state.step)) or self._evaluate(state.params)
        if best := checkpoints.best_step:
            log.info("The best checkpoint is step %s.", f"{best:,}")
        log.info("%s", class_table(final, self.train.class_names))
        exported = directory.path / "model.npz"
        params = models.unstack_blocks(jax.device_get(state.params))
        checkpoint.save(params, exported, card=self.card(final))
        if state.ema is not None:
            averaged = models.unstack_blocks(jax.device_get(state.ema))
            checkpoint.save(averaged, directory.path / "model_ema.npz", card=self.card(None))
        report.draw()
        directory.sync()
        log.info(
            "Finished: %.2f %% of %s examples, after %s. The weights are in %s. Next:\n%s",
            100 * final["accuracy"],
            f"{final['count']:,}",
            duration(time.monotonic() - self._started),
            exported,
            _NEXT.format(workdir=directory.path, exported=exported),
        )


def build_model(config: ml_collections.ConfigDict, num_classes: int) -> nn.Module:
    fields = config.model.to_dict()
    module = models.MlpMixer if "num_blocks" in fields else models.VisionTransformer
    return module(num_classes=num_classes, **fields)


def initial_params(config: ml_collections.ConfigDict, model: nn.Module, images: jax.Array) -> Any:
    """Fresh parameters, or a checkpoint's fitted to the model; stacked for a scanned model."""
    params = jax.jit(model.init)(jax.random.key(config.seed), images)["params"]
    if path := pretrained_path(config):
        stride = checkpoint.patch_stride(config.model.to_dict())
        grid = tuple(side // step for side, step in zip(images.shape[1:3], stride, strict=True))
        params = checkpoint.load_pretrained(
            pretrained_path=path,
            init_params=params,
            model_config=config.model,
            keep_head=config.keep_head,
            grid=grid,
        )
        log.info("Loaded %s.", path)
    return _stacked_if_scanned(config, params)


def _stacked_if_scanned(config: ml_collections.ConfigDict, params: Any) -> Any:
    """A scanned model's state holds the blocks stacked; `eval_shape` does it for shapes alone."""
    if not config.model.get("scan"):
        return params
    is_abstract = isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct)
    return (
        jax.eval_shape(models.stack_blocks, params) if is_abstract else models.stack_blocks(params)
    )


def with_style_of_pretrained(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """The config with what its weights were trained with: GELU, eps and the like, from their card.

    A checkpoint that does not say (a bare official file) leaves the recipe as it is.
    """
    path = pretrained_path(config)
    if not path or "num_blocks" in config.model or not epath.Path(path).expanduser().exists():
        return config
    with checkpoint.opened(path) as opened:
        card = opened.card
    if card is None or card["source"].startswith("inferred"):
        return config
    config = config.copy_and_resolve_references()
    for name in ("gelu", "norm_eps", "qkv_bias", "patch_norm", "layer_scale", "fc_norm"):
        theirs = card["model"].get(name, getattr(models.VisionTransformer, name))
        if config.model[name] != theirs:
            log.warning(
                "model.%s is %r, as in the weights, not %r.", name, theirs, config.model[name]
            )
            config.model[name] = theirs
    return config


def pretrained_path(config: ml_collections.ConfigDict) -> str:
    """Where the weights to start from are, or '' for random ones."""
    if config.pretrained or not config.pretrained_dir:
        return config.pretrained
    name = config.model_or_filename or config.model.model_name
    return str(epath.Path(config.pretrained_dir) / f"{name.removesuffix('.npz')}.npz")


def describe(config, model, images, train, test) -> str:
    """What this run is, in a few lines."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    apply = jax.jit(lambda p, x: model.apply({"params": p}, x, train=False))
    flops = apply.lower(shapes, images).cost_analysis()["flops"]
    devices = jax.devices()
    height, width, channels = images.shape[1:]
    rows = {
        "model": f"{config.model.model_name}, {count:,} parameters, "
        f"{flops / 1e9:.3g} GFLOP an image",
        "input": f"{height}×{width}×{channels}",
        "data": f"{train.name}: {len(train):,} to train, {len(test):,} to test",
        "classes": f"{len(train.class_names):,}",
        "weights": pretrained_path(config) or "random",
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "recipe": f"{config.total_steps:,} steps of {config.batch}, {config.optimizer} at "
        f"{config.base_lr:g}, {config.decay_type}",
    }
    return "\n".join(f"  {name:<8} {value}" for name, value in rows.items())


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextlib.contextmanager
def _report(directory: Path, config: ml_collections.ConfigDict, checkpoints) -> Iterator[Report]:
    start = checkpoints.latest_step or 0
    report = Report(directory, config, start_step=start, batch=config.batch)
    try:
        yield report
    finally:
        report.close()


@contextlib.contextmanager
def profiling(directory: Path, step: int, steps: tuple[int, int]) -> Iterator[None]:
    """Traces the steps asked for into `directory`/plugins, for TensorBoard's profiler."""
    first, last = steps
    if step == first and last >= first > 0:
        jax.profiler.start_trace(str(directory))
    yield
    if step == last and last >= first > 0:
        jax.effects_barrier()
        jax.profiler.stop_trace()
        log.info("Profiled steps %d to %d into %s.", first, last, directory)


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print(f"train: unexpected argument {arguments[1]!r}; see --help", file=sys.stderr)
        return 1
    absl_logging.set_verbosity(absl_logging.WARNING)  # of the libraries; ours is its own
    config, workdir = flags.FLAGS.config, flags.FLAGS.workdir
    try:
        TRAINERS[config.trainer](config, workdir)
    except Preempted as stopped:
        print(f"train: {stopped}", file=sys.stderr)
        return EXIT_PREEMPTED
    except (ValueError, OSError) as e:
        print(f"train: {e}", file=sys.stderr)
        return 1
    return 0


def _measure_speed(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> None:
    with open_workdir(workdir, config) as directory, logging_to(directory.local / "train.log"):
        inference_time(config, build_model(config, num_classes=1_000), directory.path)


TRAINERS = {"train": train_and_evaluate, "inference_time": _measure_speed}


def define_flags() -> None:
    config_flags.DEFINE_config_file(
        "config", str(RECIPES / "quickstart.py"), "the recipe: a file of configs/", lock_config=True
    )
    flags.DEFINE_string("workdir", None, "directory of the run; made if it is not there")
    flags.mark_flag_as_required("workdir")


run = functools.partial(commands.run, main, "train", define_flags)

if __name__ == "__main__":
    run()
