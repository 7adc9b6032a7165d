"""Choosing among AugReg's 50,000 checkpoints by their index.csv (Steiner et al. 2021)."""

import csv
import os
from pathlib import Path

from vit_jax.checkpoint import catalog, download

INDEX = "gs://vit_models/augreg/index.csv"


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
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    needed = {"name", "ds", "final_val", "filename"}
    if not rows or not needed <= set(rows[0]):
        raise ValueError(f"{path} is not AugReg's index: it needs the columns {', '.join(needed)}.")
    exact = name.removesuffix(".npz")
    for row in rows:
        if exact in (row["filename"], row.get("adapt_filename")):
            return row
    candidates = [row for row in rows if row["name"] == name and row["ds"] == "i21k"]
    if not candidates:
        names = sorted({row["name"] for row in rows if row["ds"] == "i21k"})
        raise ValueError(f"{path} has no i21k checkpoint of {name!r}; it has {', '.join(names)}.")
    return max(candidates, key=lambda row: float(row["final_val"]))


def _local(index: str, cache: str | os.PathLike[str] | None, allow_http: bool) -> Path:
    if index.startswith("gs://"):
        index = catalog.remote_files(index)[1][0].url
    if "://" not in index:
        path = Path(index).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"There is no index at {path}.")
        return path
    target = catalog.cache_dir(cache) / "augreg" / "index.csv"
    if not target.exists():
        download.fetch(index, target, allow_http=allow_http)
    return target
