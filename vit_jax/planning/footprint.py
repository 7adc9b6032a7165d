"""Whether a recipe fits its devices, and if not, which numbers would."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import Mesh

from vit_jax.models import Model
from vit_jax.parallel.mesh import (
    Device,
    bytes_per_device,
    make_mesh,
    num_batch_shards,
    strategy_name,
)
from vit_jax.training.program import Program

Change = Mapping[str, str | int]  # options of the recipe

# What the estimate leaves out: the compiler's copies, buffers of collectives, fragmentation.
_ROOM = 0.9


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes on one device. State and gradients are exact; activations are what is kept for the
    backward pass, before the compiler fuses any of it away.
    """

    parameters: int
    gradients: int
    optimizer: int
    averages: int
    activations: int

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
    )


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
    if config.batch < 1 or config.batch % (shards * config.accum_steps):
        problems.append(_batch_problem(config.batch, config.accum_steps, shards))
    if config.batch_eval < 1 or config.batch_eval % shards:
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
    """Raises if, by our estimate, a device with `limit` bytes does not have enough."""
    if limit is None:  # a CPU does not report one
        return
    needed = footprint(program, mesh).total
    if needed <= limit * _ROOM:
        return
    for change, changed, its_mesh in alternatives(program, mesh):
        less = footprint(changed, its_mesh).total
        if less <= limit * _ROOM:
            advice = f"with {as_flags(change)} it would need {less / 2**30:.1f}"
            break
    else:
        advice = "use more devices or a smaller model"
    raise ValueError(
        f"The step would need about {needed / 2**30:.1f} GiB on each device, which has "
        f"{limit / 2**30:.1f}; {advice}."
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
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")
