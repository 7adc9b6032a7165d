"""What is tried: a table of kinds, each with a function that makes a case of it.

A case is a name, `KIND:SEED.NUMBER`, and its name decides everything about it. Its maker writes the
input into an empty room and returns a `Trial`, whose `run` returns the name of an outcome that is
allowed, or raises ValueError or OSError, which is allowed too; anything else that it raises is not.
"""

import contextlib
import functools
import io
import itertools
import json
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import vit_jax
from benchmarks.fuzz import commands, mutations, seeds
from benchmarks.fuzz.seeds import Seeds
from benchmarks.fuzz.trial import Trial, Wrong
from vit_jax import checkpoint, data
from vit_jax.checkpoint.foreign import CARD_KEY
from vit_jax.config import default_config
from vit_jax.data.decode import image_size
from vit_jax.models import kinds
from vit_jax.preprocessing import Preprocessing

Arrays = Mapping[str, np.ndarray]


class Kind(NamedTuple):
    make: Callable[[random.Random, Seeds, Path], Trial]
    share: int  # of ten cases


# Checkpoints


def checkpoint_case(rng: random.Random, good: Seeds, room: Path) -> Trial:
    """A file of a checkpoint is damaged, exchanged or lost."""
    name, donor = (_choose_checkpoint(rng, good) for _ in range(2))
    file = rng.choice([file for file, content in good.checkpoints[name].items() if content])
    spare = rng.choice(list(good.checkpoints[donor].values()))
    damage = _choose_damage(rng, file)
    content = damage(good.checkpoints[name][file], spare, rng)
    path = _write(name, {**good.checkpoints[name], file: content}, room)
    sealed = damage in _SHOWS and name.startswith(_SEALED)
    known = [arrays(good, one) for one in (name, donor)] if sealed else []
    then = rng.choice((_load, functools.partial(_convert, rng.choice(_TARGETS)), None, None, None))
    what = f"{damage.__name__} in {name}/{file} (with some of {donor})"
    return Trial(what, functools.partial(_open, path, known, then))


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


def exchanged(_: bytes, spare: bytes, rng: random.Random) -> bytes:
    return spare


def zip_directory(content: bytes, _: bytes, rng: random.Random) -> bytes:
    return mutations.zip_directory(content, rng)


def zip_member(content: bytes, _: bytes, rng: random.Random) -> bytes:
    return mutations.zip_member(content, rng)


def safetensors_header(content: bytes, _: bytes, rng: random.Random) -> bytes:
    return mutations.safetensors_header(content, rng)


def json_value(content: bytes, _: bytes, rng: random.Random) -> bytes:
    return mutations.mutated_json(content, rng)


_AWARE: dict[str, tuple[Damage, ...]] = {
    ".npz": (zip_directory, zip_member),
    ".safetensors": (safetensors_header,),
    ".json": (json_value,),
}
_SHOWS = (mutations.blind, zip_directory, lost, empty)  # what checksums can show


def _write(name: str, files: Mapping[str, bytes | None], room: Path) -> Path:
    """A checkpoint in the room; a file without content is not there. Returns what is opened."""
    for file, content in files.items():
        (room / name / file).parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            (room / name / file).write_bytes(content)
    return seeds.checkpoint_at(room / name)


def _open(path: Path, known: list[Arrays], then: Callable[[Path], None] | None = None) -> str:
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
        if path.parent.name not in str(e) and path.name not in str(e):
            raise Wrong(f"the file is not named: {e}") from e
        raise


def _load(path: Path) -> None:
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


# Cards


def card_case(rng: random.Random, good: Seeds, room: Path) -> Trial:
    """The JSON that describes a checkpoint says something else; its arrays are as they were."""
    name, file = rng.choice(_DESCRIBED)
    files = good.checkpoints[name]
    text = mutations.mutated_json(_description(file, files[file]), rng)
    path = _write(name, {**files, file: _described(file, files[file], text)}, room)
    return Trial(f"JSON of {name}/{file}", functools.partial(_describe, path, arrays(good, name)))


