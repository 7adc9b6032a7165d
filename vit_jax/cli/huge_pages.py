"""Huge pages for a command that computes on a CPU.

XLA:CPU asks the C library for its temporary memory anew at each step. In pages of 4 KiB that is
half a million page faults a step; in huge pages it is a few thousand (docs/performance.md). glibc
decides at the start of a process, so a command starts itself once more with the setting; a library
user sets GLIBC_TUNABLES before starting Python.
"""

import os
import sys

# Huge pages; and memory that was freed is kept for the next step, not handed back to the system.
# One arena, because in the others glibc maps what is large anew each time, whatever mmap_max says.
TUNABLE = ":".join(
    (
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.arena_max=1",
        "glibc.malloc.mmap_max=0",
        f"glibc.malloc.trim_threshold={2**36}",
    )
)


def use_huge_pages() -> None:
    """Starts this process anew with huge pages, unless it has them, or was told otherwise.

    Call it before anything slow is imported. Where there is no glibc the setting does nothing.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = TUNABLE
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)
