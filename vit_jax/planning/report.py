"""What `python -m vit_jax.plan` prints: sizes, memory, communication and time of a recipe."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh

from vit_jax.models import num_layers
from vit_jax.parallel.mesh import Device, describe_mesh, make_mesh, num_batch_shards
from vit_jax.planning import cost
from vit_jax.planning.footprint import (
    alternatives,
    as_flags,
    check_batch,
    check_memory,
    footprint,
    memory_limit,
)
from vit_jax.planning.topology import CHIPS, Compiled, compile_step, find_chip, find_devices
from vit_jax.training.program import Program

# Million parameters and GMACs at 224 px: Zhai et al. 2022, table 2 (whose GFLOPs are two per MAC);
# H/14: Dosovitskiy et al. 2021, table 1, and timm's model card.
PUBLISHED = {
    "ViT-Ti_16": (5.5, 1.25),
    "ViT-S_32": (22, 1.15),
    "ViT-S_16": (22, 4.6),
    "ViT-B_32": (87, 4.35),
    "ViT-B_16": (86, 17.55),
    "ViT-L_16": (303, 61.45),
    "ViT-H_14": (632, 167.4),
    "ViT-g_14": (1011, 266.55),
    "ViT-G_14": (1843, 482.65),
}
MORE_CHIPS = 3  # how often a topology is doubled in search of one that fits


def plan(program: Program, topologies: Sequence[str], slices: int, share: float) -> bool:
    """Prints the plan; True if everything fits."""
    print(table(model_rows(program)))
    if not topologies:
        mesh = _mesh(program, jax.devices())
        check_batch(program.config, mesh)
        print(table(memory_rows(program, mesh) | here_rows(program, mesh)))
        print(table(chip_days(program, share)))
        return True
    fits = [plan_for(program, name, slices, share) for name in topologies]
    return all(fits)


def plan_for(program: Program, topology: str, slices: int, share: float) -> bool:
    """Compiles for one topology and prints what the compiler reports; True if it fits."""
    mesh = _mesh(program, find_devices(topology, slices))
    check_batch(program.config, mesh)
    print(table(memory_rows(program, mesh)))
    compiled = compile_step(program, mesh)
    print(table(compiled_rows(compiled, topology)))
    if compiled.fits:
        print(table(time_rows(program, topology, mesh.size, share)))
        return True
    for change, changed, its_mesh in what_would_fit(program, mesh, topology, slices):
        result = compile_step(changed, its_mesh)
        verdict = "fits" if result.fits else "does not fit"
        print(f"  with {change}: {in_bytes(result.bytes)} per chip, {verdict}", flush=True)
        if result.fits:
            return False
    print("  nothing we tried fits; the model needs more chips, or a tensor axis")
    return False


def what_would_fit(
    program: Program, mesh: Mesh, topology: str, slices: int
) -> Iterator[tuple[str, Program, Mesh]]:
    """Changes to try, cheapest first, leaving out those that by the estimate cannot fit."""
    limit = find_chip(topology).memory
    for change, changed, its_mesh in alternatives(program, mesh):
        if footprint(changed, its_mesh).total <= 1.5 * limit:
            yield as_flags(change), changed, its_mesh
    for _ in range(MORE_CHIPS):
        topology = doubled(topology)
        larger = _mesh(program, find_devices(topology, slices), strategy="fsdp")
        if program.config.batch % (num_batch_shards(larger) * program.config.accum_steps):
            return
        yield f"--topology={topology} --config.parallel.strategy=fsdp", program, larger


def _mesh(program: Program, devices: Sequence[Device], strategy: str | None = None) -> Mesh:
    options = program.config.parallel
    return make_mesh(strategy or options.strategy, options.tensor, program.abstract_state, devices)


def doubled(topology: str) -> str:
    """The topology with its shortest side twice as long."""
    name, _, sides = topology.partition(":")
    sides = [int(side) for side in re.findall(r"\d+", sides)]
    shortest = sides.index(min(sides))
    sides[shortest] *= 2
    return f"{name}:{'x'.join(map(str, sides))}"


def model_rows(program: Program) -> dict[str, str]:
    config = program.config
    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_state.params))
    macs = cost.macs_per_image(program)
    sizes = {"parameters": f"{parameters:,}", "GMACs": f"{macs / 1e9:.2f} per image"}
    if published := PUBLISHED.get(config.model.model_name):
        sizes["parameters"] += f" (published: {published[0]:g} M)"
        sizes["GMACs"] += f" (published: {published[1]:g} at 224×224)"
    return {
        "model": f"{config.model.model_name}, {num_layers(program.model)} layers, for "
        f"{'×'.join(map(str, program.image_shape))} and {program.num_classes:,} classes",
        **sizes,
        "recipe": f"{config.total_steps:,} steps of {config.batch:,} in {config.accum_steps} "
        f"part{'s' * (config.accum_steps > 1)}, {config.optimizer}, "
        f"{config.model.dtype}, remat {config.model.get('remat') or 'off'}, "
        f"{'scanned' if config.model.get('scan') else 'unrolled'}",
    }


def memory_rows(program: Program, mesh: Mesh) -> dict[str, str]:
    one = footprint(program, mesh)
    rows = {"devices": describe_mesh(mesh)}
    for name, value in dataclasses.asdict(one).items():
        rows[name] = f"{in_bytes(value)} per device"
    rows["activations"] += ", an estimate: what the backward pass needs, before fusion"
    rows["in all"] = f"{in_bytes(one.total)} per device, an estimate"
    return rows


def here_rows(program: Program, mesh: Mesh) -> dict[str, str]:
    """Whether `train` would accept the recipe on this machine."""
    limit = memory_limit(jax.local_devices()[0])
    if limit is None:
        return {}
    try:
        check_memory(program, mesh, limit)
    except ValueError as problem:
        return {"on this machine": f"does NOT fit. {problem}"}
    return {"on this machine": f"fits; {in_bytes(limit)} are available on each device"}


def compiled_rows(compiled: Compiled, topology: str) -> dict[str, str]:
    limit = find_chip(topology).memory
    rows = {
        "compiled": f"in {compiled.seconds:.0f} s ({compiled.cpu_seconds:.0f} s of CPU)",
        "memory": f"{in_bytes(compiled.bytes)} of {in_bytes(limit)} per chip: "
        + ("it fits" if compiled.fits else "it does NOT fit"),
    }
    for kind, about in compiled.collectives.items():
        rows[kind] = (
            f"{about['count']} in the program, {in_bytes(about['bytes'])} in all, "
            f"the largest {in_bytes(about['largest'])}"
        )
    return rows


def time_rows(program: Program, topology: str, chips: int, share: float) -> dict[str, str]:
    seconds = cost.step_flops(program) / (chips * find_chip(topology).peak * share)
    days = seconds * program.config.total_steps / 86_400
    ms = f"{1e3 * seconds:,.{0 if seconds > 0.01 else 2}f}"
    return {
        "time": f"about {ms} ms per step, {days:.2g} days for the recipe: an estimate from "
        f"{cost.step_flops(program):.3g} FLOP per step at {100 * share:.0f} % of peak"
    }


def chip_days(program: Program, share: float) -> dict[str, str]:
    flops = cost.step_flops(program) * program.config.total_steps
    days = ", ".join(
        f"{flops / (chip.peak * share) / 86_400:,.2g} of {name}" for name, chip in CHIPS.items()
    )
    return {"chip-days": f"{days}: an estimate at {100 * share:.0f} % of the bfloat16 peak"}


def table(rows: dict[str, str]) -> str:
    return "\n".join(f"  {name:<18} {value}" for name, value in rows.items())


def in_bytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
