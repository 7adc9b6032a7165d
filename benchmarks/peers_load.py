"""The part of peers.py that runs where torch is: loads folders strictly, runs them on images.

    python benchmarks/peers_load.py WORK [--stub torchvision_stub.py]

WORK holds images.npz (name -> b h w c) and folders named {timm,hf}-NAME; outputs.npz is written
there.
"""

import argparse
import importlib.metadata
import json
import runpy
from pathlib import Path

import numpy as np
import torch


def run_timm(folder: Path, images: torch.Tensor) -> np.ndarray:
    import timm
    from safetensors.torch import load_file

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return model(images).numpy()


def run_hf(folder: Path, images: torch.Tensor) -> np.ndarray:
    import transformers

    config = json.loads((folder / "config.json").read_text())
    architecture = getattr(transformers, config["architectures"][0])
    options = {}
    if architecture.__name__ == "ViTModel" and "pooler_act" not in config:
        options["add_pooling_layer"] = False
    model, info = architecture.from_pretrained(folder, output_loading_info=True, **options)
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if wrong:
        raise SystemExit(f"{folder} does not load strictly: {wrong}")
    outputs = model.eval()(pixel_values=images)
    if "logits" in outputs:
        return outputs.logits.numpy()
    pooled = outputs.get("pooler_output")
    return (pooled if pooled is not None else outputs.last_hidden_state[:, 0]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--stub", type=Path)
    args = parser.parse_args()
    if args.stub:
        runpy.run_path(str(args.stub))
    outputs = {}
    with np.load(args.work / "images.npz") as images, torch.no_grad():
        for folder in sorted(args.work.iterdir()):
            library, _, name = folder.name.partition("-")
            if library not in ("timm", "hf") or not folder.is_dir():
                continue
            batch = torch.from_numpy(images[name]).permute(0, 3, 1, 2).contiguous()
            run = run_timm if library == "timm" else run_hf
            outputs[folder.name] = run(folder, batch)
            print("loaded strictly:", folder.name)
    np.savez(args.work / "outputs.npz", **outputs)
    names = ("torch", "timm", "transformers")
    versions = {name: importlib.metadata.version(name) for name in names}
    (args.work / "versions.json").write_text(json.dumps(versions))


if __name__ == "__main__":
    main()
