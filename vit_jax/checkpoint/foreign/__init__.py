"""Weights in other libraries' layouts: timm, Hugging Face transformers, lucidrains' vit-pytorch.

Each layout is a module with the functions of `description.Layout`. Nothing here imports torch or
opens a pickle.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from etils import epath

from vit_jax.aliases import Json
from vit_jax.atomic import replacing
from vit_jax.checkpoint.card import Card
from vit_jax.checkpoint.foreign import huggingface, lucidrains, rules, timm, timm_mixer, tokens
from vit_jax.checkpoint.foreign.description import Layout, Reading, WritableLayout, Writing
from vit_jax.checkpoint.foreign.rules import Dims, Source
from vit_jax.checkpoint.lazy import Lazy, from_array
from vit_jax.checkpoint.names import listed
from vit_jax.checkpoint.plan import Mapped, Plan
from vit_jax.checkpoint.tensors import Reader, open_files
from vit_jax.checkpoint.tensors import write as write_tensors
from vit_jax.models import VisionTransformer
from vit_jax.models.kinds import encoder_fields
from vit_jax.untrusted import read_json

LAYOUTS: dict[str, WritableLayout] = {"timm": timm, "hf": huggingface, "lucidrains": lucidrains}
_READABLE: dict[str, Layout] = {**LAYOUTS, "timm_mixer": timm_mixer}
CARD_KEY = "vit_jax_card"


@contextlib.contextmanager
def open_plan(
    path: epath.Path, *, num_heads: int | None = None
) -> Iterator[tuple[Plan, Card, str]]:
    """How a file or folder becomes our parameters, its card, and the layout's name.

    A single file may have its configuration beside it: config.json, or a .json of the same name
    (a config.json, or {"kwargs": …} with the constructor's arguments). `num_heads` is for files
    that do not say.
    """
    readers = open_files(path) if path.is_dir() else [Reader(Path(path))]
    arrays = {name: array for reader in readers for name, array in reader.arrays.items()}
    found = {name: layout.source_names(arrays) for name, layout in _READABLE.items()}
    name = next((name for name, names in found.items() if names is not None), None)
    if name is None:
        raise ValueError(
            f"{path} has none of the layouts we know ({', '.join(LAYOUTS)}): it holds "
            f"{listed(arrays, 5)}."
        )
    source = Source(str(path), found[name] or {}, arrays)
    card, config = None, _read_config(path)
    for reader in readers:
        if text := reader.metadata.get(CARD_KEY):  # we wrote it: it knows what no layout shows
            card = Card.loads(text, where=f"The card in {path}")
            num_heads = _dims(card).num_heads
    reading = _READABLE[name].describe(source, config, num_heads)
    card = card or reading.card
    try:
        yield _read_plan(source, reading, card), card, name
    finally:
        for reader in readers:
            reader.close()


def _read_config(path: epath.Path) -> Json:
    folder = path if path.is_dir() else path.parent
    beside = [] if path.is_dir() else [path.with_suffix(".json")]
    candidates = [*beside, folder / "config.json"]
    config = next((read_json(file) for file in candidates if file.exists()), {})
    config.pop("preprocessor", None)  # it is a file of its own
    if (file := folder / "preprocessor_config.json").exists():
        config["preprocessor"] = read_json(file)
    return config


def _read_plan(source: Source, reading: Reading, card: Card) -> Plan:
    wanted = card.parameter_shapes()
    body = [rule for rule in reading.rules if rule.ours[0] in wanted]
    mapped, missing, misshapen = rules.read(source, body, _dims(card))
    mapped += tokens.read(source, reading.tokens, reading.position)
    for name, leaf in wanted.items():
        if re.fullmatch(reading.zeros, name):
            zeros = from_array(np.zeros(leaf.shape, np.float32))
            mapped.append(Mapped((), name, "zeros: the layout has none", zeros))
    used = {name for item in mapped for name in item.sources}
    dropped: list[tuple[str, str]] = []
    unknown: list[str] = []
    for name, actual in source.names.items():
        if actual in used:
            continue
        reason = next((r for p, r in reading.ignored.items() if re.fullmatch(p, name)), None)
        if reason is None:
            unknown.append(actual)
        else:
            dropped.append((actual, reason))

    problems: list[str] = []
    if missing:
        problems.append(f"it has no {listed(missing)}")
    if unknown:
        problems.append(f"our model has no place for {listed(unknown)}")
    problems += misshapen
    problems += [
        f"{' + '.join(item.sources)} gives {item.target} {item.array.shape}, where the model needs "
        f"{wanted[item.target].shape}"
        for item in mapped
        if item.target in wanted and wanted[item.target].shape != item.array.shape
    ]
    gaps = set(wanted) - {item.target for item in mapped}
    if gaps and not missing:
        problems.append(f"nothing in it gives {listed(sorted(gaps))}")
    source.refuse(problems)
    return Plan(mapped, dropped, reading.notes)


def _dims(card: Card) -> Dims:
    model = card.model
    num_heads = encoder_fields(model)["num_heads"] if isinstance(model, VisionTransformer) else 1
    return Dims(num_heads, model.patches["size"])


def write_plan(leaves: Mapping[str, Lazy], card: Card, to: str) -> tuple[Plan, Writing]:
    """What a file in a foreign layout will hold; nothing is written yet."""
    if not isinstance(card.model, VisionTransformer) or card.model.transformer is None:
        raise ValueError(f"Only Vision Transformers can be written --to {to}; write --to npz.")
    writing = LAYOUTS[to].prepare(card.model, card, leaves)
    zeros = [name for name in leaves if re.fullmatch(writing.zeros, name)]
    for name in zeros:
        if np.any(leaves[name].read()):
            raise ValueError(f"The {to} layout has no place for {name}, which is not zero.")
    body = [rule for rule in writing.rules if rule.ours[0] in leaves]
    mapped = rules.write(leaves, body, _dims(card)) + writing.mapped
    used = {name for item in mapped for name in item.sources} | set(zeros)
    assert used >= set(leaves), sorted(set(leaves) - used)
    dropped = [(name, "zeros, and the layout has none") for name in zeros]
    return Plan(mapped, dropped, writing.notes), writing


def write(path: epath.Path, leaves: Mapping[str, Lazy], card: Card, to: str) -> Plan:
    """Writes a folder (weights, config.json, …), or one file if `path` ends in .safetensors.

    The card goes into the file's header, where other readers do not look.
    """
    plan, writing = write_plan(leaves, card, to)
    metadata = {"format": "pt", CARD_KEY: card.dumps()}
    if path.name.endswith(".safetensors"):
        write_tensors(path, plan.leaves, metadata)
        return plan
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists already; give a new folder, or a name in .safetensors.")
    if path.is_dir():
        path.rmdir()  # an empty one makes way
    with replacing(path) as partial:
        write_tensors(partial / "model.safetensors", plan.leaves, metadata)
        for name, content in writing.files.items():
            (partial / name).write_text(json.dumps(content, indent=2) + "\n")
    return plan
