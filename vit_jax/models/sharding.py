"""Where activations live when a model runs over a mesh of devices, and for which platform.

The mesh is the ambient one (`jax.set_mesh`), so a model needs no field for it; without a mesh, or
over one device, nothing here does anything. `vit_jax.parallel` makes the mesh and shards the
parameters.
"""

import math

import jax
from jax import Array
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

REPLICA, DATA, TENSOR = "replica", "data", "tensor"  # the axes of every mesh
BATCH = (REPLICA, DATA)  # examples are spread over both


def constrain(x: Array, *axes: str | tuple[str, ...] | None) -> Array:
    """`x` with its dimensions spread over these axes of the mesh, whole along the others.

    Without it the compiler may follow the parameters instead and gather the batch. A dimension
    whose size is not divisible by an axis stays whole.
    """
    mesh = automatic_mesh()
    if mesh is None:
        return x
    assert len(axes) <= x.ndim, (axes, x.shape)
    fitting = [
        axis if size % axis_size(mesh, axis) == 0 else None
        for axis, size in zip(axes, x.shape, strict=False)
    ]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*fitting))


def automatic_mesh() -> AbstractMesh | None:
    """The ambient mesh, where the compiler partitions programs over it; None inside a shard_map."""
    mesh = jax.sharding.get_abstract_mesh()
    ours = set(mesh.axis_names) == {REPLICA, DATA, TENSOR}
    return mesh if ours and set(mesh.axis_types) == {AxisType.Auto} else None


def splits_heads() -> bool:
    """Whether the heads of one example are on several devices."""
    mesh = automatic_mesh()
    return mesh is not None and mesh.shape[TENSOR] > 1


def axis_size(mesh: AbstractMesh, axis: str | tuple[str, ...] | None) -> int:
    names = (axis,) if isinstance(axis, str) else axis or ()
    return math.prod(mesh.shape[name] for name in names)


def target_platform() -> str:
    """What the program being traced will run on: cpu, gpu or tpu.

    A mesh knows, even when a program is compiled on a CPU for another machine.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device is not None else jax.default_backend()
