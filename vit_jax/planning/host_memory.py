"""How much memory this process may still take on a CPU: of the machine, and of its control group.

A container's limit is that of its control group, which the machine's own figures do not show; who
goes over it is killed without a word.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil

# Where the second and first version of control groups keep the limit and what is in use.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be taken before the system has to swap, or to kill."""
    return max(0, min([psutil.virtual_memory().available, *_rooms(root)]))


def _rooms(root: Path) -> Iterator[int]:
    """What is left in each control group of this process: its own, and those it is part of."""
    for folder in _groups(root):
        for limit, used, reclaimable in _VERSIONS:
            try:
                room = int((folder / limit).read_text()) - int((folder / used).read_text())
                rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
                cached = {name: int(value) for name, value in rows}.get(reclaimable, 0)
            except (OSError, ValueError):  # not this version, or the limit is "max"
                continue
            yield room + cached


def _groups(root: Path) -> Iterator[Path]:
    known = root / "proc/self/cgroup"
    for line in known.read_text().splitlines() if known.exists() else []:  # Linux has one
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        own = top / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))
