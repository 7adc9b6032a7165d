"""Published checkpoints by name: what they are, where they live, and a cache of those fetched.

The table is catalog.csv beside this file (also checkpoints/catalog.csv in the repository). A row's
homes are tried in order; each is a hub repository (`hub:owner/name`) or a bucket path (`gs://…`).
What a home sends is believed once its size and the shapes in it are those of the row's model.
"""

import contextlib
import csv
import dataclasses
import difflib
import functools
import json
import logging
import math
import os
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
from etils import epath

from vit_jax import models, untrusted
from vit_jax.aliases import Json
from vit_jax.atomic import replacing
from vit_jax.checkpoint import download, foreign, formats, official
from vit_jax.checkpoint.names import check_fit
from vit_jax.checkpoint.npz import open_archive
from vit_jax.models.kinds import Shapes, parameter_shapes

log = logging.getLogger(__name__)

TABLE = Path(__file__).with_name("catalog.csv")
# The servers behind the homes. A mirror can stand in: VIT_JAX_HUB=https://mirror/…
ENDPOINTS = {
    "hub": ("VIT_JAX_HUB", "https://huggingface.co"),
    "bucket": ("VIT_JAX_BUCKET", "https://storage.googleapis.com"),
}
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOT_EVERYWHERE = ("head/", "pre_logits/")  # some homes have the body alone

Hashes = dict[str, str]  # sha256 by address
# Called as a file arrives: its name, bytes so far, bytes in all if known.
Progress = Callable[[str, int, int | None], None]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row. `accuracy` is the published ImageNet top-1, in percent, of this model."""

    name: str
    model: str
    representation: int | None
    resolution: int
    classes: int
    parameters: int
    mib: int
    licence: str
    accuracy: float | None
    training: str
    homes: tuple[str, ...]
    sha256: str | None
    note: str


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    url: str
    name: str
    needed: bool = True


def entries() -> dict[str, Entry]:
    with TABLE.open(newline="") as file:
        return {row["name"]: _entry(row) for row in csv.DictReader(file)}


def _entry(row: dict[str, str]) -> Entry:
    values: Json = {name: text or None for name, text in row.items()}
    for name in ("representation", "resolution", "classes", "parameters", "mib"):
        values[name] = int(row[name]) if row[name] else None
    values["accuracy"] = float(row["accuracy"]) if row["accuracy"] else None
    values |= {"homes": tuple(row["homes"].split()), "note": row["note"]}
    return Entry(**values)


def find(name: str) -> Entry:
    table = entries()
    if name in table:
        return table[name]
    hint = near_names(name) or " `python -m vit_jax.catalog list` shows them all."
    raise ValueError(f"There is no checkpoint {name!r} in the catalog.{hint}")


def near_names(name: str) -> str:
    """A sentence with similar names in the catalog, or nothing."""
    near = difflib.get_close_matches(name, entries(), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def cache_dir(cache: str | os.PathLike[str] | None = None) -> Path:
    """The cache given, or $VIT_JAX_CACHE, or ~/.cache/vit_jax."""
    path = Path(cache or os.environ.get("VIT_JAX_CACHE") or "~/.cache/vit_jax")
    try:
        return path.expanduser()
    except RuntimeError as e:  # a user without a home, or no such user
        raise ValueError(f"{path} cannot be the cache: {e} Set --cache or VIT_JAX_CACHE.") from e


def remote_files(home: str) -> tuple[str, list[RemoteFile]]:
    """A home's kind, and the files to fetch from it."""
    if home.startswith("hub:"):
        repository = home.removeprefix("hub:")
        base = f"{_endpoint('hub')}/{urllib.parse.quote(repository)}/resolve/main"
        return "hub", [
            RemoteFile(f"{base}/config.json", "config.json"),
            RemoteFile(f"{base}/preprocessor_config.json", "preprocessor_config.json", False),
            RemoteFile(f"{base}/model.safetensors", "model.safetensors"),
        ]
    if home.startswith("gs://"):
        path = home.removeprefix("gs://")
        url = f"{_endpoint('bucket')}/{urllib.parse.quote(path)}"
        return "bucket", [RemoteFile(url, path.rsplit("/", 1)[-1])]
    raise ValueError(f"A home is hub:OWNER/NAME or gs://BUCKET/PATH, not {home!r}.")


def _endpoint(kind: str) -> str:
    variable, default = ENDPOINTS[kind]
    return os.environ.get(variable, default).rstrip("/")


def fetch(
    name: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    offline: bool = False,
    allow_http: bool = False,
    timeout: float = 30.0,
    progress: Progress | None = None,
) -> Path:
    """The path of a catalogued checkpoint, for `load`; downloaded if it is not cached.

    The homes are tried in order; if none works, the error says how each failed. A file whose sha256
    is not known is believed after a first look at its content; its hash is recorded and checked
    from then on.
    """
    entry = find(name)
    root = cache_dir(cache)
    known = _known_hashes(root)
    for home in entry.homes:
        if (path := _cached(root, entry, home, known)) is not None:
            return path
    if offline:
        raise download.DownloadError(
            f"{name} is not in the cache {root}, and --offline forbids fetching it."
        )
    failures: list[str] = []
    for home in entry.homes:
        try:
            options = {"allow_http": allow_http, "timeout": timeout}
            return _fetch_home(root, entry, home, known, progress, **options)
        except download.DownloadError as e:
            failures.append(f"{home}: {e}")
    raise download.DownloadError(f"{name} could not be fetched. {' | '.join(failures)}")


