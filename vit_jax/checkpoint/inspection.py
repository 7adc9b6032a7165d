"""Comparing a checkpoint with what a model expects, and guessing which model a checkpoint is of."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util

from vit_jax.models import zoo

_BLOCK = re.compile(r"(MixerBlock|encoderblock)_(\d+)")


def check_fit(found: Mapping[str, Any], wanted: Mapping[str, Any], *, where: str) -> None:
    """One error with every missing, extra and misshapen parameter (flat names, `.shape`s)."""
    missing = sorted(set(wanted) - set(found))
    extra = sorted(set(found) - set(wanted))
    shapes = {
        name: (tuple(found[name].shape), tuple(wanted[name].shape))
        for name in sorted(set(found) & set(wanted))
    }
    by_shapes: dict[Any, list[str]] = {}
    for name, (theirs, ours) in shapes.items():
        if theirs != ours:
            by_shapes.setdefault((theirs, ours), []).append(name)

    problems = []
    if missing:
        problems.append(f"the checkpoint has no {summarize(missing)}")
    if extra:
        problems.append(f"the model has no {summarize(extra)}")
    problems += [
        f"{summarize(names)}: {theirs} in the checkpoint, {ours} in the model"
        for (theirs, ours), names in by_shapes.items()
    ]
    if problems:
        raise ValueError(
            f"{where} does not fit the model: {'; '.join(problems)}.{_hint(found, wanted)}"
        )


def summarize(names: Sequence[str]) -> str:
    """All names; those that differ by the block alone told once, as encoderblock_{0..11}/…."""
    blocks: dict[str, list[int]] = {}
    for name in names:
        match = _BLOCK.search(name)
        pattern = _BLOCK.sub(r"\1_*", name) if match else name
        blocks.setdefault(pattern, []).extend([int(match[2])] if match else [])
    return ", ".join(
        pattern.replace("_*", _ranges(numbers)) if numbers else pattern
        for pattern, numbers in blocks.items()
    )


def _ranges(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    if low == high:
        return f"_{low}"
    if high - low + 1 == len(numbers):
        return f"_{{{low}..{high}}}"
    return f"_{{{','.join(map(str, sorted(numbers)))}}}"


def _hint(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    theirs, ours = guess_model(found), guess_model(wanted)
    if theirs and theirs != ours:
        return f" The checkpoint looks like a {theirs}; try that model."
    return ""


def guess_model(flat: Mapping[str, Any]) -> str | None:
    """The published model whose shapes these are (flat linen names), or None."""
    signature = _signature(flat)
    for name, row in zoo.MODELS.items():
        if _row_signature(row) == signature:
            return name
    return None


def _signature(flat: Mapping[str, Any]) -> dict[str, Any] | None:
    def shape(name):
        return tuple(flat[name].shape) if name in flat else None

    if stem := shape("stem/kernel"):
        token = shape("MixerBlock_0/token_mixing/Dense_0/kernel")
        channel = shape("MixerBlock_0/channel_mixing/Dense_0/kernel")
        if token is None or channel is None:
            return None
        return {
            "patch": stem[0],
            "blocks": count_blocks(flat, "MixerBlock"),
            "width": stem[-1],
            "tokens": token[-1],
            "channels": channel[-1],
        }
    embedding = shape("embedding/kernel")
    block = "Transformer/encoderblock_0/"
    mlp, query = (
        shape(block + "MlpBlock_0/Dense_0/kernel"),
        shape(block + "MultiHeadDotProductAttention_0/query/kernel"),
    )
    if embedding is None or mlp is None or query is None or len(query) != 3:
        return None
    stages = []
    while units := len({n.split("/")[1] for n in flat if n.startswith(f"block{len(stages) + 1}/")}):
        stages.append(units)
    return {
        "patch": embedding[0],
        "size": (embedding[-1], count_blocks(flat, "Transformer/encoderblock"), mlp[-1], query[1]),
        "cls": "cls" in flat,
        "map": "MAPHead_0/probe" in flat,
        "resnet": tuple(stages) if "conv_root/kernel" in flat else None,
    }


def _row_signature(row: zoo.ViT | zoo.Mixer) -> dict[str, Any]:
    if isinstance(row, zoo.Mixer):
        return dict(zip(("patch", "blocks", "width", "tokens", "channels"), row, strict=True))
    return {
        "patch": row.patch,
        "size": tuple(zoo.SIZES[row.size]),
        "cls": row.classifier.startswith("token"),
        "map": row.classifier == "map",
        "resnet": row.resnet,
    }


def count_blocks(flat: Mapping[str, Any], prefix: str) -> int:
    pattern = re.compile(re.escape(prefix) + r"_(\d+)/")
    return len({match[1] for name in flat if (match := pattern.match(name))})


def inspect_params(
    *,
    params: Mapping[str, Any],
    expected: Mapping[str, Any],
    fail_if_extra: bool = True,
    fail_if_missing: bool = True,
) -> Mapping[str, Any]:
    """The reference's check: `params` again, if its names are the expected ones."""
    found = set(flax.traverse_util.flatten_dict(params, sep="/"))
    wanted = set(flax.traverse_util.flatten_dict(expected, sep="/"))
    problems = []
    if fail_if_missing and (missing := sorted(wanted - found)):
        problems.append(f"missing: {summarize(missing)}")
    if fail_if_extra and (extra := sorted(found - wanted)):
        problems.append(f"extra: {summarize(extra)}")
    if problems:
        raise ValueError(f"The parameters are not the expected ones; {'; '.join(problems)}.")
    return params


def recover_tree(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """A nested dict from flat names: recover_tree(['a/b', 'a/c'], [1, 2]) is {'a': {'b': 1, 'c':
    2}}.
    """
    return flax.traverse_util.unflatten_dict(dict(zip(keys, values, strict=True)), sep="/")
