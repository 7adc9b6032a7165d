"""Do timm and transformers load what we write, strictly, and compute what we compute?

    python -m benchmarks.peers --peer_python PYTHON --shared ../shared --out
    benchmarks/results/peers.json

PYTHON belongs to a separate environment with torch (CPU), timm and transformers. Writes the real
Ti/16 and one random model of every kind to timm and Hugging Face folders, runs `peers_load.py` in
that environment on real photographs, and compares. Fails if an output differs by more than 1e-4.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from benchmarks import machine
from vit_jax import checkpoint, models
from vit_jax.models.kinds import grid_at

TOLERANCE = 1e-4
SMALL = {
    "patches": {"size": (16, 16)},
    "hidden_size": 64,
    "transformer": {"num_layers": 2, "mlp_dim": 128, "num_heads": 4},
}
SMALL["transformer"] |= {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
HYBRID_EPS = {"norm_eps": 1e-5, "variance_eps": 1e-8}  # timm's, so that the numbers can agree
# name: (fields, classes, the libraries that have such a model)
KINDS = {
    "erf": ({"gelu": "erf"}, 7, ("timm", "hf")),
    "no_qkv_bias": ({"qkv_bias": False}, 7, ("timm", "hf")),
    "features": ({}, 0, ("timm", "hf")),
    "pooler": ({"representation_size": 64}, 0, ("hf",)),
    "hf_eps": ({"norm_eps": 1e-12}, 7, ("hf",)),
    "gap": ({"classifier": "gap"}, 7, ("timm", "hf")),
    "fc_norm": ({"classifier": "gap", "fc_norm": True}, 7, ("timm",)),
    "map": ({"classifier": "map"}, 0, ("timm", "hf")),
    "map_head": ({"classifier": "map"}, 7, ("timm",)),
    "registers": ({"num_registers": 3}, 7, ("timm",)),
    "gap_registers": ({"classifier": "gap", "num_registers": 3}, 7, ("timm",)),
    "dinov2": ({"layer_scale": 0.5}, 0, ("timm", "hf")),
    "dinov2_registers": ({"layer_scale": 0.5, "num_registers": 4}, 0, ("timm", "hf")),
    "distilled": ({"distilled": True}, 7, ("timm", "hf")),
    "sincos": ({"classifier": "gap", "position": "sincos2d"}, 7, ("timm",)),
    "root_hybrid": (
        {
            **models.model_config("R+ViT-Ti_16").to_dict(),
            "resnet": {"num_layers": (), "width_factor": 1, **HYBRID_EPS},
        },
        7,
        ("timm",),
    ),
    "r26_hybrid": (
        {
            **models.model_config("R26+ViT-S_32").to_dict(),
            "resnet": {"num_layers": (2, 2, 2, 2), "width_factor": 1, **HYBRID_EPS},
        },
        7,
        ("timm",),
    ),
}


def photographs(shared: Path) -> np.ndarray:
    """Shorter side to 256, centre crop 224, values in [-1, 1]. b h w c"""
    batch = []
    for path in sorted((shared / "real" / "photos").glob("*.jpg")):
        image = Image.open(path).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize([round(n * scale) for n in image.size], Image.Resampling.BILINEAR)
        left, top = ((n - 224) // 2 for n in image.size)
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
        batch.append(pixels / 127.5 - 1)
    return np.stack(batch)


def random_model(fields, num_classes, images):
    model = models.build_model({**SMALL, **fields}, num_classes)
    card = checkpoint.Card(model, grid_at(images.shape[1:3], model), source="random")
    shapes = jax.eval_shape(
        lambda x: model.init(jax.random.key(0), x, train=False)["params"], images
    )
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    values = [
        np.asarray(jax.random.normal(key, leaf.shape)) * 0.3
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, values), card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer_python", required=True)
    parser.add_argument("--stub", help="torchvision_stub.py, where torchvision is missing")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    photos = photographs(args.shared)
    images, ours = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        real = args.shared / "real" / "Ti_16-tinyimagenet200.npz"
        for library in ("timm", "hf"):
            checkpoint.convert(real, work / f"{library}-real", to=library)
        with checkpoint.open(real) as found:
            models_ = {"real": (found.params(), found.card)}
        for name, (fields, num_classes, libraries) in KINDS.items():
            models_[name] = random_model(fields, num_classes, photos)
            for library in libraries:
                checkpoint.save(
                    *models_[name][:1],
                    work / f"{library}-{name}",
                    card=models_[name][1],
                    to=library,
                )
        for name, (params, card) in models_.items():
            images[name] = photos if name == "real" else photos[:2]
            model = card.model
            ours[name] = np.asarray(jax.jit(model.apply)({"params": params}, images[name]))
        np.savez(work / "images.npz", **images)
        command = [args.peer_python, str(Path(__file__).with_name("peers_load.py")), str(work)]
        subprocess.run(command + (["--stub", args.stub] if args.stub else []), check=True)
        with np.load(work / "outputs.npz") as outputs:
            theirs = dict(outputs)
        versions = json.loads((work / "versions.json").read_text())
    results = {}
    for name, output in theirs.items():
        library, _, kind = name.partition("-")
        results[name] = {
            "largest difference": float(np.abs(output - ours[kind]).max()),
            "largest output": float(np.abs(ours[kind]).max()),
        }
        print(f"{name:24s} {results[name]}")
    if args.out:
        about = {**machine.about(), "peers": versions}
        args.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    worst = max(result["largest difference"] for result in results.values())
    if worst > TOLERANCE:
        sys.exit(f"Outputs differ by {worst}, more than {TOLERANCE}.")


if __name__ == "__main__":
    main()