_DESCRIBED = (
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


def _described(file: str, content: bytes, text: bytes) -> bytes:
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


def _describe(path: Path, known: Arrays) -> str:
    found, _ = _read(path)
    for name in found.keys() & known.keys():
        if found[name].tobytes() != known[name].tobytes():
            raise Wrong(f"other numbers in {name}")
    _load(path)
    return "read"


# Images


def image_case(rng: random.Random, good: Seeds, room: Path) -> Trial:
    """A picture is damaged, and prepared as a command would."""
    name, spare = (rng.choice(list(good.pictures)) for _ in range(2))
    content, how = good.pictures[name], "bytes"
    if name.endswith(".png") and rng.random() < 0.7:
        content, how = mutations.png_chunk(content, rng), "a chunk"
    else:
        content = mutations.blind(content, good.pictures[spare], rng)
    (room / name).write_bytes(content)
    way = rng.choice(list(transforms()))
    return Trial(f"{how} of {name}, {way}", functools.partial(prepare, content, way))


@functools.cache
def transforms() -> dict[str, tuple[Callable[[bytes], np.ndarray], tuple[int, ...]]]:
    """Ways from a file to a model's input, and the shapes that they promise."""

    def evaluation(h: int, w: int, c: int, resize: Any, interpolation: str, exif: bool = False):
        how = Preprocessing((h, w), resize, interpolation, (0.5,) * c, (0.5,) * c, c, exif)
        return data.eval_transform(how), (h, w, c)

    config = default_config()
    config.pp.crop = 16
    train = data.train_transform(config)
    return {
        "squeezed": evaluation(16, 16, 3, None, "bilinear"),
        "cropped": evaluation(16, 16, 3, 18, "bilinear_antialias"),
        "wide": evaluation(16, 24, 3, (18, 26), "bicubic"),
        "gray": evaluation(16, 16, 1, 18, "bilinear", exif=True),
        "transparent": evaluation(16, 16, 4, 16, "bicubic", exif=True),
        "training": (lambda raw: train(raw, np.random.default_rng(0)), (16, 16, 3)),
        "size": (lambda raw: np.array(image_size(raw)), (2,)),
    }


def prepare(content: bytes, way: str) -> str:
    transform, shape = transforms()[way]
    image = transform(content)
    if image.shape != shape or not np.isfinite(image).all():
        raise Wrong(f"a result of {image.shape} where {shape} was promised, or not finite")
    return "read"


KINDS = {
    "checkpoints": Kind(checkpoint_case, 4),
    "cards": Kind(card_case, 2),
    "images": Kind(image_case, 3),
    "commands": Kind(commands.case, 1),
}


def names(only: str | None, seed: int) -> Iterator[str]:
    """The names of cases without end, of all kinds in turn."""
    shares = [name for name, kind in KINDS.items() for _ in range(kind.share)]
    for number in itertools.count():
        yield f"{only or shares[number * 3 % len(shares)]}:{seed}.{number}"


def prepared(case: str, good: Path, room: Path) -> Trial:
    """The trial of a case, its input written into a room."""
    kind = KINDS[case.partition(":")[0]]
    with warnings.catch_warnings(action="ignore"):  # zipfile warns of what we do on purpose
        return kind.make(random.Random(case), seeds.read(good), room)


def again(file: Path, good: Path, room: Path) -> Trial:
    """The trial of a file that was kept: images/NAME; or WHAT/SEED/FILE/NAME, content for a FILE of
    a seed. WHAT is `damaged` (right numbers or none), `crafted` (its checksums agree) or `cards`.
    """
    content = file.read_bytes()
    if file.parent.name == "images":
        return Trial(file.name, functools.partial(_prepare_all, content))
    what, name, *inner = file.parts[max(map(file.parts.index, _KEPT & set(file.parts))) : -1]
    found, files = "/".join(inner), seeds.read(good).checkpoints[name]
    if what == "cards":
        content = _described(found, files[found], content)
    path, known = _write(name, {**files, found: content}, room), arrays(seeds.read(good), name)
    if what == "cards":
        return Trial(str(file), functools.partial(_describe, path, known))
    return Trial(str(file), functools.partial(_open, path, [known] * (what == "damaged"), _load))


_KEPT = {"damaged", "crafted", "cards"}


def _prepare_all(content: bytes) -> str:
    """Every way, although most refuse a damaged picture."""
    for way in transforms():
        with contextlib.suppress(ValueError, OSError):
            prepare(content, way)
    return "read"


@contextlib.contextmanager
def remembered_shapes() -> Iterator[None]:
    """Within it, each model is traced once: most of a case's time would go into the same few."""
    trace, known = kinds.parameter_shapes, {}

    def shapes(*arguments: Any) -> dict[str, Any]:
        if (key := repr(arguments)) not in known:
            known[key] = trace(*arguments)
        return known[key]

    with mock.patch.object(kinds, "parameter_shapes", shapes):
        yield
