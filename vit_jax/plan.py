"""Says what a recipe needs before anything is paid for: sizes, memory, time. Needs no accelerator.

    python -m vit_jax.plan --config configs/vit.py:l16,imagenet2012 [--config.key=value …]
    python -m vit_jax.plan --config … --topology v5e:16x16 [--topology v6e:16x16] [--slices N]

With a topology (v4, v5e, v5p, v6e; needs `pip install 'jax[tpu]'`) the train step is compiled for
that TPU pod, and what the compiler says is printed: bytes a chip, collectives, whether it fits, and
if not, what would. Exit code 1 where something does not fit.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import ml_collections
from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from vit_jax import data
from vit_jax.cli import command as commands
from vit_jax.parallel.mesh import Layout, make_layout
from vit_jax.planning import cost
from vit_jax.planning import footprint as fit
from vit_jax.planning.topology import CHIPS, Compiled, chip_of, compile_step, devices_of
from vit_jax.training.program import Program

RECIPES = Path(commands.recipe.RECIPES)

# Million parameters and GMACs at 224 px: Zhai et al. 2022, table 2 (their GFLOPs are two a MAC);
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
MORE_CHIPS = 3  # times a topology is doubled in search of one that fits


def plan(config: ml_collections.ConfigDict, topologies: list[str], slices: int, share: float):
    """Prints the plan; True if all that was asked for fits."""
    num_classes, multi_label = data.count_classes(config)
    shape = (*data.preprocessing(config).crop, config.pp.channels)
    program = Program(config, shape, num_classes, multi_label)
    print(rows(model_rows(program)))
    if not topologies:
        layout = _layout(program, jax.devices())
        fit.check_batch(config, layout)
        print(rows(memory_rows(program, layout)))
        print(rows(chip_days(program, share)))
        return True
    fits = [plan_for(program, name, slices, share) for name in topologies]  # each, also after a no
    return all(fits)


def plan_for(program: Program, topology: str, slices: int, share: float) -> bool:
    """Compiles for one topology and prints what the compiler says."""
    layout = _layout(program, devices_of(topology, slices))
    fit.check_batch(program.config, layout)
    print(rows(memory_rows(program, layout)))
    compiled = compile_step(program, layout)
    print(rows(compiled_rows(compiled, topology)))
    if compiled.fits:
        print(rows(time_rows(program, topology, layout.mesh.size, share)))
        return True
    for change, changed, its_layout in what_would_fit(program, layout, topology, slices):
        result = compile_step(changed, its_layout)
        verdict = "fits" if result.fits else "does not fit"
        print(f"  with {change}: {in_bytes(result.bytes)} a chip, {verdict}", flush=True)
        if result.fits:
            return False
    print("  nothing tried fits; the model needs more chips, or a tensor axis")
    return False


def what_would_fit(
    program: Program, layout: Layout, topology: str, slices: int
) -> Iterator[tuple[str, Program, Layout]]:
    """Cheapest first; those that an estimate gives no chance are left out."""
    limit = chip_of(topology).memory
    for change, changed, its_layout in fit.alternatives(program, layout):
        if fit.footprint(changed, its_layout).total <= 1.5 * limit:
            yield fit.as_flags(change), changed, its_layout
    for _ in range(MORE_CHIPS):
        topology = doubled(topology)
        larger = _layout(program, devices_of(topology, slices), strategy="fsdp")
        if program.config.batch % (larger.batch_shards * program.config.accum_steps):
            return
        yield f"--topology={topology} --config.parallel.strategy=fsdp", program, larger


def doubled(topology: str) -> str:
    """The topology with its shortest side twice as long."""
    name, _, sides = topology.partition(":")
    sides = [int(side) for side in re.findall(r"\d+", sides)]
    shortest = sides.index(min(sides))
    sides[shortest] *= 2
    return f"{name}:{'x'.join(map(str, sides))}"


def _layout(program: Program, devices, strategy: str | None = None) -> Layout:
    options = program.config.parallel
    return make_layout(strategy or options.strategy, options.tensor, program.state_shapes, devices)


# What is printed


def model_rows(program: Program) -> dict[str, str]:
    config = program.config
    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.state_shapes.params))
    macs = cost.macs_per_image(program)
    told = {"parameters": f"{parameters:,}", "GMACs": f"{macs / 1e9:.2f} an image"}
    if published := PUBLISHED.get(config.model.model_name):
        told["parameters"] += f" (published: {published[0]:g} M)"
        told["GMACs"] += f" (published: {published[1]:g} at 224×224)"
    layers = config.model.get("num_blocks") or config.model.transformer.num_layers
    return {
        "model": f"{config.model.model_name}, {layers} layers, for "
        f"{'×'.join(map(str, program.image_shape))} and {program.num_classes:,} classes",
        **told,
        "recipe": f"{config.total_steps:,} steps of {config.batch:,} in {config.accum_steps} "
        f"part{'s' * (config.accum_steps > 1)}, {config.optimizer}, "
        f"{config.model.dtype}, remat {config.model.get('remat')}, "
        f"{'scanned' if config.model.get('scan') else 'unrolled'}",
    }


def memory_rows(program: Program, layout: Layout) -> dict[str, str]:
    one = fit.footprint(program, layout)
    rows = {"devices": str(layout)}
    for name, value in dataclasses.asdict(one).items():
        rows[name] = f"{in_bytes(value)} a device"
    rows["activations"] += ", an estimate: what the backward pass keeps, before fusion"
    rows["in all"] = f"{in_bytes(one.total)} a device, an estimate"
    return rows


def compiled_rows(compiled: Compiled, topology: str) -> dict[str, str]:
    limit = chip_of(topology).memory
    rows = {
        "compiled": f"in {compiled.seconds:.0f} s ({compiled.cpu_seconds:.0f} s of CPU)",
        "memory": f"{in_bytes(compiled.bytes)} of {in_bytes(limit)} a chip: "
        + ("it fits" if compiled.fits else "it does NOT fit"),
    }
    for kind, about in compiled.collectives.items():
        rows[kind] = (
            f"{about['count']} in the program, {in_bytes(about['bytes'])} in all, "
            f"the largest {in_bytes(about['largest'])}"
        )
    return rows


def time_rows(program: Program, topology: str, chips: int, share: float) -> dict[str, str]:
    seconds = cost.step_flops(program) / (chips * chip_of(topology).peak * share)
    days = seconds * program.config.total_steps / 86_400
    ms = f"{1e3 * seconds:,.{0 if seconds > 0.01 else 2}f}"
    return {
        "time": f"about {ms} ms a step, {days:.2g} days for the recipe: an estimate from "
        f"{cost.step_flops(program):.3g} FLOP a step at {100 * share:.0f} % of peak"
    }


def chip_days(program: Program, share: float) -> dict[str, str]:
    flops = cost.step_flops(program) * program.config.total_steps
    days = ", ".join(
        f"{flops / (chip.peak * share) / 86_400:,.2g} of {name}" for name, chip in CHIPS.items()
    )
    return {"chip-days": f"{days}: an estimate at {100 * share:.0f} % of the bfloat16 peak"}


def rows(table: dict[str, str]) -> str:
    return "\n".join(f"  {name:<18} {value}" for name, value in table.items())


def in_bytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print(f"plan: unexpected argument {arguments[1]!r}; see --help", file=sys.stderr)
        return 1
    absl_logging.set_verbosity(absl_logging.ERROR)
    options = flags.FLAGS
    if options.topology:  # the compiler's library would look for a TPU here, and complain
        jax.config.update("jax_platforms", "cpu")
    try:
        fits = plan(options.config, options.topology, options.slices, options.utilisation)
    except (ValueError, OSError) as e:
        print(f"plan: {commands.one_line(e)}", file=sys.stderr)
        return 1
    return 0 if fits else 1


def define_flags() -> None:
    config_flags.DEFINE_config_file(
        "config", str(RECIPES / "quickstart.py"), "the recipe: a file of configs/", lock_config=True
    )
    flags.DEFINE_multi_string("topology", [], "a TPU slice such as v5e:16x16; may be repeated")
    flags.DEFINE_integer("slices", 1, "slices of that topology", lower_bound=1)
    flags.DEFINE_float("utilisation", 0.4, "share of the peak that is assumed", 0.01, 1.0)


run = functools.partial(commands.run, main, "plan", define_flags)

if __name__ == "__main__":
    run()
