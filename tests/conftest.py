"""Where tests find their data: recorded golden files in the clone, real models and data sets beside
it.
"""

import os
from pathlib import Path

import jax
import pytest

from vit_jax.cli import compilation_cache

ROOT = Path(__file__).parent.parent

# Before any computation: eight devices on one CPU, for tests of what is spread over devices.
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def no_compilation_cache(monkeypatch):
    """For commands run in this process: they would turn jax's cache on for all tests after them."""
    monkeypatch.setattr(compilation_cache, "enable", lambda *_: None)


@pytest.fixture(scope="session")
def golden() -> Path:
    return ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory of real weights, photographs and data sets; tests that use it are marked
    `shared`.
    """
    path = Path(os.environ.get("VIT_JAX_SHARED", ROOT.parent / "shared"))
    if not (path / "real").is_dir():
        pytest.skip(
            f"no real weights and data sets at {path} (set VIT_JAX_SHARED to have this test)"
        )
    return path
