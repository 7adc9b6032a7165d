"""The plan: what it says about a recipe, here and for pods that are not here."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.programs import make_program
from vit_jax.parallel.mesh import bytes_per_device, make_mesh
from vit_jax.planning.report import doubled
from vit_jax.planning.topology import _wanted, compile_step, find_devices

ROOT = Path(__file__).parents[2]


@pytest.fixture
def libtpu():
    pytest.importorskip("libtpu", reason="no TPU compiler here: pip install 'jax[tpu]'")


def test_a_plan_without_an_accelerator_tells_sizes_memory_and_time():
    command = [sys.executable, "-m", "vit_jax.plan", "--config=configs/vit.py:b16,imagenet2012"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for said in (
        *("ViT-B_16, 12 layers", "86,859,496 (published: 86 M)", "(published: 17.55 at 224×224)"),
        *("gradients", "optimizer", "activations", "GiB per device", "chip-days", "an estimate"),
    ):
        assert said in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config=nothere.py"], "plan: nothere.py: No such file or directory."),
        (["--topology=v9:2x2"], "plan: --topology='v9:2x2' is not GENERATION:SHAPE"),
        (
            ["--config.bach=3"],
            "plan: there is no option 'bach' in the config. Did you mean 'batch'",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_line(options, message):
    command = [sys.executable, "-m", "vit_jax.plan", "--config=configs/vit.py:b16,cifar10"]
    result = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_doubling_a_topology_lengthens_its_shortest_side():
    assert doubled("v5e:8x16") == "v5e:16x16"
    assert doubled("v5p:4x4x8") == "v5p:8x4x8"


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (50.5G) exceeds available HBM (15.75G).",
            50.5 * 2**30,
        ),
        ("XLA:TPU compile permanent error. Ran out of memory. Used 512M of 15.75G", 2**29),
        ("RESOURCE_EXHAUSTED: something else", 0),
    ],
)
def test_what_a_step_wanted_is_read_from_the_compiler_s_complaint(message, size):
    assert _wanted(message) == size


@pytest.mark.tpu
def test_a_step_is_compiled_for_a_tpu_slice_without_one(libtpu):
    program = make_program(accum_steps=1, mixup=0.0)
    mesh = make_mesh("fsdp", 1, program.abstract_state, find_devices("v5e:2x2"))
    compiled = compile_step(program, mesh)
    assert compiled.fits
    assert "all-gather" in compiled.collectives or "collective-permute" in compiled.collectives
    state = bytes_per_device(mesh, program.abstract_state)
    assert state <= compiled.arguments <= compiled.bytes


@pytest.mark.tpu
def test_a_shape_that_no_slice_has_is_refused(libtpu):
    with pytest.raises(ValueError, match="There is no TPU slice --topology=v5e:3x5"):
        find_devices("v5e:3x5")
