"""Importing the models stays light."""

import subprocess
import sys

import pytest

HEAVY = (
    "tensorflow torch tensorflow_datasets grain array_record cv2 PIL simplejpeg sklearn matplotlib "
    "optax orbax tensorstore safetensors"
)


@pytest.mark.parametrize("statement", ["import vit_jax", "from vit_jax import models"])
def test_import_loads_no_data_library_and_no_other_framework(statement):
    program = f"import sys; {statement}; print(*[m for m in {HEAVY.split()!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
