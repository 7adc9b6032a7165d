"""Records tests/golden/foreign: small random models of timm, transformers and vit-pytorch, and
what those libraries compute from them.

Run in an environment with torch, never by the tests themselves:
    python tests/peers/record.py OUT [NAME …]

Every weight is random and not zero, so every weight matters. Images are b h w c, as ours.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

RECORDINGS = {}


def recording(function):
    RECORDINGS[function.__name__] = function
    return function


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def images(height: int, width: int) -> torch.Tensor:  # b c h w
    generator = torch.Generator().manual_seed(1)
    return torch.randn((2, 3, height, width), generator=generator)


def record(out: Path, name: str, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
    arrays = {"images": inputs.permute(0, 2, 3, 1).numpy(), "outputs": outputs.detach().numpy()}
    np.savez_compressed(out / f"{name}.io.npz", **arrays)


# timm: folders as `timm.models.save_for_hf` writes them.


def timm_folder(out: Path, name: str, architecture: str, size=(16, 24), **kwargs) -> None:
    import timm

    kwargs = {"img_size": size, "num_classes": 3, **kwargs}
    model = randomised(timm.create_model(architecture, **kwargs))
    timm.models.save_for_hf(model, out / name, model_args=kwargs, safe_serialization=True)
    inputs = images(*size)
    record(out, name, inputs, model(inputs))


TINY = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}


@recording
def timm_gap_registers(out, name):
    """No class token, registers without positions, average pooling and fc_norm."""
    options = {"class_token": False, "reg_tokens": 2, "no_embed_class": True, "global_pool": "avg"}
    timm_folder(out, name, "vit_tiny_patch16_224", **TINY, **options)


@recording
def timm_registers_with_positions(out, name):
    timm_folder(out, name, "vit_tiny_patch16_224", **TINY, reg_tokens=2)


@recording
def timm_class_token_pooled_by_average(out, name):
    timm_folder(out, name, "vit_tiny_patch16_224", **TINY, global_pool="avg")


@recording
def timm_dinov2_registers(out, name):
    """LayerScale, class token and registers without positions, no head."""
    options = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5, "num_classes": 0}
    timm_folder(out, name, "vit_tiny_patch16_224", **TINY, **options)


@recording
def timm_siglip(out, name):
    """Attention pooling, tanh GELU, no head."""
    options = {"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"}
    timm_folder(out, name, "vit_tiny_patch16_224", **TINY, **options, num_classes=0)


@recording
def timm_deit_distilled(out, name):
    timm_folder(out, name, "deit_tiny_distilled_patch16_224", **TINY)


@recording
def timm_hybrid(out, name):
    """The root and one stage of one unit: the smallest ResNet with a projection."""
    from timm.models import vision_transformer_hybrid as hybrid

    size = (32, 48)
    options = {"num_classes": 3, "embed_dim": 32, "depth": 1, "num_heads": 4, "patch_size": 2}
    backbone = hybrid._resnetv2(layers=(1,))
    model = hybrid._create_vision_transformer_hybrid(
        "vit_base_r50_s16_224", backbone=backbone, img_size=size, **options
    )
    model = randomised(model)
    with torch.no_grad():
        for kernel in model.patch_embed.backbone.parameters():
            if kernel.ndim == 4:
                kernel *= 0.02  # small, so that the epsilon they are standardised with shows
    (out / name).mkdir(exist_ok=True)
    save_file(model.state_dict(), out / name / "model.safetensors")
    (out / name / "config.json").write_text(
        '{"architecture": "vit_base_r50_s16_224", "num_classes": 3, "model_args": '
        '{"img_size": [32, 48], "num_heads": 4}}'
    )
    inputs = images(*size)
    record(out, name, inputs, model(inputs))


# transformers: folders as `save_pretrained` writes them.


def hf_folder(out: Path, name: str, model, size=(16, 16), pick="logits", **save) -> None:
    model = randomised(model)
    model.save_pretrained(out / name, **save)
    inputs = images(*size)
    record(out, name, inputs, model(inputs)[pick])


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
}
LABELS = {"num_labels": 3, "id2label": {0: "ant", 1: "bee", 2: "cat"}}


@recording
def hf_vit_model_with_pooler(out, name):
    """Sharded, and without the `vit.` prefix."""
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(**SMALL))
    hf_folder(out, name, model, pick="pooler_output", max_shard_size="20KB")


@recording
def hf_vit_new_names(out, name):
    """The names that transformers 5 has in memory, before it saves them under the older ones."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(**SMALL, **LABELS, hidden_act="gelu_pytorch_tanh"))
    hf_folder(out, name, model)
    save_file(model.state_dict(), out / name / "model.safetensors", {"format": "pt"})


@recording
def hf_deit(out, name):
    """A distillation token without a head of its own."""
    from transformers import DeiTConfig, DeiTForImageClassification

    hf_folder(out, name, DeiTForImageClassification(DeiTConfig(**SMALL, **LABELS)))


@recording
def hf_deit_with_teacher(out, name):
    from transformers import DeiTConfig, DeiTForImageClassificationWithTeacher

    hf_folder(out, name, DeiTForImageClassificationWithTeacher(DeiTConfig(**SMALL, **LABELS)))


@recording
def hf_dinov2(out, name):
    from transformers import Dinov2Config, Dinov2Model

    sizes = {**SMALL, "mlp_ratio": 2}
    sizes.pop("intermediate_size")
    hf_folder(out, name, Dinov2Model(Dinov2Config(**sizes)), pick="pooler_output")


@recording
def hf_dinov2_registers(out, name):
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    sizes = {**SMALL, "mlp_ratio": 2, "num_register_tokens": 3}
    sizes.pop("intermediate_size")
    model = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes))
    hf_folder(out, name, model, pick="pooler_output")


@recording
def hf_siglip(out, name):
    from transformers import SiglipVisionConfig, SiglipVisionModel

    hf_folder(out, name, SiglipVisionModel(SiglipVisionConfig(**SMALL)), pick="pooler_output")


# vit-pytorch: a state dict in safetensors, with the constructor's arguments beside it.


@recording
def lucidrains_simple_vit(out, name):
    from vit_pytorch import SimpleViT

    lucidrains_file(out, name, SimpleViT)


@recording
def lucidrains_mean(out, name):
    from vit_pytorch import ViT

    lucidrains_file(out, name, ViT, pool="mean")


@recording
def lucidrains_mean_of_all(out, name):
    """With vit-pytorch 1.6.5, whose mean takes in the class token."""
    from vit_pytorch import ViT

    lucidrains_file(out, name, ViT, pool="mean")


def lucidrains_file(out: Path, name: str, module, **kwargs) -> None:
    kwargs |= {"image_size": 16, "patch_size": 8, "num_classes": 3, "dim": 32, "depth": 2}
    kwargs |= {"heads": 4, "dim_head": 16, "mlp_dim": 48}
    model = randomised(module(**kwargs))
    save_file(model.state_dict(), out / f"{name}.safetensors")
    (out / f"{name}.json").write_text(json.dumps({"kwargs": kwargs}))
    inputs = images(16, 16)
    record(out, name, inputs, model(inputs))


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or RECORDINGS:
        shutil.rmtree(out / name, ignore_errors=True)
        RECORDINGS[name](out, name)
        print(name)


if __name__ == "__main__":
    main()
