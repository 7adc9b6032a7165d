"""Fine-tunes or pre-trains a model.

    python -m vit_jax.train --config configs/NAME.py[:arguments] --workdir DIR [--config.key=value
    …]

Without --config it runs configs/quickstart.py. Started again with the same command, a run goes on
where it was, and ends as if it had never stopped. Exit codes: 0 finished, 75 asked to stop by
SIGTERM or Ctrl-C (saved; start it again to go on), 1 an error, told in one line.
"""

from vit_jax.cli.huge_pages import use_huge_pages

if __name__ == "__main__":
    use_huge_pages()  # may start this process anew, so before what is slow to import

import functools
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from absl import flags
from absl import logging as absl_logging
from etils import epath
from ml_collections import config_flags

from vit_jax import checkpoint, data, models
from vit_jax.cli import command as commands
from vit_jax.config import data_options, describe_options
from vit_jax.evaluation import evaluator
from vit_jax.evaluation.report import class_table
from vit_jax.evaluation.scores import Scores
from vit_jax.inference_time import inference_time
from vit_jax.parallel import hosts
from vit_jax.parallel.mesh import Layout, make_layout, to_host
from vit_jax.planning.footprint import check_batch, check_memory, memory_limit
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.run.profiling import Profiler
from vit_jax.run.report import Report, duration, logging_to
from vit_jax.run.stopping import LossWatch, Preempted, stop_on_signals
from vit_jax.run.workdir import open_workdir
from vit_jax.training.program import Program, build_model
from vit_jax.training.state import TrainState

__doc__ += describe_options()