def _fetch_home(
    root: Path, entry: Entry, home: str, known: Hashes, progress: Progress | None, **options: Any
) -> Path:
    kind, files = remote_files(home)
    folder = _folder(root, entry.name, home)
    found: Hashes = {}
    for file in files:
        expected = known.get(file.url)
        try:
            found[file.url] = download.fetch(
                file.url,
                folder / file.name,
                sizes=_sizes(file.name, entry),
                look=functools.partial(_look, file.name, entry),
                sha256=(entry.sha256 or expected) if kind == "bucket" else expected,
                progress=functools.partial(progress, file.name) if progress else None,
                **options,
            )
        except download.DownloadError as e:
            if expected and expected in str(e):
                hint = f"If it was published anew, remove its line from {root / 'hashes.json'}."
                raise download.DownloadError(f"{e} {hint}") from e
            if file.needed or "answered 404" not in str(e):
                raise
            (folder / file.name).unlink(missing_ok=True)
    _record(root, found)  # not before all of it has been looked at
    return folder if kind == "hub" else folder / files[0].name


def _cached(root: Path, entry: Entry, home: str, known: Hashes) -> Path | None:
    """The checkpoint if all of it is in the cache; an error if a file is not what it should be."""
    kind, files = remote_files(home)
    folder = _folder(root, entry.name, home)
    found: Hashes = {}
    if not all((folder / file.name).exists() for file in files if file.needed):
        return None
    for file in files:
        if not (path := folder / file.name).exists():
            continue
        found[file.url] = download.file_hash(path)
        try:
            if file.url not in known:
                _look(file.name, entry, path)
            elif found[file.url] != known[file.url]:
                raise ValueError(
                    f"{path} is not the file that was downloaded: its sha256 is no longer "
                    f"{known[file.url]}."
                )
        except ValueError as e:
            raise download.DownloadError(f"{e} Delete {path} to fetch it again.") from e
    if found.keys() - known.keys():
        with contextlib.suppress(OSError):  # a cache may be read-only
            _record(root, found)
    return folder if kind == "hub" else folder / files[0].name


def _folder(root: Path, name: str, home: str) -> Path:
    """Each home has its own: two repositories must not mix their files."""
    place = home.removeprefix("hub:").partition("/")[0] if home.startswith("hub:") else "bucket"
    if not (_SAFE.fullmatch(name) and _SAFE.fullmatch(place)):
        raise ValueError(f"{name!r} of {home!r} cannot be the name of a folder in the cache.")
    return root / name / place


def _sizes(file_name: str, entry: Entry) -> range:
    """The bytes that a file may have: limits, as the catalog does not have the published lengths.
    At least the body in two bytes a number; at most everything in four, and a tenth more.
    """
    if file_name.endswith(".json"):
        return range(untrusted.MAX_BYTES + 1)
    body = [s for name, s in _shapes(entry).items() if not name.startswith(_NOT_EVERYWHERE)]
    least = 2 * sum(math.prod(leaf.shape) for leaf in body)
    return range(least, round(4.4 * entry.parameters) + (1 << 20))


def _look(file_name: str, entry: Entry, path: Path) -> None:
    """Raises ValueError unless a file can be the one of this name in a home of this entry.

    Weights must have the shapes of the entry's model; only their headers are read.
    """
    if file_name.endswith(".json"):
        untrusted.read_json(path)
        return
    kind, where = formats.recognise(path)
    if file_name.endswith(".npz"):
        with open_archive(path) as archive:
            plan = official.read_plan(archive)
    elif kind == formats.SAFETENSORS and where == epath.Path(path):
        with foreign.open_plan(where) as (plan, _, _):
            pass
    else:
        raise ValueError(f"{path} is not a safetensors file.")
    found, wanted = plan.leaves, _shapes(entry)
    differ = [n for n in found.keys() ^ wanted.keys() if n.startswith(_NOT_EVERYWHERE)]
    found, wanted = ({n: s for n, s in of.items() if n not in differ} for of in (found, wanted))
    check_fit(found, wanted, where=str(path))


@functools.cache
def _shapes(entry: Entry) -> Shapes:
    fields = {"representation_size": entry.representation} if entry.representation else {}
    model = models.get_model(entry.model, num_classes=entry.classes, **fields)
    return parameter_shapes(model, (entry.resolution, entry.resolution), 3)


def _known_hashes(root: Path) -> Hashes:
    """Those recorded; of a damaged file those that can be read, with a warning."""
    try:
        given = untrusted.read_json(root / "hashes.json")
    except FileNotFoundError:
        return {}
    except ValueError as e:
        log.warning("%s It is written anew as the files in the cache pass a first look.", e)
        return {}
    known = {u: h for u, h in given.items() if isinstance(h, str) and _SHA256.fullmatch(h)}
    for url in given.keys() - known.keys():
        log.warning("%s has no sha256 for %s; it is ignored.", root / "hashes.json", url)
    return known


def _record(root: Path, found: Hashes) -> None:
    with filelock.FileLock(root / ".hashes.lock", timeout=60):
        known = {**_known_hashes(root), **found}
        with replacing(root / "hashes.json") as partial:
            partial.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
