"""Compiled programs, kept from one run to the next."""

import logging
from pathlib import Path

import jax

log = logging.getLogger(__name__)
MAX_BYTES = 2 * 2**30


def enable(path: str = "auto") -> None:
    """Keeps them in this directory: by default in the user's cache; '' keeps none."""
    if not path:
        return
    directory = Path.home() / ".cache" / "vit_jax" / "compiled" if path == "auto" else Path(path)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    log.info("Compiled programs are kept in %s.", directory)