log = logging.getLogger("vit_jax.train")  # also when this file is __main__
EXIT_PREEMPTED = 75
RECIPES = Path(commands.recipe.RECIPES)
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
        (hosts.stop_together if jax.process_count() > 1 else stop_on_signals)() as stop,
    ):
        commands.use_compilation_cache(config.compilation_cache)
        train = data.open_source(config)
        test = data.open_source(config, config.pp.test, train.class_names)
        run = Run(config, train, test)
        with (
            RunCheckpoints(
                directory.checkpoints, keep=config.keep_checkpoints, best_metric=config.best_metric
            ) as checkpoints,
            Report(directory.local, config, start_step=checkpoints.latest_step or 0) as report,
            Profiler(directory.local, config.profile_steps) as profiler,
        ):
            state = run.first_state_or(checkpoints)
            steps = range(int(state.step) + 1, config.total_steps + 1)
            batches = run.training_batches(int(state.step))
            step_fn = run.compile_step(state) if steps else None
            watch, results = LossWatch(), {}

            for step in steps:
                with profiler.step(step):
                    state, step_metrics = step_fn(state, next(batches))
                watch.add(step, step_metrics)
                last, stopping = step == config.total_steps, stop.at(step)
                if due(step, config.progress_every) or last:
                    report.progress(step, watch.check(checkpoints.latest_step))
                if due(step, config.eval_every) or last:
                    with report.pause():
                        results = {step: run.evaluate(state, report)}
                if due(step, config.checkpoint_every) or last or stopping:
                    watch.check(checkpoints.latest_step)  # nothing bad is saved over good
                    with report.pause():
                        scores = results.get(step)
                        checkpoints.save(step, state, card=run.card(scores))
                        directory.sync()
                if stopping and not last:
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
        image_shape = (*self.preprocessing.crop, config.pp.channels)
        self.program = Program(config, image_shape, len(train.class_names), train.multi_label)
        self.layout = make_layout(
            config.parallel.strategy, config.parallel.tensor, self.program.state_shapes
        )
        check_batch(config, self.layout)
        check_memory(self.program, self.layout, memory_limit(jax.local_devices()[0]))
        log.info("%s", describe(self.program, self.layout, train, test))
        eval_step = evaluator.make_eval_step(self.program.model, config.loss)
        self._eval_step = self.layout.jit_eval(eval_step)
        self._started = time.monotonic()
        hosts.wait_for_all("prepared")

    def first_state_or(self, checkpoints: RunCheckpoints) -> TrainState:
        """The state to begin with: a checkpoint's, if the run has one."""
        new_state, new_params = self.program.new_state, self.program.new_params
        if checkpoints.latest_step is None:
            if path := pretrained_path(self.config):
                params = self.layout.put(load_params(path, self.program))
                return self.layout.build(new_state, params)
            return self.layout.build(lambda: new_state(new_params()))
        state = checkpoints.restore(self.layout.shapes(self.program.state_shapes))
        log.info("Resumed at step %s.", f"{int(state.step):,}")
        return state

    def training_batches(self, start_step: int) -> Iterator[dict[str, jax.Array]]:
        batches = data.train_batches(self.config, self.train, start_step=start_step)
        return self._to_devices(batches)

    def _to_devices(self, batches: Iterator) -> Iterator[dict[str, jax.Array]]:
        return data.prefetch_to_device(
            batches,
            self.config.prefetch,
            sharding=self.layout.batch,
            preprocessing=self.preprocessing,
        )

    def compile_step(self, state: TrainState):
        """The step as a compiled program; says how long that took."""
        log.info("Compiling the train step…")
        start = time.monotonic()
        compiled = self.layout.compile(self.program.step, state, self.program.batch_shapes)
        log.info("Compiled in %.1f s.", time.monotonic() - start)
        hosts.wait_for_all("compiled")
        return compiled

    def evaluate(self, state: TrainState, report: Report) -> Scores:
        """Scores over every test example, of the averaged weights too where there are any."""
        step, results = int(state.step), self._evaluate(state.params)
        report.evaluation(step, results)
        if state.ema is not None:
            report.evaluation(step, self._evaluate(state.ema), prefix="test_ema")
        return results

    def _evaluate(self, params: Any) -> Scores:
        batches = self._to_devices(iter(data.eval_batches(self.config, self.test)))
        return evaluator.evaluate(self._eval_step, params, batches)

    def card(self, scores: Scores | None) -> checkpoint.Card:
        """What a checkpoint of this run says about itself."""
        stride = checkpoint.patch_stride(self.config.model.to_dict())
        crop = self.preprocessing.crop
        return checkpoint.make_card(
            model=self.config.model,
            num_classes=len(self.train.class_names),
            class_names=self.train.class_names,
            grid=[side // step for side, step in zip(crop, stride, strict=True)],
            channels=self.config.pp.channels,
            preprocessing=self.preprocessing.to_json(),
            source=f"vit_jax.train on {self.train.name}",
            data=data_options(self.config),
            metrics=scores.metrics() if scores else {},
        )

    def _export(self, params: Any, path: epath.Path, card: checkpoint.Card) -> None:
        params = models.unstack_blocks(to_host(params))
        if hosts.is_first():
            checkpoint.save(params, path, card=card)

    def finish(self, state, results, directory, checkpoints, report) -> None:
        """Exports the weights, and says how it went and what to try next."""
        # A finished run that is started again has told its numbers already.
        final = results.get(int(state.step)) or self._evaluate(state.params)
        if best := checkpoints.best_step:
            log.info("The best checkpoint is step %s.", f"{best:,}")
        log.info("%s", class_table(final, self.train.class_names))
        exported = directory.path / "model.npz"
        self._export(state.params, exported, self.card(final))
        if state.ema is not None:
            self._export(state.ema, directory.path / "model_ema.npz", self.card(None))
        report.draw()
        directory.sync()
        log.info(
            "Finished: %.2f %% of %s examples, after %s. The weights are in %s. Next:\n%s",
            100 * final.accuracy,
            f"{final.count:,}",
            duration(time.monotonic() - self._started),
            exported,
            _NEXT.format(workdir=directory.path, exported=exported),
        )


def load_params(path: str, program: Program) -> Any:
    """A checkpoint's parameters fitted to the model, in the layout of the state."""
    init_params = jax.jit(program.unstacked_params)()
    config, (height, width, _) = program.config, program.image_shape
    stride = checkpoint.patch_stride(config.model.to_dict())
    params = checkpoint.load_pretrained(
        pretrained_path=path,
        init_params=init_params,
        model_config=config.model,
        keep_head=config.keep_head,
        grid=(height // stride[0], width // stride[1]),
    )
    log.info("Loaded %s.", path)
    return program.stacked_if_scanned(params)


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


def describe(program: Program, layout: Layout, train: data.Source, test: data.Source) -> str:
    """What this run is, in a few lines."""
    config, model = program.config, program.model
    images = jax.ShapeDtypeStruct((1, *program.image_shape), jnp.float32)
    params = jax.eval_shape(program.unstacked_params)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    apply = jax.jit(lambda p, x: model.apply({"params": p}, x, train=False))
    flops = apply.lower(params, images).cost_analysis()["flops"]
    rows = {
        "model": f"{config.model.model_name}, {count:,} parameters, "
        f"{flops / 1e9:.3g} GFLOP an image",
        "input": "×".join(map(str, program.image_shape)),
        "data": f"{train.name}: {len(train):,} to train, {len(test):,} to test",
        "classes": f"{len(train.class_names):,}",
        "weights": pretrained_path(config) or "random",
        "devices": str(layout),
        "recipe": f"{config.total_steps:,} steps of {config.batch}, {config.optimizer} at "
        f"{config.base_lr:g}, {config.decay_type}",
    }
    return "\n".join(f"  {name:<8} {value}" for name, value in rows.items())


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print(f"train: unexpected argument {arguments[1]!r}; see --help", file=sys.stderr)
        return 1
    absl_logging.set_verbosity(absl_logging.WARNING)  # of the libraries; ours is its own
    config, workdir = flags.FLAGS.config, flags.FLAGS.workdir
    try:
        hosts.connect(flags.FLAGS.coordinator, flags.FLAGS.num_processes, flags.FLAGS.process_id)
        TRAINERS[config.trainer](config, workdir)
    except Preempted as stopped:
        print(f"train: {stopped}", file=sys.stderr)
        return EXIT_PREEMPTED
    except (ValueError, OSError) as e:
        print(f"train: {commands.one_line(e)}", file=sys.stderr)
        hosts.leave(1)
        return 1
    except jax.errors.JaxRuntimeError as e:
        if jax.process_count() == 1:
            raise
        print(f"train: a process or the way to it failed; start all again. {e}", file=sys.stderr)
        hosts.leave(1)
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
    several = "with several processes, where the cluster does not say: "
    flags.DEFINE_string("coordinator", None, f"{several}HOST:PORT of the first one")
    flags.DEFINE_integer("num_processes", None, f"{several}how many there are")
    flags.DEFINE_integer("process_id", None, f"{several}which one this is, from 0")


run = functools.partial(commands.run, main, "train", define_flags)

if __name__ == "__main__":
    run()
