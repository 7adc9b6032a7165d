"""How a run begins: its directory, the weights it starts from, its first state, its summary."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_collections
from etils import epath
from jax.sharding import Mesh

from vit_jax import checkpoint, data, signals
from vit_jax.models.kinds import HOW_COMPUTED
from vit_jax.models.layers import BlockFields
from vit_jax.parallel import hosts
from vit_jax.parallel.mesh import describe_mesh, with_shardings
from vit_jax.planning.cost import macs_per_image
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.run.workdir import Workdir, has_checkpoint, open_workdir, stored_config
from vit_jax.training.program import Program
from vit_jax.training.state import TrainState

log = logging.getLogger("vit_jax.train")

# Fields that the weights decide, whatever the recipe says: the options of a block, and two more.
_OF_THE_WEIGHTS = [
    *(f.name for f in dataclasses.fields(BlockFields) if f.name not in HOW_COMPUTED),
    *("patch_norm", "fc_norm"),
]


@dataclasses.dataclass(frozen=True)
class Start:
    config: ml_collections.ConfigDict  # with the fields that the weights decide
    directory: Workdir
    stop_on_signals: Callable[[], Callable[[int], bool]]  # call it when there is something to save
    pretrained: checkpoint.Checkpoint | None  # of a new run; open until `close_weights`
    close_weights: Callable[[], None]


@contextlib.contextmanager
def open_run(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> Iterator[Start]:
    """Opens the initial weights and the directory.

    What `stop_on_signals` returns says whether to stop after a step. Until it is called a signal
    ends the run at once; from then on, until all is closed, it means save and stop.
    """
    stop = hosts.stop_together if jax.process_count() > 1 else signals.stop_on_signals
    with contextlib.ExitStack() as stopping, contextlib.ExitStack() as weights:
        path, pretrained = pretrained_path(config), None
        if path and not has_checkpoint(workdir):
            pretrained = weights.enter_context(checkpoint.open(path))
        config = with_fields_of_weights(config, pretrained, stored_config(workdir))
        with open_workdir(workdir, config) as directory:
            stop_on_signals = functools.partial(stopping.enter_context, stop())
            yield Start(config, directory, stop_on_signals, pretrained, weights.close)


def pretrained_path(config: ml_collections.ConfigDict) -> str:
    """Where the weights to start from are, or '' for random ones."""
    if config.pretrained or not config.pretrained_dir:
        return config.pretrained
    name = config.model_or_filename or config.model.model_name
    return str(epath.Path(config.pretrained_dir) / f"{name.removesuffix('.npz')}.npz")


def with_fields_of_weights(
    config: ml_collections.ConfigDict,
    pretrained: checkpoint.Checkpoint | None,
    stored: dict[str, Any] | None,
) -> ml_collections.ConfigDict:
    """The config with the fields its weights were trained with: GELU, epsilon and the like.

    They come from the card of the weights or, in a run that is resumed, from its stored
    configuration. Weights without a card (a bare official file) leave the recipe as it is.
    """
    theirs: dict[str, Any] = {}
    if pretrained is not None and pretrained.card is not None and not pretrained.card.inferred:
        model = pretrained.card.model
        theirs = {name: getattr(model, name) for name in _OF_THE_WEIGHTS if hasattr(model, name)}
    elif pretrained is None and pretrained_path(config) and stored is not None:
        names = {name: f"model.{name}" for name in _OF_THE_WEIGHTS}
        theirs = {name: stored[key] for name, key in names.items() if key in stored}
    config = config.copy_and_resolve_references()
    for name, value in theirs.items():
        if (ours := config.model.get(name, value)) != value:
            log.warning("model.%s is %r, as in the weights, not %r.", name, value, ours)
            config.model[name] = value
    return config


def first_state(
    program: Program,
    state_shardings: TrainState,
    checkpoints: RunCheckpoints,
    pretrained: checkpoint.Checkpoint | None,
) -> TrainState:
    """The state of the run's last checkpoint, or a new one if there is none.

    Pretrained weights are read array by array, each straight onto its shards. Only what they lack
    is initialised at random, on the devices that hold it.
    """
    if checkpoints.latest_step is not None:
        state = checkpoints.restore(with_shardings(program.abstract_state, state_shardings))
        log.info("Resumed at step %s.", f"{int(state.step):,}")
        return state
    if pretrained is None:
        return jax.jit(
            lambda: program.init_state(program.init_params()), out_shardings=state_shardings
        )()
    keep_head = program.config.keep_head
    fitted = pretrained.fit(program.abstract_params, keep_head=keep_head, grid=program.grid)
    params = fitted.restore(state_shardings.params, program.init_params)
    log.info("Loaded %s.", pretrained.path)
    return jax.jit(program.init_state, out_shardings=state_shardings, donate_argnums=0)(params)


def describe_run(program: Program, mesh: Mesh, train: data.Source, test: data.Source) -> str:
    """A summary of the run, in a few lines."""
    config = program.config
    count = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_params))
    rows = {
        "model": f"{config.model.model_name}, {count:,} parameters, "
        f"{2 * macs_per_image(program) / 1e9:.3g} GFLOP per image",
        "input": "×".join(map(str, program.image_shape)),
        "data": f"{train.name}: {len(train):,} to train, {len(test):,} to test",
        "classes": f"{len(train.class_names):,}",
        "weights": pretrained_path(config) or "random",
        "devices": describe_mesh(mesh),
        "recipe": f"{config.total_steps:,} steps of {config.batch}, {config.optimizer} at "
        f"{config.base_lr:g}, {config.decay_type}",
    }
    return "\n".join(f"  {name:<8} {value}" for name, value in rows.items())
