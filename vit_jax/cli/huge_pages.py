"""Huge pages, for a command that computes on a CPU.

XLA:CPU allocates its temporary memory anew at each step. In pages of 4 KiB that is half a million
page faults per step; in huge pages it is a few thousand (docs/performance.md). glibc reads its
settings when a process starts, so a command starts itself once more with them. If you use vit_jax
as a library, set GLIBC_TUNABLES before starting Python.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Huge pages; and freed memory is kept for the next step rather than handed back to the system. One
# arena, because in any other glibc maps large blocks anew each time, whatever mmap_max says.
TUNABLE = (
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0"
    f":glibc.malloc.trim_threshold={2**36}"
)
_DEVICES = ("nvidia[0-9]*", "kfd", "accel[0-9]*", "vfio/[0-9]*")  # NVIDIA, AMD, TPU, newer TPUs


def use_huge_pages() -> None:
    """Starts this process again with huge pages, if it will compute on a CPU and has none yet.

    Call it before slow imports. Without glibc the setting has no effect.
    """
    if wanted(os.environ, accelerators(), sys.platform):
        os.environ["GLIBC_TUNABLES"] = TUNABLE
        sys.stdout.flush()
        os.execv(sys.executable, sys.orig_argv)


def wanted(environ: Mapping[str, str], accelerators: Sequence[Path], platform: str) -> bool:
    """On the host of a GPU or TPU one arena and huge pages slow down the threads that read data."""
    if platform != "linux" or "GLIBC_TUNABLES" in environ:
        return False
    if platforms := environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0].strip() == "cpu"  # the first one computes
    return not accelerators


def accelerators(devices: Path = Path("/dev")) -> list[Path]:
    """The device files of GPUs and TPUs: JAX would know too, but takes seconds to import."""
    return [path for pattern in _DEVICES for path in devices.glob(pattern)]
