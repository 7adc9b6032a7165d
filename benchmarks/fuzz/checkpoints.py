"""Checkpoints of every format with a damaged file, and with JSON that says something else."""

import functools
import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import vit_jax
from benchmarks.fuzz import mutations, seeds
from benchmarks.fuzz.seeds import Seeds
from benchmarks.fuzz.trial import Trial, Wrong
from vit_jax import checkpoint
from vit_jax.checkpoint.foreign import CARD_KEY
from vit_jax.models import kinds

Arrays = Mapping[str, np.ndarray]


def damaged(rng: random.Random, good: Seeds, room: Path) -> Trial:
    """A file of a checkpoint is damaged, exchanged or lost."""
    name, donor = (_choose_checkpoint(rng, good) for _ in range(2))
    file = rng.choice([file for file, content in good.checkpoints[name].items() if content])
    spare = rng.choice(list(good.checkpoints[donor].values()))
    damage = _choose_damage(rng, file)
    content = damage(good.checkpoints[name][file], spare, rng)
    path = write(name, {**good.checkpoints[name], file: content}, room)
    sealed = damage in _SHOWS and name.startswith(_SEALED)
    known = [arrays(good, one) for one in (name, donor)] if sealed else []
    then = rng.choice((load, functools.partial(_convert, rng.choice(_TARGETS)), None, None, None))
    what = f"{damage.__name__} in {name}/{file} (with some of {donor})"
    return Trial(what, functools.partial(open_and, path, known, then))


_TARGETS = ("npz", "timm", "hf")
_SEALED = ("npz", "run")  # formats with checksums; Orbax's directories and safetensors have none


def _choose_checkpoint(rng: random.Random, good: Seeds) -> str:
    """Seldom one of Orbax, which takes ten times as long."""
    names = list(good.checkpoints)
    return rng.choice(
        [name for name in names if rng.random() < 0.2 or name not in ("orbax", "run")]
    )


Damage = Callable[[bytes, bytes, random.Random], bytes | None]


def _choose_damage(rng: random.Random, file: str) -> Damage:
    aware = _AWARE.get(Path(file).suffix, ())
    if aware and rng.random() < 0.5:
        return rng.choice(aware)
    return mutations.blind if rng.random() < 0.96 else rng.choice((lost, empty, exchanged))


def lost(*_: object) -> None:
    return None


def empty(*_: object) -> bytes:
    return b""


def exchanged(_: bytes, other: bytes, rng: random.Random) -> bytes:
    return other


_AWARE: dict[str, tuple[Damage, ...]] = {
    ".npz": (mutations.zip_directory, mutations.zip_member),
    ".safetensors": (mutations.safetensors_header,),
    ".json": (mutations.json_value,),
}
_SHOWS = (mutations.blind, mutations.zip_directory, lost, empty)  # what checksums can show


def write(name: str, files: Mapping[str, bytes | None], room: Path) -> Path:
    """A checkpoint in the room; a file without content is not there. Returns what is opened."""
    for file, content in files.items():
        (room / name / file).parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            (room / name / file).write_bytes(content)
    return seeds.checkpoint_at(room / name)


def open_and(path: Path, known: list[Arrays], then: Callable[[Path], None] | None = None) -> str:
    """Opens a checkpoint as every command does. What is read must be what the headers say and, if
    some arrays are `known`, one of them to the bit.
    """
    found, shapes = _read(path)
    if {n: (a.shape, a.dtype) for n, a in found.items()} != shapes:
        raise Wrong("the arrays are not those of the headers")
    if known and not any(_same(found, others) for others in known):
        raise Wrong("other numbers")
    if then:
        then(path)
    return "same" if known else "read"


def _read(path: Path) -> tuple[Arrays, dict[str, tuple[tuple[int, ...], np.dtype]]]:
    """All arrays, and the shapes and types that were announced; an error must name the file."""
    try:
        with checkpoint.open(path) as found:
            shapes = {name: (tuple(s.shape), s.dtype) for name, s in found.shapes.items()}
            return kinds.flatten(found.params()), shapes
    except (ValueError, OSError) as e:
        if str(path.parent if path.suffix else path) not in str(e):
            raise Wrong(f"the file is not named: {e}") from e
        raise


def load(path: Path) -> None:
    """A model ready for use, and an image as it would see it."""
    model = vit_jax.load(path)
    image = model.preprocess(np.full((9, 7, 3), 99, np.uint8))
    if image.shape[1:] != (wanted := (*(model.card.image_size or ()), model.card.channels)):
        raise Wrong(f"an image of {image.shape[1:]} for a model of {wanted}")


def _convert(to: str, path: Path) -> None:
    checkpoint.convert(path, path.parent / f"converted_{to}", to=to)


def _same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(
        a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes() for n in a
    )


@functools.cache
def arrays(good: Seeds, name: str) -> Arrays:
    with checkpoint.open(seeds.checkpoint_at(good.folder / "checkpoints" / name)) as found:
        return kinds.flatten(found.params())


def described(rng: random.Random, good: Seeds, room: Path) -> Trial:
    """The JSON that describes a checkpoint says something else; its arrays are as they were."""
    name, file = rng.choice(_DESCRIPTIONS)
    files = {f: c for f, c in good.checkpoints[name].items() if not f.endswith("checksums.json")}
    text = mutations.json_value(_description(file, files[file]), b"", rng)
    path = write(name, {**files, file: with_description(file, files[file], text)}, room)
    return Trial(f"JSON of {name}/{file}", functools.partial(describe, path, arrays(good, name)))


_DESCRIPTIONS = (
    *(("npz_card", "model.npz"), ("npz_card", "model.npz"), ("npz_mixer", "model.npz")),
    *(("timm", "model.safetensors"), ("timm_folder", "config.json"), ("lucidrains", "model.json")),
    *(("hf", "config.json"), ("hf", "preprocessor_config.json"), ("timm_folder", "config.json")),
    *(("hf_dinov2", "config.json"), ("hf_siglip", "config.json"), ("timm_deit", "config.json")),
    *(("hf_sharded", "model.safetensors.index.json"), ("orbax", "card.json")),
    *(("run", "checkpoints/2/card/metadata"),),
)


def _description(file: str, content: bytes) -> bytes:
    """The JSON in a file that holds a card of ours, or is one."""
    if file.endswith(".npz"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.comment
    if file.endswith(".safetensors"):
        header, _ = mutations.split_safetensors(content)
        return header["__metadata__"][CARD_KEY].encode()
    return content


def with_description(file: str, content: bytes, text: bytes) -> bytes:
    """The file with other JSON in it."""
    if file.endswith(".npz"):
        out = io.BytesIO(content)
        with zipfile.ZipFile(out, "a") as archive:
            archive.comment = text if len(text) <= 65_535 else b""
            if not archive.comment:
                archive.writestr(zipfile.ZipInfo("card.json"), text)
        return out.getvalue()
    if file.endswith(".safetensors"):
        header, body = mutations.split_safetensors(content)
        header["__metadata__"][CARD_KEY] = text.decode()
        return mutations.join_safetensors(json.dumps(header).encode(), body)
    return text


def describe(path: Path, known: Arrays) -> str:
    found, _ = _read(path)
    for name in found.keys() & known.keys():
        if found[name].tobytes() != known[name].tobytes():
            raise Wrong(f"other numbers in {name}")
    load(path)
    return "read"
