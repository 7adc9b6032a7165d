"""Whether a recipe fits its devices, and if not, which numbers would."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import Mesh

from vit_jax.models import Model, num_layers
from vit_jax.parallel.mesh import (
    Device,
    bytes_per_device,
    make_mesh,
    num_batch_shards,
    strategy_name,
)
from vit_jax.planning.host_memory import available_memory
from vit_jax.training.program import Program

Change = Mapping[str, str | int]  # options of the recipe

# What the estimate leaves out: the compiler's copies, buffers of collectives, fragmentation.
_ROOM = 0.9


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes on one device. State and gradients are exact; activations are what is kept for the
    backward pass, before the compiler fuses any of it away. Batches are those that wait.
    """

    parameters: int
    gradients: int
    optimizer: int
    averages: int
    activations: int
    batches: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


def footprint(program: Program, mesh: Mesh) -> Footprint:
    state, config = program.abstract_state, program.config
    parameters = bytes_per_device(mesh, state.params)
    examples = config.batch // (num_batch_shards(mesh) * config.accum_steps)
    # linen gives modules a hash, which pyright cannot see
    per_example = activation_bytes(program.model, program.image_shape)  # pyright: ignore[reportArgumentType]
    return Footprint(
        parameters=parameters,
        gradients=parameters * (2 if config.accum_steps > 1 else 1),  # of one part, and their sum
        optimizer=bytes_per_device(mesh, state.opt_state),
        averages=bytes_per_device(mesh, state.ema),
        activations=max(1, examples) * per_example,
        batches=_batches(program, mesh, config.batch),
    )


def evaluation_footprint(program: Program, mesh: Mesh, batch: int) -> Footprint:
    """The same while it evaluates batches of this size: of the activations, those of one block."""
    model = program.model.clone(remat=None) if hasattr(program.model, "remat") else program.model
    per_block = activation_bytes(model, program.image_shape) // num_layers(model)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(
        footprint(program, mesh),
        gradients=0,
        activations=max(1, batch // num_batch_shards(mesh)) * per_block,
        batches=_batches(program, mesh, batch),
    )


def _batches(program: Program, mesh: Mesh, size: int) -> int:
    """The images of the batches that are in use, in a reader's hands, and in between."""
    examples, itemsize = size // num_batch_shards(mesh), 1 if program.config.uint8_to_device else 4
    return (program.config.prefetch + 2) * examples * math.prod(program.image_shape) * itemsize


@functools.cache
def activation_bytes(model: Model, image_shape: tuple[int, int, int]) -> int:
    """What is kept of one example for the backward pass, from the shapes of the traced gradient."""
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(0)}

    def backward(images: jax.Array) -> object:
        params = model.init(rngs, images)["params"]
        apply = functools.partial(model.apply, images=images, train=True, rngs=rngs)
        return jax.vjp(lambda params: apply({"params": params}), params)[1]

    def kept(size: int) -> int:
        images = jax.ShapeDtypeStruct((size, *image_shape), jnp.float32)
        residuals = jax.eval_shape(backward, images)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))

    return kept(2) - kept(1)  # without the parameters, which do not grow with the batch


def check_batch(config: ml_collections.ConfigDict, mesh: Mesh) -> None:
    """Raises unless batches, and the parts they are computed in, divide among the devices."""
    shards, problems = num_batch_shards(mesh), []
    if config.batch % (shards * config.accum_steps):
        problems.append(_batch_problem(config.batch, config.accum_steps, shards))
    if config.batch_eval % shards:
        near = shards * max(1, round(config.batch_eval / shards))
        problems.append(
            f"config.batch_eval={config.batch_eval} does not divide among {shards} devices; try "
            f"--config.batch_eval={near}"
        )
    if problems:
        raise ValueError(". ".join(problems) + ".")


def _batch_problem(batch: int, parts: int, shards: int) -> str:
    unit = shards * parts
    options = [f"--config.batch={unit * max(1, round(batch / unit))}"]
    if batch >= shards and batch % shards == 0:
        whole = batch // shards
        fitting = [n for n in range(1, whole + 1) if whole % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - parts))
        options.append(f"--config.accum_steps={nearest}")
    return (
        f"config.batch={batch} in accum_steps={parts} parts does not divide among {shards} "
        f"devices; it takes a multiple of {unit}; try {' or '.join(options)}"
    )


def check_memory(program: Program, mesh: Mesh, limit: int | None) -> None:
    """Raises if, by our estimate, training or evaluation takes more than `limit` bytes of a device,
    and says which settings take less.
    """
    if limit is None:  # not every device tells
        return
    smaller = ((change, footprint(new, on)) for change, new, on in alternatives(program, mesh))
    problem = _memory_problem("Training", footprint(program, mesh), smaller, limit)
    size, shards = program.config.batch_eval, num_batch_shards(mesh)
    halves = [size >> n for n in range(1, size.bit_length()) if (size >> n) % shards == 0]
    smaller = (({"batch_eval": half}, evaluation_footprint(program, mesh, half)) for half in halves)
    whole = evaluation_footprint(program, mesh, size)
    problem += _memory_problem("Evaluation", whole, smaller, limit)
    if problem:
        raise ValueError(problem.strip())


def _memory_problem(
    what: str, needed: Footprint, smaller: Iterable[tuple[Change, Footprint]], limit: int
) -> str:
    if needed.total <= limit * _ROOM:
        return ""
    advice = "use more devices or a smaller model"
    for change, less in smaller:
        if less.total <= limit * _ROOM:
            advice = f"with {as_flags(change)} it would take {less.total / 2**30:.1f}"
            break
    return (
        f"{what} would take about {needed.total / 2**30:.1f} GiB on each device, where "
        f"{limit / 2**30:.1f} GiB are available; {advice}. "
    )


def alternatives(program: Program, mesh: Mesh) -> Iterator[tuple[Change, Program, Mesh]]:
    """The same recipe with less memory per device, cheapest in time first: the state spread over
    the devices, then more parts, then activations computed twice, then both.
    """
    config, devices = program.config, list(mesh.devices.flat)
    strategy = strategy_name(mesh)
    spread = {"parallel.strategy": "fsdp"} if strategy == "pmap" else {}
    whole = config.batch // num_batch_shards(mesh)
    parts = [
        {"accum_steps": n}
        for n in range(config.accum_steps + 1, whole + 1)
        if whole % n == 0 and (whole // n).bit_count() == 1
    ]
    remat = {"model.remat": "full"} if config.model.get("remat", "full") != "full" else {}
    changes: list[Change] = [spread, *({**spread, **p} for p in parts), {**spread, **remat}]
    changes += [{**spread, **remat, **p} for p in parts] if remat else []
    for change in filter(None, changes):
        changed = config.copy_and_resolve_references()
        with changed.unlocked():
            changed.update_from_flattened_dict(change)
        new = dataclasses.replace(program, config=changed)
        chosen = "fsdp" if spread else strategy
        yield change, new, make_mesh(chosen, config.parallel.tensor, new.abstract_state, devices)


def as_flags(change: Change) -> str:
    return " ".join(f"--config.{name}={value}" for name, value in change.items())


def memory_limit(device: Device) -> int | None:
    """The bytes that a program may use on a device, or None if the device does not report it."""
    if device.platform == "cpu":
        return available_memory() // len(device.client.local_devices())
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")
