"""Compiles pre-training steps for TPU pods that we do not have: bytes per chip, compile time.

    python -m benchmarks.pods [--limit MINUTES] [--only TEXT]     # needs jax[tpu], but no TPU
    python -m benchmarks.pods --table                             # prints the table in docs/pods.md

One compilation at a time, each in a process of its own; cases in benchmarks/results/pods.json are
not repeated. The step is that of configs/scratch.py (AdamW, MixUp, bfloat16) with remat 'full' and
16 images per chip, so 256 images on 16 chips and 4,096 on 256.
"""

import argparse
import dataclasses
import json
import multiprocessing
import pathlib
import resource
import signal

from benchmarks.machine import about

RESULTS = pathlib.Path(__file__).with_name("results") / "pods.json"
IMAGES_A_CHIP = 16
MODELS = ("ViT-B_16", "ViT-L_16", "ViT-H_14", "ViT-g_14", "ViT-G_14")
TOPOLOGIES = {16: ("v5e:4x4", "v6e:4x4"), 256: ("v5e:16x16", "v6e:16x16")}


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    topology: str
    chips: int
    scan: bool
    strategy: str = "fsdp"

    @property
    def name(self) -> str:
        how = "scanned" if self.scan else "unrolled"
        return f"{self.model} {self.topology} {how} {self.strategy}"


def all_cases() -> list[Case]:
    """First the cases that our claims rest on, then the others, the slow ones last."""
    first = [
        Case("ViT-G_14", "v5e:16x16", 256, True),
        Case("ViT-H_14", "v5e:4x4", 16, True),
        Case("ViT-H_14", "v5e:16x16", 256, True),
        Case("ViT-L_16", "v5e:4x4", 16, True),
        Case("ViT-L_16", "v5e:4x4", 16, True, "pmap"),
        Case("ViT-L_16", "v5e:16x16", 256, True),
        Case("ViT-G_14", "v5e:4x4", 16, True),
        Case("ViT-H_14", "v5e:4x4", 16, False),
    ]
    rest = [
        Case(model, topology, chips, scan)
        for scan in (True, False)
        for model in MODELS
        for chips, topologies in TOPOLOGIES.items()
        for topology in topologies
    ]
    return [*first, *(case for case in rest if case not in first)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=30, help="minutes of CPU time for each")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    if options.table:
        print(table(results["cases"]))
        return
    for case in all_cases():
        if options.only in case.name and case.name not in results["cases"]:
            results["about"] = about(("jax", "jaxlib", "flax", "libtpu"))
            commit = {"commit": results["about"]["commit"]}
            results["cases"][case.name] = run(case, options.limit) | commit
            print(case.name, results["cases"][case.name], flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def run(case: Case, limit: float) -> dict:
    """What the compiler reports, from a process that the system ends when its time is up."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(case, round(60 * limit), send))
    process.start()
    send.close()
    try:
        return {**dataclasses.asdict(case), **receive.recv()}
    except EOFError:
        process.join()
        ended = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        why = {"over_minutes": limit} if ended else {"error": f"exit code {process.exitcode}"}
        return {**dataclasses.asdict(case), **why}
    finally:
        process.join()


def work(case: Case, seconds: int, send) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    from configs import scratch
    from vit_jax.parallel.mesh import bytes_per_device, make_mesh
    from vit_jax.planning.topology import compile_step, find_devices
    from vit_jax.training.program import Program

    config = scratch.get_config(f"{case.model},imagenet2012")
    config.batch = IMAGES_A_CHIP * case.chips
    config.model.scan = case.scan
    config.model.remat = "full"
    program = Program(config, (224, 224, 3), 1000)
    devices = find_devices(case.topology)
    assert len(devices) == case.chips
    mesh = make_mesh(case.strategy, 1, program.abstract_state, devices)
    compiled = compile_step(program, mesh)
    state = bytes_per_device(mesh, program.abstract_state)
    send.send({"mesh": dict(mesh.shape), "state": state, **dataclasses.asdict(compiled)})


def table(cases: dict) -> str:
    lines = [
        "| model | pod | batch | scanned: GiB per chip | compile, CPU s | unrolled: GiB | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        for chips, topologies in TOPOLOGIES.items():
            for topology in topologies:
                cells = [
                    _cells(cases.get(Case(model, topology, chips, scan).name))
                    for scan in (True, False)
                ]
                row = [model, topology, f"{IMAGES_A_CHIP * chips:,}", *cells[0], *cells[1]]
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _cells(result: dict | None) -> tuple[str, str]:
    if result is None:
        return "not run", ""
    if "over_minutes" in result:
        return "", f"over {60 * result['over_minutes']:.0f}"
    if "error" in result:
        return result["error"], ""
    memory = f"{result['bytes'] / 2**30:.2f}"
    return memory if result["fits"] else f"does not fit: {memory}", f"{result['cpu_seconds']:.0f}"


if __name__ == "__main__":
    main()
