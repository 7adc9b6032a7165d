"""Training input in images per second on one core: ours, and the reference's pipeline in tf.data.

    python benchmarks/input.py --tf_python=TENSORFLOWS_PYTHON --out=benchmarks/results/input.json

Both read the same ~500 x 375 JPEG files and make batches of random crops at 224, flipped and in
[-1, 1]. Each side is one process with one reader, pinned to the same core; they take turns within
every round, and the best round of each counts. Rates are by CPU time of all threads together. On a
core of one's own that equals wall-clock time; on a shared core it is fairer, because there a side
with more threads gets more of the core. Wall-clock rates are recorded as well.

Without --photos the files are noise with the spectrum of photographs, about as large as those of
ImageNet.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

BATCH = 128
WARMUP_BATCHES = 2  # use up what was read ahead while the other side ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tf_python", help="an interpreter with tensorflow; without it, only ours")
    parser.add_argument(
        "--photos", type=Path, help="a folder of JPEGs to use, resized to 500 x 375"
    )
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=10, help="timed batches per round")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return run_side(options)
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), options)
        result = compare(Path(folder), options)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return None


def compare(folder: Path, options: argparse.Namespace) -> dict:
    interpreters = {"ours_float32": sys.executable, "ours_uint8": sys.executable}
    if options.tf_python:
        interpreters["tf_data_float32"] = options.tf_python
    sides = {
        name: start_side(name, python, folder, options) for name, python in interpreters.items()
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, process in sides.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            rates[name].append(json.loads(process.stdout.readline()))
    versions = {}
    for process in sides.values():
        process.stdin.close()
        versions.update(json.loads(process.stdout.readline()))
        process.wait()
    best = {name: max(cpu for cpu, _ in values) for name, values in rates.items()}
    best_wall = {name: max(wall for _, wall in values) for name, values in rates.items()}
    reference = best.get("tf_data_float32")
    sizes = [path.stat().st_size for path in folder.glob("*/*.jpg")]
    return {
        "images_per_second_per_core": {name: round(rate, 1) for name, rate in best.items()},
        "times_tf_data": {
            name: round(rate / reference, 3) for name, rate in best.items() if reference
        },
        "by_the_wall": {name: round(rate, 1) for name, rate in best_wall.items()},
        "every_round": {
            name: [[round(cpu, 1), round(wall, 1)] for cpu, wall in values]
            for name, values in rates.items()
        },
        "files": f"{len(sizes)} JPEGs, 500 x 375, {sum(sizes) // len(sizes) // 1000} kB on average",
        "images": "photographs" if options.photos else "noise with the spectrum of photographs",
        "batch": BATCH,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, pinned to one; {cpu_name()}",
        "versions": versions,
        "commit": commit(),
    }


def start_side(name: str, python: str, folder: Path, options: argparse.Namespace):
    command = [python, __file__, f"--side={name}", f"--folder={folder}"]
    command += [f"--batches={options.batches}", f"--core={options.core}"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "ready\n", name
    return process


def run_side(options: argparse.Namespace) -> None:
    """A child: one timed round for each line from stdin; at the end, the versions it ran with."""
    os.sched_setaffinity(0, {options.core})
    if options.side == "tf_data_float32":
        batches, packages = tf_data_batches(options.folder), ["tensorflow-cpu"]
    else:
        batches = our_batches(options.folder, uint8=options.side == "ours_uint8")
        packages = ["grain", "simplejpeg", "opencv-python-headless", "numpy"]
    next(batches)
    print("ready", flush=True)
    for _ in sys.stdin:
        for _ in range(WARMUP_BATCHES):
            next(batches)
        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(options.batches):
            next(batches)
        wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        images = options.batches * BATCH
        print(json.dumps([images / cpu, images / wall]), flush=True)
    print(json.dumps({package: version(package) for package in packages}), flush=True)


def our_batches(folder: Path, uint8: bool):
    from vit_jax.config import default_config
    from vit_jax.data import train_batches

    config = default_config()
    config.dataset = str(folder)
    config.test_fraction = 0.0
    config.batch = BATCH
    config.reader_threads = 1
    config.uint8_to_device = uint8
    return train_batches(config)


def tf_data_batches(folder: Path):
    import tensorflow as tf

    def example(path, label):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.image.resize(tf.slice(image, begin, size), [224, 224])
        image = tf.image.random_flip_left_right(image)
        return {"image": (image - 127.5) / 127.5, "label": label}

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    paths = sorted(str(path) for path in folder.glob("*/*.jpg"))
    data = tf.data.Dataset.from_tensor_slices((paths, [0] * len(paths)))
    data = data.repeat().shuffle(len(paths)).map(example, tf.data.AUTOTUNE)
    data = data.batch(BATCH, drop_remainder=True).prefetch(1)
    return data.as_numpy_iterator()


def make_files(folder: Path, options: argparse.Namespace) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    photos = sorted(options.photos.rglob("*.jpg")) if options.photos else []
    for index in range(options.images):
        if photos:
            image = Image.open(photos[index % len(photos)]).convert("RGB").resize((500, 375))
        else:
            image = Image.fromarray(photographic_noise(rng))
        path = folder / f"class{index % 2}" / f"{index:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        image.save(path, quality=90)


def photographic_noise(rng):
    """Amplitudes fall as 1/frequency, and colours follow brightness, as in photographs."""
    import numpy as np

    y, x = np.meshgrid(np.fft.fftfreq(375), np.fft.fftfreq(500), indexing="ij")
    fall = 1 / np.maximum(np.hypot(y, x), 1 / 500)
    planes = [np.fft.ifft2(np.fft.fft2(rng.standard_normal((375, 500))) * fall) for _ in range(4)]
    light, *colors = (plane.real / plane.real.std() for plane in planes)
    image = np.stack([128 + 55 * light + 15 * color for color in colors], axis=-1)
    return np.clip(image, 0, 255).astype(np.uint8)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
