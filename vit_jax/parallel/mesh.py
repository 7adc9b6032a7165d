"""Which devices a run uses, and which part of the state and of the batch each of them holds.

A strategy is nothing but a mesh and a rule for the state; the compiler derives the communication.
The step sees the global batch whatever the strategy, so mixing, dropout and the mean of the
gradient are the same for all of them.

| strategy | devices | state | what the devices exchange |
|---|---|---|---|
| jit | one | whole | nothing |
| pmap | all | a copy on each | the sum of the gradients |
| fsdp | all | spread over them | each layer's parameters when it is their turn, and gradients |

With `tensor` > 1, fsdp also spreads the heads and the hidden layer of the MLP, for widths of which
one example's activations do not fit.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.models.sharding import BATCH, DATA, REPLICA, TENSOR
from vit_jax.models.stacking import STACKED

STRATEGIES = ("jit", "pmap", "fsdp")

# A copy of state and gradients on each device may take this much before `auto` spreads it.
COPY_LIMIT = 2 * 2**30

# Arrays (of one layer) with fewer elements stay whole: to gather them would cost more than it saves
_SMALLEST = 2**12

# The dimension, from the end, that the tensor axis cuts.
_TENSOR_DIMENSIONS = {
    r".*/(query|key|value)/(kernel|bias)": 2,  # heads
    r".*/out/kernel": 3,  # heads
    r".*/Dense_0/(kernel|bias)": 1,  # hidden layer of the MLP
    r".*/Dense_1/kernel": 2,
}


@dataclasses.dataclass(frozen=True)
class Layout:
    strategy: str
    mesh: Mesh

    def __str__(self) -> str:
        devices = self.mesh.devices
        hosts = len({device.process_index for device in devices.flat})
        axes = " × ".join(f"{size} {name}" for name, size in self.mesh.shape.items() if size > 1)
        return (
            f"{devices.size} × {devices.flat[0].device_kind}, {self.strategy}"
            + (f" over {axes}" if axes else "")
            + (f", {hosts} processes" if hosts > 1 else "")
        )

    @property
    def batch(self) -> NamedSharding:
        """Of every array of a batch: examples are spread, each is whole."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH))

    @property
    def whole(self) -> NamedSharding:
        """A copy on each device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_shards(self) -> int:
        return self.mesh.shape[REPLICA] * self.mesh.shape[DATA]

    def shardings(self, state: Any) -> Any:
        """A sharding for each array of a state, or of any tree with parameters' names in it."""
        return jax.tree_util.tree_map_with_path(self._sharding, state)

    def _sharding(self, path: Any, leaf: Any) -> NamedSharding:
        if self.strategy != "fsdp":
            return self.whole
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(self.mesh, spec_of(name, leaf.shape, dict(self.mesh.shape)))

    def shapes(self, state: Any) -> Any:
        """The shapes of a state with their shardings: what a checkpoint is restored into."""
        return jax.tree.map(
            lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
            state,
            self.shardings(state),
        )

    def lower(self, step_fn: Callable, state: Any, batch: Any) -> jax.stages.Lowered:
        """The step (state, batch) -> (state, metrics) for these devices; it consumes its state."""
        state_shardings = self.shardings(state)
        jitted = jax.jit(
            step_fn,
            in_shardings=(state_shardings, self.batch),
            out_shardings=(state_shardings, self.whole),
            donate_argnums=0,
        )
        with jax.set_mesh(self.mesh):
            return jitted.lower(state, batch)

    def compile(self, step_fn: Callable, state: Any, batch: Any) -> Callable:
        compiled = self.lower(step_fn, state, batch).compile()
        if self.mesh.size > 1 and self.mesh.devices.flat[0].platform == "cpu":
            # The devices of a CPU share its threads: two programs in flight can each hold some of
            # them and wait for the rest for ever.
            return lambda *arguments: jax.block_until_ready(compiled(*arguments))
        return compiled

    def jit_eval(self, function: Callable) -> Callable:
        """(params, batch) -> sums over the whole batch, the same on every device and host."""
        jitted = jax.jit(function, out_shardings=self.whole)

        def evaluate(params: Any, batch: Any) -> Any:
            with jax.set_mesh(self.mesh):
                return jitted(params, batch)

        return evaluate

    def build(self, function: Callable, *arguments: Any) -> Any:
        """The result of a function that makes a state or parameters, made where it belongs."""
        shardings = self.shardings(jax.eval_shape(function, *arguments))
        with jax.set_mesh(self.mesh):
            return jax.jit(function, out_shardings=shardings)(*arguments)

    def put(self, tree: Any) -> Any:
        """Host arrays, the same in every process, onto the devices."""

        def put(leaf, sharding):
            host = np.asarray(leaf)
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

        return jax.tree.map(put, tree, self.shardings(tree))


