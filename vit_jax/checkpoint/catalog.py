"""Published checkpoints by name: what they are, where they live, and a cache of those fetched.

The table is catalog.csv beside this file (also checkpoints/catalog.csv in the repository). A row's
homes are tried in order; each is a hub repository (`hub:owner/name`) or a bucket path (`gs://…`).
"""

import csv
import dataclasses
import difflib
import functools
import json
import os
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from vit_jax.aliases import Json
from vit_jax.atomic import replacing
from vit_jax.checkpoint import download

TABLE = Path(__file__).with_name("catalog.csv")
# The servers behind the homes. A mirror can stand in: VIT_JAX_HUB=https://mirror/…
ENDPOINTS = {
    "hub": ("VIT_JAX_HUB", "https://huggingface.co"),
    "bucket": ("VIT_JAX_BUCKET", "https://storage.googleapis.com"),
}
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]*")

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
    return Path(cache or os.environ.get("VIT_JAX_CACHE") or "~/.cache/vit_jax").expanduser()


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
    is not in the catalog is trusted the first time; its hash is recorded and checked from then on.
    """
    entry = find(name)
    root = cache_dir(cache)
    for home in entry.homes:
        if (path := _cached(root, entry.name, home)) is not None:
            return path
    if offline:
        raise download.DownloadError(
            f"{name} is not in the cache {root}, and --offline forbids fetching it."
        )
    failures: list[str] = []
    for home in entry.homes:
        try:
            return _fetch_home(root, entry, home, allow_http, timeout, progress)
        except download.DownloadError as e:
            failures.append(f"{home}: {e}")
    raise download.DownloadError(f"{name} could not be fetched. {' | '.join(failures)}")


def _fetch_home(
    root: Path, entry: Entry, home: str, allow_http: bool, timeout: float, progress: Progress | None
) -> Path:
    kind, files = remote_files(home)
    folder = _folder(root, entry.name, kind)
    for file in files:
        if not _SAFE.fullmatch(file.name):
            raise download.DownloadError(f"the file name {file.name!r} is not a plain one")
        expected = _known_hashes(root).get(file.url)
        try:
            found = download.fetch(
                file.url,
                folder / file.name,
                sha256=(entry.sha256 or expected) if kind == "bucket" else expected,
                allow_http=allow_http,
                timeout=timeout,
                progress=functools.partial(progress, file.name) if progress else None,
            )
        except download.DownloadError as e:
            if file.needed or "answered 404" not in str(e):
                raise
            continue
        known = {**_known_hashes(root), file.url: found}
        with replacing(root / "hashes.json") as partial:
            partial.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    path = _cached(root, entry.name, home)
    assert path is not None
    return path


def _cached(root: Path, name: str, home: str) -> Path | None:
    """The checkpoint if all of it is in the cache; an error if a file has changed."""
    kind, files = remote_files(home)
    folder = _folder(root, name, kind)
    known = _known_hashes(root)
    if not all((folder / file.name).exists() for file in files if file.needed):
        return None
    for file in files:
        path = folder / file.name
        if path.exists() and file.url in known and download.file_hash(path) != known[file.url]:
            raise download.DownloadError(
                f"{path} is not the file that was downloaded: its sha256 is no longer "
                f"{known[file.url]}. Delete it to fetch it again."
            )
    return folder if kind == "hub" else folder / files[0].name


def _folder(root: Path, name: str, kind: str) -> Path:
    if not _SAFE.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a folder in the cache.")
    return root / name / kind


def _known_hashes(root: Path) -> dict[str, str]:
    try:
        return json.loads((root / "hashes.json").read_text())
    except FileNotFoundError:
        return {}
