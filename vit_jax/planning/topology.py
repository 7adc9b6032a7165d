"""TPU pods that we do not have: their chips, and the train step compiled for them.

The TPU compiler (`pip install 'vit_jax[tpu]'`) needs no TPU. The memory it reports is what each
chip of the pod will need.
"""

import dataclasses
import os
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from vit_jax.parallel.mesh import Device, batch_sharding, replicated, state_shardings
from vit_jax.planning.collectives import find_collectives, summary
from vit_jax.training.program import Program


class Chip(NamedTuple):
    """https://cloud.google.com/tpu/docs/system-architecture-tpu-vm, per chip."""

    memory: int  # bytes
    peak: float  # bfloat16 FLOP/s


CHIPS = {
    "v4": Chip(16 * 2**30, 137.5e12),  # per core; without a TPU the compiler counts two of them
    "v5e": Chip(16 * 2**30, 197e12),
    "v5p": Chip(95 * 2**30, 459e12),
    "v6e": Chip(32 * 2**30, 918e12),
}


# The compiler's library takes this machine for a TPU host. These are the variables it looks for on
# one, and a permission for several processes to load it at once.
_ENVIRONMENT = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler reports about a step; bytes are per chip."""

    fits: bool
    bytes: int  # all that must be in memory at once
    seconds: float  # wall-clock time of tracing and compiling
    cpu_seconds: float
    arguments: int = 0  # state and batch
    temporary: int = 0
    collectives: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)


def compile_step(program: Program, mesh: Mesh) -> Compiled:
    """Compiles the train step as `vit_jax.train` does. If it does not fit, the result says so, with
    the bytes it would need.
    """
    wall, cpu = time.monotonic(), time.process_time()

    def spent() -> tuple[float, float]:
        return time.monotonic() - wall, time.process_time() - cpu

    shardings = state_shardings(mesh, program.abstract_state)
    train_step = jax.jit(
        program.train_step,
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )
    with jax.set_mesh(mesh):
        lowered = train_step.lower(program.abstract_state, program.abstract_batch)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            raise
        return Compiled(False, _wanted(str(e)), *spent())
    seconds, cpu_seconds = spent()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None and text is not None
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Compiled(
        fits=True,
        bytes=memory.argument_size_in_bytes + results + memory.temp_size_in_bytes,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        arguments=memory.argument_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        collectives=summary(find_collectives(text)),
    )


def find_chip(topology: str) -> Chip:
    generation = topology.partition(":")[0]
    if generation not in CHIPS:
        raise ValueError(
            f"--topology={topology!r} is not GENERATION:SHAPE, such as v5e:16x16 or v5p:4x4x8, "
            f"with one of {', '.join(CHIPS)}."
        )
    return CHIPS[generation]


def find_devices(topology: str, num_slices: int = 1) -> Sequence[Device]:
    """Stand-ins for the chips of `num_slices` slices of a shape such as v5e:16x16."""
    find_chip(topology)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options = {"num_slices": num_slices} if num_slices > 1 else {}
    try:
        return topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as e:
        raise ValueError(f"There is no TPU slice --topology={topology}: {e}") from e
    except RuntimeError as e:  # JAX found no libtpu
        raise ValueError(
            f"Compiling for {topology} needs the TPU compiler, but no TPU: pip install 'jax[tpu]'."
        ) from e


def _wanted(message: str) -> int:
    """The bytes that a program needs, from the compiler's error message; 0 if it does not say."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    size = r"([\d.]+)([KMGT]?)"
    match = re.search(rf"[Uu]sed {size} of|temporaries \({size}\) exceeds", message)
    if match is None:
        return 0
    number, unit = (group for group in match.groups() if group is not None)
    return int(float(number) * units[unit])
