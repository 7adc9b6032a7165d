"""Fine-tunes or pre-trains a model.

    python -m vit_jax.train --config configs/NAME.py[:ARGUMENTS] --workdir DIR [--config.KEY=VALUE]

Without --config it runs configs/quickstart.py. Started again with the same command, a run goes on
where it was, and ends as if it had never stopped. Exit codes: 0 finished, 75 stopped by SIGTERM or
Ctrl-C (start it again to go on), 130 stopped by Ctrl-C before anything was saved, 1 an error,
explained in one line.
"""

from vit_jax import signals

if __name__ == "__main__":  # before slow imports; may start the process anew
    signals.begin("train", huge_pages=True, resumes_in="--workdir")

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import ml_collections
from etils import epath

from vit_jax import data
from vit_jax.aliases import Params
from vit_jax.cli import compilation_cache, recipe
from vit_jax.cli.command import Command
from vit_jax.cli.options import count, up_to
from vit_jax.data.pipeline import Batch
from vit_jax.evaluation.evaluator import evaluate, make_eval_step
from vit_jax.evaluation.scores import Scores
from vit_jax.parallel import hosts
from vit_jax.parallel.mesh import (
    batch_sharding,
    make_mesh,
    one_at_a_time,
    replicated,
    state_shardings,
)
from vit_jax.planning.footprint import check_batch, check_memory, memory_limit
from vit_jax.preprocessing import Preprocessing
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.run.profiling import Profiler
from vit_jax.run.report import Report
from vit_jax.run.results import Results
from vit_jax.run.start import describe_run, first_state, open_run
from vit_jax.run.stopping import LossWatch, Preempted
from vit_jax.training.program import Program, check_recipe

log = logging.getLogger("vit_jax.train")  # also when this file is __main__


def train_and_evaluate(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> Params:
    """Trains as `config` says, in `workdir`, and returns the final parameters."""
    remarks = check_recipe(config)
    with open_run(config, workdir) as opened, contextlib.ExitStack() as stack:
        config, directory = opened.config, opened.directory
        compilation_cache.enable(config.compilation_cache)
        for remark in remarks:
            log.warning("%s", remark)

        train, test, preprocessing = open_data(config)
        image_shape = (*preprocessing.crop, config.pp.channels)
        program = Program(config, image_shape, len(train.class_names), train.multi_label)
        mesh = make_mesh(config.parallel.strategy, config.parallel.tensor, program.abstract_state)
        check_batch(config, mesh)
        check_memory(program, mesh, memory_limit(jax.local_devices()[0]))
        log.info("%s", describe_run(program, mesh, train, test))
        results = Results(program, train, preprocessing)
        hosts.wait_for_all("prepared")

        stack.enter_context(jax.set_mesh(mesh))
        shardings = state_shardings(mesh, program.abstract_state)
        train_step = jax.jit(
            program.train_step,
            in_shardings=(shardings, batch_sharding(mesh)),
            out_shardings=(shardings, replicated(mesh)),
            donate_argnums=0,
        )
        eval_step = make_eval_step(program.model, config.loss)
        eval_step = jax.jit(eval_step, out_shardings=replicated(mesh))

        def on_devices(batches: Iterator[Batch]) -> data.DeviceBatches:
            sharding = batch_sharding(mesh)
            return data.prefetch_to_device(
                batches, config.prefetch, sharding=sharding, preprocessing=preprocessing
            )

        def evaluated(params: Params) -> Scores:
            return evaluate(eval_step, params, on_devices(iter(data.eval_batches(config, test))))

        keep, best = config.keep_checkpoints, config.best_metric
        checkpoints = RunCheckpoints(directory.checkpoints, keep=keep, best_metric=best)
        stack.enter_context(checkpoints)
        report = Report(directory.local, config, start_step=checkpoints.latest_step or 0)
        stack.enter_context(report)
        profiler = stack.enter_context(Profiler(directory.local, config.profile_steps))

        state = first_state(program, shardings, checkpoints, opened.pretrained)
        opened.close_weights()
        start = int(state.step)
        batches = on_devices(data.train_batches(config, train, start_step=start))
        if start < config.total_steps:
            train_step = one_at_a_time(compiled(train_step, state, program.abstract_batch), mesh)
        watch, stop = LossWatch(), opened.stop_on_signals()

        for step in range(start + 1, config.total_steps + 1):
            with profiler.step(step):
                state, metrics = train_step(state, next(batches))
            watch.add(step, metrics)
            last = step == config.total_steps
            directory.check()
            if due(step, config.progress_every) or last:
                report.progress(step, watch.check(checkpoints.latest_step))
            if due(step, config.eval_every) or last:
                with report.pause():
                    report.evaluation(step, results.add(step, evaluated(state.params)))
                    if state.ema is not None:
                        report.evaluation(step, evaluated(state.ema), prefix="test_ema")
            stopping = stop(step)
            if due(step, config.checkpoint_every) or last or stopping:
                watch.check(checkpoints.latest_step)  # nothing bad is saved over good
                with report.pause():
                    checkpoints.save(step, state, card=results.card(step))
                    directory.sync()
            if stopping and not last:
                raise Preempted(f"Saved step {step:,} in {workdir}; start it again to go on.")

        batches.close()
        if results.scores is None:  # a finished run was started again
            results.add(start, evaluated(state.params))
        results.finish(state, directory, checkpoints, report)
        return state.params


def open_data(config: ml_collections.ConfigDict) -> tuple[data.Source, data.Source, Preprocessing]:
    """The examples to train on, those to test on, and what happens to an image before the model."""
    train = data.open_source(config)
    if train.multi_label and config.loss != "sigmoid":
        raise ValueError(
            f"{train.name} gives an image several labels; use --config.loss=sigmoid, "
            f"not {config.loss!r}."
        )
    metrics = ("loss", "accuracy", "accuracy_per_label" if train.multi_label else "accuracy_top5")
    if config.best_metric not in metrics:
        known = ", ".join(metrics)
        raise ValueError(f"config.best_metric={config.best_metric!r} is not one of {known}.")
    test = data.open_source(config, config.pp.test, train.class_names)
    return train, test, data.preprocessing(config)


def compiled(step_fn: Any, *arguments: Any) -> Any:
    """The step compiled ahead of its first call, so that its time can be reported."""
    log.info("Compiling the train step…")
    start = time.monotonic()
    result = step_fn.lower(*arguments).compile()
    log.info("Compiled in %.1f s.", time.monotonic() - start)
    hosts.wait_for_all("compiled")
    return result


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="directory of the run; made if needed")
    several = "with several processes, where the cluster does not say: "
    parser.add_argument("--coordinator", help=f"{several}HOST:PORT of the first one")
    parser.add_argument("--num_processes", type=count, help=f"{several}how many there are")
    index = up_to(10**6, least=0)
    parser.add_argument("--process_id", type=index, help=f"{several}which one this is, from 0")


def run(args: argparse.Namespace) -> int:
    check_recipe(args.config)
    try:
        hosts.connect(args.coordinator, args.num_processes, args.process_id)
        train_and_evaluate(args.config, args.workdir)
    except Preempted as stopped:
        print(f"train: {stopped}", file=sys.stderr)
        return signals.RESUMABLE
    except jax.errors.JaxRuntimeError as e:
        if jax.process_count() == 1:
            raise
        raise ConnectionError(f"a process or the way to it failed; start all again. {e}") from e
    return 0


main = Command(
    "train", __doc__, add_arguments, run, default_recipe=recipe.quickstart, after_error=hosts.leave
).main

if __name__ == "__main__":
    sys.exit(main())
