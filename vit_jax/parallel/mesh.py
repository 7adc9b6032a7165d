"""The mesh of devices, and the part of the state and of the batch that each device holds.

A strategy is the shape of a mesh, and the shardings are a function of the mesh. The compiler
derives the communication from them. The step sees the global batch on any mesh, so mixing, dropout
and the mean of the gradient are the same on all of them.

| strategy | mesh | what the devices exchange |
|---|---|---|
| jit | one device | nothing |
| pmap | all on the axis `replica`: a copy of the state on each | the sum of the gradients |
| fsdp | on the axis `data`: the state is spread over them | parameters, layer by layer; gradients |

With `tensor` > 1, fsdp also spreads the heads and the hidden layer of the MLP over the axis
`tensor`, for models so wide that one example's activations do not fit on a device.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.models.sharding import BATCH, DATA, REPLICA, TENSOR
from vit_jax.models.stacking import STACKED
from vit_jax.training.state import TrainState

T = TypeVar("T")
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm] jaxlib has no stubs

STRATEGIES = ("jit", "pmap", "fsdp")

# A copy of state and gradients on each device may take this many bytes before `auto` spreads it.
COPY_LIMIT = 2 * 2**30

# Arrays (of one layer) with fewer elements stay whole: gathering them costs more than it saves.
_SMALLEST = 2**12

# The dimension, from the end, that the tensor axis cuts.
_TENSOR_DIMENSIONS = {
    r".*/(query|key|value)/(kernel|bias)": 2,  # heads
    r".*/out/kernel": 3,  # heads
    r".*/Dense_0/(kernel|bias)": 1,  # hidden layer of the MLP
    r".*/Dense_1/kernel": 2,
}


def make_mesh(
    strategy: str, tensor: int, abstract_state: TrainState, devices: Sequence[Device] | None = None
) -> Mesh:
    """The mesh for training a state over `devices`, or over all there are.

    `auto` is jit on one device. On several it is pmap if a copy of state and gradients fits into
    2 GiB (up to ViT-B), and fsdp beyond that or with a tensor axis.
    """
    devices = jax.devices() if devices is None else devices
    if strategy == "auto":
        fits = copy_bytes(abstract_state) <= COPY_LIMIT and tensor == 1
        strategy = "jit" if len(devices) == 1 else "pmap" if fits else "fsdp"
    _check(strategy, tensor, devices)
    if strategy == "jit":
        return arrange(devices[:1], 1, 1)
    if strategy == "pmap":
        return arrange(devices, 1, 1)
    # The number of shards that leaves each device the fewest bytes: where a width is not divisible
    # by the devices of a slice, several groups of them hold a copy each.
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    most = len(devices) // slices // tensor
    counts = [count for count in range(most, 0, -1) if most % count == 0]
    meshes = [arrange(devices, count, tensor) for count in counts]
    return min(meshes, key=lambda mesh: bytes_per_device(mesh, abstract_state))


def arrange(devices: Sequence[Device], num_shards: int, tensor: int) -> Mesh:
    """Devices of a process side by side, slices apart: those that talk most are nearest."""
    ordered = sorted(devices, key=lambda d: (getattr(d, "slice_index", 0), d.process_index, d.id))
    grid = np.array(ordered, object).reshape(-1, num_shards, tensor)
    return Mesh(grid, (REPLICA, DATA, TENSOR))


def strategy_name(mesh: Mesh) -> str:
    if mesh.size == 1:
        return "jit"
    return "pmap" if mesh.shape[DATA] * mesh.shape[TENSOR] == 1 else "fsdp"


def describe_mesh(mesh: Mesh) -> str:
    devices = mesh.devices
    processes = len({device.process_index for device in devices.flat})
    axes = " × ".join(f"{size} {name}" for name, size in mesh.shape.items() if size > 1)
    return (
        f"{devices.size} × {devices.flat[0].device_kind}, {strategy_name(mesh)}"
        + (f" over {axes}" if axes else "")
        + (f", {processes} processes" if processes > 1 else "")
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """A copy on each device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For every array of a batch: the examples are spread over the devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def num_batch_shards(mesh: Mesh) -> int:
    return mesh.shape[REPLICA] * mesh.shape[DATA]


def state_shardings(mesh: Mesh, state: T) -> T:
    """A sharding for each array of a state, or of any tree with parameters' names in it."""

    def sharding(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, partition_spec(name, leaf.shape, mesh.shape))

    return jax.tree_util.tree_map_with_path(sharding, state)


def with_shardings(tree: T, shardings: T) -> T:
    """The shapes of a tree, each with its sharding: what a checkpoint is restored into."""
    return jax.tree.map(
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), tree, shardings
    )


def partition_spec(name: str, shape: Sequence[int], mesh: Mapping[str, int]) -> PartitionSpec:
    """How an array is cut: by the tensor axis as in the table, by the data axis along its longest
    dimension.
    """
    layers = 1 if f"/{STACKED}/" in f"/{name}" and shape else 0  # the scan's axis is never cut
    if math.prod(shape[layers:]) < _SMALLEST:
        return PartitionSpec()
    axes: list[str | None] = [None] * len(shape)
    for pattern, from_end in _TENSOR_DIMENSIONS.items():
        fits = len(shape) - layers >= from_end and shape[-from_end] % mesh[TENSOR] == 0
        if mesh[TENSOR] > 1 and fits and re.fullmatch(pattern, name):
            axes[-from_end] = TENSOR
    free = [
        i
        for i in range(layers, len(shape))
        if axes[i] is None and shape[i] % mesh[DATA] == 0 and mesh[DATA] > 1
    ]
    if free:
        axes[max(free, key=lambda i: shape[i])] = DATA
    return PartitionSpec(*axes)


def one_at_a_time(step_fn: Callable[..., T], mesh: Mesh) -> Callable[..., T]:
    """The compiled step; on the several devices of one CPU, each call waits until it is done.

    Those devices share the CPU's threads: two programs in flight can each hold some of them and
    wait for the rest forever.
    """
    if mesh.size == 1 or mesh.devices.flat[0].platform != "cpu":
        return step_fn
    return lambda *arguments: jax.block_until_ready(step_fn(*arguments))


def gather_to_host(tree: T) -> T:
    """NumPy arrays of a tree that may be spread over several hosts; every process must call it."""

    def gather(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable:
            return jax.device_get(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


def bytes_per_device(mesh: Mesh, tree: object) -> int:
    """What one device holds of a tree of arrays or shapes."""
    shardings = jax.tree.leaves(state_shardings(mesh, tree))
    return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(jax.tree.leaves(tree), shardings, strict=True)
    )


def copy_bytes(state: TrainState) -> int:
    """A whole state with the gradients of its parameters."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state, state.params)))


def _check(strategy: str, tensor: int, devices: Sequence[Device]) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(
            f"config.parallel.strategy={strategy!r} is not one of auto, {', '.join(STRATEGIES)}."
        )
    processes = len({device.process_index for device in devices})
    if strategy == "jit" and processes > 1:
        raise ValueError(
            f"config.parallel.strategy=jit uses one device, but there are {processes} processes; "
            "use pmap, fsdp or auto."
        )
    if tensor > 1 and strategy != "fsdp":
        raise ValueError(
            f"config.parallel.tensor={tensor} needs config.parallel.strategy=fsdp, not {strategy}."
        )
    local = len(devices) // processes
    if tensor < 1 or local % tensor:
        sizes = ", ".join(str(n) for n in range(1, local + 1) if local % n == 0)
        raise ValueError(
            f"config.parallel.tensor={tensor} does not divide the {local} devices of a process; "
            f"{sizes} would."
        )
