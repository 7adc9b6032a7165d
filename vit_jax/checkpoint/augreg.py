"""Choosing among AugReg's 50,000 checkpoints by their index.csv (Steiner et al. 2021)."""

import csv
import hashlib
import os
from pathlib import Path

from vit_jax.checkpoint import catalog, download

INDEX = "gs://vit_models/augreg/index.csv"
MAX_BYTES = 256 << 20
_NEEDED = ("name", "ds", "final_val", "filename")


def best(
    name: str,
    index: str | os.PathLike[str] = INDEX,
    *,
    cache: str | os.PathLike[str] | None = None,
    allow_http: bool = False,
) -> dict[str, str]:
    """The index's row for a model name (B_16, R26_S_32, …): its ImageNet-21k checkpoint with the
    best `final_val`. A whole file name (`filename` or `adapt_filename`) gives its own row.

    `index` is a local copy, or an https or gs:// address, which is downloaded into the cache.
    """
    path = _local(str(index), cache, allow_http)
    rows = _read(path)
    exact = name.removesuffix(".npz")
    for row in rows:
        if exact in (row["filename"], row.get("adapt_filename")):
            return row
    candidates = [row for row in rows if row["name"] == name and row["ds"] == "i21k"]
    if not candidates:
        names = sorted({row["name"] for row in rows if row["ds"] == "i21k"})
        raise ValueError(f"{path} has no i21k checkpoint of {name!r}; it has {', '.join(names)}.")
    try:
        return max(candidates, key=lambda row: float(row["final_val"]))
    except ValueError as e:
        raise ValueError(f"{path} has a final_val of {name} that is no number ({e}).") from e


def _read(path: Path) -> list[dict[str, str]]:
    """The rows; whatever else a file may be is one ValueError."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} is longer than an index, {MAX_BYTES >> 20} MiB.")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restkey="more", restval=""))
    except (csv.Error, UnicodeDecodeError) as e:
        raise ValueError(f"{path} is not readable CSV ({e}).") from e
    if not rows or not set(_NEEDED) <= set(rows[0]):
        raise ValueError(f"{path} is not AugReg's index: it needs rows with {', '.join(_NEEDED)}.")
    return rows


def _local(index: str, cache: str | os.PathLike[str] | None, allow_http: bool) -> Path:
    if index.startswith("gs://"):
        index = catalog.remote_files(index)[1][0].url
    if "://" not in index:
        path = Path(index).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"There is no index at {path}.")
        return path
    mark = hashlib.sha256(index.encode()).hexdigest()[:8]  # another address is another index
    target = catalog.cache_dir(cache) / "augreg" / f"index-{mark}.csv"
    if not target.exists():
        sizes = range(MAX_BYTES + 1)
        download.fetch(index, target, sizes=sizes, look=_read, allow_http=allow_http)
    return target
