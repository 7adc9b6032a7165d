"""Compares this checkout with another one, side by side: the same numbers, and what they cost.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.before /tmp/before [--only PATTERN] [--out FILE]

- numbers: outputs of every golden model, and runs of 20 steps on one and on eight devices, bit for
  bit;
- start: memory of host and devices while a pretrained ViT-L/16 lands on eight devices;
- speed: forward pass, train step, loading and imports, both sides in turns, by the wall clock.

Each measurement is a process of its own in one of the checkouts.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import machine

HERE = pathlib.Path(__file__).resolve().parents[1]
RECIPE = HERE / "tests" / "run" / "recipe.py"
GOLDEN = HERE / "tests" / "golden"
STEPS = ("--config.total_steps=20", "--config.checkpoint_every=0")
WIDE = ("--config.model.hidden_size=64", "--config.model.transformer.mlp_dim=64")
RUNS = {
    "quickstart": (None, ()),
    "everything random, one device": (RECIPE, ()),
    "scanned": (RECIPE, ("--config.model.scan=True",)),
    "pmap": (RECIPE, ("--config.parallel.strategy=pmap",)),
    "fsdp": (RECIPE, ("--config.parallel.strategy=fsdp", *WIDE)),
    "tensor": (RECIPE, ("--config.parallel.strategy=fsdp", "--config.parallel.tensor=2", *WIDE)),
}
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=pathlib.Path, help="the other checkout")
    parser.add_argument("--only", default=".", help="a pattern of the parts to run")
    parser.add_argument("--out", help="a JSON file for the figures")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args.path)))
        return
    sides = {"before": args.other.resolve(), "after": HERE}
    figures = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, measure in PARTS.items():
            if re.search(args.only, name):
                print(f"{name}…", flush=True)
                figures[name] = measure(sides, pathlib.Path(directory))
    git = ["git", "-C", str(sides["before"]), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    machine.report({"before": commit, **figures}, args.out)


def child(side: pathlib.Path, name: str, path: object = "", devices: int = 1) -> dict:
    """Runs a function of CHILDREN with the vit_jax of a checkout."""
    program = [sys.executable, __file__, str(side), "--child", name, "--path", str(path)]
    result = subprocess.run(
        program, cwd=side, env=environment(side, devices), capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(f"{name} in {side}: {result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def environment(side: pathlib.Path, devices: int = 1) -> dict[str, str]:
    paths = os.pathsep.join((str(side), str(HERE)))  # its vit_jax, and this file's siblings
    extra = {"PYTHONPATH": paths, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **extra}


# The same numbers


def numbers(sides: dict[str, pathlib.Path], directory: pathlib.Path) -> dict:
    before, after = (child(side, "golden") for side in sides.values())
    common = before.keys() & after.keys()
    equal = {
        "golden models": all(before[name] == after[name] for name in common),
        "models": len(common),
        "read on one side only": sorted(before.keys() ^ after.keys()),
    }
    for run in RUNS:
        ends = {name: trained(side, directory / name / run, run) for name, side in sides.items()}
        equal[run] = ends["before"] == ends["after"]
        print(f"  {run}: {'equal' if equal[run] else 'DIFFERENT'}", flush=True)
    return equal


def trained(side: pathlib.Path, workdir: pathlib.Path, run: str) -> list:
    """A digest of the final weights, and every number that was logged but the speed."""
    recipe, options = RUNS[run]
    command = [sys.executable, "-m", "vit_jax.train", f"--workdir={workdir}"]
    command += [f"--config={recipe}"] if recipe else []
    command += [*STEPS, *options]
    devices = 8 if "parallel" in " ".join(options) else 1
    subprocess.run(
        command, cwd=side, env=environment(side, devices), capture_output=True, check=True
    )
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    rows = [{k: v for k, v in row.items() if "per_second" not in k} for row in lines]
    import numpy as np

    with np.load(workdir / "model.npz") as file:
        weights = {name: digest(file[name]) for name in file}
    return [weights, rows]


def golden_outputs(_: str) -> dict:
    import jax
    import numpy as np

    import vit_jax

    results = {}
    for io in sorted(GOLDEN.rglob("*.io.npz")):
        stem = io.name.removesuffix(".io.npz")
        found = (io.with_name(stem), *(io.with_name(stem + s) for s in (".npz", ".safetensors")))
        path = next(path for path in found if path.exists())
        with np.load(io) as file:
            images = file["images"]
        try:
            model = vit_jax.load(path, resolution=images.shape[1:3])
        except ValueError:
            continue  # older checkouts cannot read all of them
        outputs = jax.jit(model.model.apply)({"params": model.params}, images)
        results[stem] = digest(np.asarray(outputs))
    return results


def digest(array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


# Memory while pretrained weights land on their devices


def start(sides: dict[str, pathlib.Path], directory: pathlib.Path) -> dict:
    path = directory / "L_16.npz"
    size = child(HERE, "make_file", f"ViT-L_16,{path}")["bytes"]
    rows = {name: child(side, "start", path, devices=8) for name, side in sides.items()}
    ratio = rows["before"]["host"] / rows["after"]["host"]
    return {"weights, MB": round(size / 1e6), **rows, "host before / after": round(ratio, 2)}


def make_file(argument: str) -> dict:
    from benchmarks import load

    return {"bytes": load.make_file(*argument.split(","))}


def start_state(path: str) -> dict:
    """Peak megabytes over the baseline: of the process, and of arrays on the fullest device."""
    import threading

    import jax
    import jax.numpy as jnp

    from benchmarks.load import resident
    from vit_jax import data
    from vit_jax.config import fine_tuning
    from vit_jax.models import full_model_config

    config = fine_tuning("digits")
    config.model = full_model_config("ViT-L_16")
    config.model.scan = True
    config.pp.crop, config.batch, config.accum_steps = 224, 8, 1
    config.pretrained, config.parallel.strategy = path, "fsdp"
    source = data.open_source(config)
    make_state = state_maker(config, source)
    jnp.ones(3).block_until_ready()
    baseline, peaks, done = resident(), {"host": 0, "device": 0}, threading.Event()

    def watch() -> None:
        while not done.wait(0.003):
            peaks["host"] = max(peaks["host"], resident() - baseline)
            held = dict.fromkeys(jax.devices(), 0)
            for array in jax.live_arrays():
                for shard in array.addressable_shards:
                    held[shard.device] += shard.data.nbytes
            peaks["device"] = max(peaks["device"], *held.values())

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.perf_counter()
    jax.block_until_ready(make_state())
    seconds = time.perf_counter() - begin
    done.set()
    thread.join()
    return {**{k: round(v / 1e6) for k, v in peaks.items()}, "seconds": round(seconds, 1)}


def state_maker(config, source):
    """How either checkout makes the first state of a run from pretrained weights."""
    image_shape, classes = (224, 224, config.pp.channels), len(source.class_names)
    from vit_jax.training.program import Program

    program = Program(config, image_shape, classes)
    try:
        from vit_jax.parallel.layout import make_layout
    except ImportError:
        return lambda: new_start(program)
    from vit_jax.train import load_params

    layout = make_layout("fsdp", 1, program.state_shapes)
    path = config.pretrained
    return lambda: layout.build(program.new_state, layout.put(load_params(path, program)))


def new_start(program):
    import types

    import jax

    from vit_jax import checkpoint
    from vit_jax.parallel.mesh import make_mesh, state_shardings
    from vit_jax.run.start import first_state

    mesh = make_mesh("fsdp", 1, program.abstract_state)
    shardings = state_shardings(mesh, program.abstract_state)
    none = types.SimpleNamespace(latest_step=None)
    with checkpoint.open(program.config.pretrained) as found, jax.set_mesh(mesh):
        return first_state(program, shardings, none, found)


# Speed


def speed(sides: dict[str, pathlib.Path], directory: pathlib.Path) -> dict:
    path = directory / "B_16.npz"
    child(HERE, "make_file", f"ViT-B_16,{path}")
    result = {}
    for name in ("forward", "train", "load", "imports"):
        times = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, checkout in sides.items():
                times[side].append(child(checkout, name, path)["seconds"])
        best = {side: min(values) for side, values in times.items()}
        middle = {side: statistics.median(values) for side, values in times.items()}
        result[name] = {
            "seconds, best": {side: round(value, 4) for side, value in best.items()},
            "before / after, best": round(best["before"] / best["after"], 3),
            "before / after, median": round(middle["before"] / middle["after"], 3),
        }
        print(f"  {name}: {result[name]}", flush=True)
    return result


def best_call(function, repeats: int = 4) -> dict:
    import jax

    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - begin)
    return {"seconds": min(times)}


def forward(_: str) -> dict:
    """ViT-B/16, a batch of 8."""
    import jax
    import jax.numpy as jnp

    from vit_jax import models

    model, images = models.get_model("ViT-B_16", num_classes=1000), jnp.ones((8, 224, 224, 3))
    params = jax.jit(model.init)(jax.random.key(0), images[:1])["params"]
    apply = jax.jit(lambda params, x: model.apply({"params": params}, x, train=False))
    return best_call(lambda: apply(params, images))


def train(_: str) -> dict:
    """The gradient of ViT-S/16, a batch of 8."""
    import jax
    import jax.numpy as jnp

    from vit_jax import models

    model, images = models.get_model("ViT-S_16", num_classes=1000), jnp.ones((8, 224, 224, 3))
    params = jax.jit(model.init)(jax.random.key(0), images[:1])["params"]
    loss = lambda params: model.apply({"params": params}, images, train=True).sum()  # noqa: E731
    gradient = jax.jit(jax.grad(loss))
    return best_call(lambda: gradient(params))


def load_file(path: str) -> dict:
    from vit_jax import checkpoint

    return best_call(lambda: checkpoint.load(path), repeats=3)


def imports(_: str) -> dict:
    begin = time.perf_counter()
    import vit_jax.train  # noqa: F401

    return {"seconds": time.perf_counter() - begin}


PARTS = {"numbers": numbers, "start": start, "speed": speed}
CHILDREN = {
    "golden": golden_outputs,
    "make_file": make_file,
    "start": start_state,
    "forward": forward,
    "train": train,
    "load": load_file,
    "imports": imports,
}

if __name__ == "__main__":
    main()