def to_host(tree: Any) -> Any:
    """NumPy arrays of a tree whose parts other hosts may hold; all of them must take part."""

    def gather(leaf):
        if leaf.is_fully_addressable:
            return jax.device_get(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


def make_layout(
    strategy: str, tensor: int, state: Any, devices: Sequence[jax.Device] | None = None
) -> Layout:
    """The layout of a state (its shapes will do) over `devices`, or over all there are.

    `auto` is jit on one device; on several, pmap while a copy of state and gradients fits 2 GiB, so
    up to ViT-B, and fsdp beyond that or with a tensor axis.
    """
    devices = jax.devices() if devices is None else devices
    if strategy == "auto":
        fits = copy_bytes(state) <= COPY_LIMIT and tensor == 1
        strategy = "jit" if len(devices) == 1 else "pmap" if fits else "fsdp"
    _check(strategy, tensor, devices)
    if strategy == "jit":
        return Layout(strategy, make_mesh(devices[:1], 1, 1))
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    most = len(devices) // slices // tensor
    if strategy == "pmap":
        return Layout(strategy, make_mesh(devices, most, tensor))
    # The number of shards that leaves a device the fewest bytes: where a width does not divide by
    # all devices of a slice, several groups of them hold a copy each.
    layouts = [
        Layout(strategy, make_mesh(devices, shards, tensor))
        for shards in range(most, 0, -1)
        if most % shards == 0
    ]
    return min(layouts, key=lambda layout: bytes_per_device(state, layout))


def make_mesh(devices: Sequence[jax.Device], shards: int, tensor: int) -> Mesh:
    """Devices of a process side by side, slices apart: what talks most is nearest."""
    ordered = sorted(devices, key=lambda d: (getattr(d, "slice_index", 0), d.process_index, d.id))
    grid = np.array(ordered, object).reshape(-1, shards, tensor)
    return Mesh(grid, (REPLICA, DATA, TENSOR))


def spec_of(name: str, shape: tuple[int, ...], mesh: dict[str, int]) -> PartitionSpec:
    """How fsdp cuts an array: the tensor axis by the table, the data axis along what is longest."""
    layers = 1 if f"/{STACKED}/" in f"/{name}" and shape else 0  # the scan walks along it
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


def bytes_per_device(tree: Any, layout: Layout) -> int:
    """What a device holds of a tree of arrays or shapes."""
    shardings = jax.tree.leaves(layout.shardings(tree))
    return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(jax.tree.leaves(tree), shardings, strict=True)
    )


def copy_bytes(state: Any) -> int:
    """A whole state with the gradients of its parameters."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state, state.params)))


def _check(strategy: str, tensor: int, devices: Sequence[jax.Device]) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(
            f"config.parallel.strategy={strategy!r} is none of auto, {', '.join(STRATEGIES)}."
        )
    processes = len({device.process_index for device in devices})
    if strategy == "jit" and processes > 1:
        raise ValueError(
            f"config.parallel.strategy=jit uses one device, and there are {processes} processes; "
            "use pmap, fsdp or auto."
        )
    if tensor > 1 and strategy != "fsdp":
        raise ValueError(
            f"config.parallel.tensor={tensor} goes with config.parallel.strategy=fsdp, "
            f"not {strategy}."
        )
    local = len(devices) // processes
    if tensor < 1 or local % tensor:
        sizes = ", ".join(str(n) for n in range(1, local + 1) if local % n == 0)
        raise ValueError(
            f"config.parallel.tensor={tensor} does not divide the {local} devices of a process; "
            f"{sizes} would."
        )
