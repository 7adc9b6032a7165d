"""Which device holds what, and what is refused before anything is compiled."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.parallel.programs import make_program
from vit_jax import models
from vit_jax.models.sharding import constrain, target_platform
from vit_jax.parallel.mesh import (
    arrange,
    bytes_per_device,
    make_mesh,
    num_batch_shards,
    partition_spec,
    strategy_name,
)
from vit_jax.planning import footprint as fit

MESH = {"replica": 1, "data": 8, "tensor": 2}
BLOCK = "params/Transformer/encoderblock"


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (f"{BLOCK}_0/MlpBlock_0/Dense_0/kernel", (64, 128), P("data", "tensor")),
        (f"{BLOCK}_0/MlpBlock_0/Dense_1/kernel", (128, 64), P("tensor", "data")),
        (f"{BLOCK}_0/Attention_0/query/kernel", (64, 4, 16), P("data", "tensor", None)),
        (f"{BLOCK}_0/Attention_0/out/kernel", (4, 16, 64), P("tensor", None, "data")),
        # stacked for a scan, the axis of the layers stays whole, however long
        (f"{BLOCK}/Attention_0/query/kernel", (512, 64, 4, 16), P(None, "data", "tensor", None)),
        # the optimizer's copies follow their parameters
        ("opt_state/0/mu/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel", (64, 128),
         P("data", "tensor")),
        # small, odd, or no dimension that divides: whole
        (f"{BLOCK}_0/LayerNorm_0/scale", (64,), P()),
        ("params/head/kernel", (63, 1001), P(None, None)),
        ("step", (), P()),
    ],
)  # fmt: skip
def test_how_fsdp_cuts_an_array(name, shape, expected):
    assert partition_spec(name, shape, MESH) == expected


def test_auto_is_jit_alone_pmap_for_small_states_and_fsdp_for_large_ones():
    small = make_program().abstract_state
    large = make_program(**{"model.hidden_size": 8192, "model.transformer.mlp_dim": 32768})
    assert strategy_name(make_mesh("auto", 1, small, jax.devices()[:1])) == "jit"
    assert strategy_name(make_mesh("auto", 1, small)) == "pmap"
    assert strategy_name(make_mesh("auto", 2, small)) == "fsdp"
    assert strategy_name(make_mesh("auto", 1, large.abstract_state)) == "fsdp"


def test_fsdp_keeps_copies_where_a_width_does_not_divide_by_all_devices():
    """G/14's width of 1,664 divides by 128 and not by 256; here 84 divides by 4 and not by 8."""
    changes = {"model.hidden_size": 84, "model.transformer.mlp_dim": 300}
    state = make_program(**changes).abstract_state
    mesh = make_mesh("fsdp", 1, state)
    assert dict(mesh.shape) == {"replica": 2, "data": 4, "tensor": 1}
    assert num_batch_shards(mesh) == 8
    copies = make_mesh("pmap", 1, state)
    assert bytes_per_device(mesh, state) < bytes_per_device(copies, state) / 3


def test_a_group_of_shards_never_spans_two_slices():
    class Device:
        def __init__(self, index):
            self.id, self.process_index, self.slice_index = index, index // 2, index % 2
            self.platform = self.device_kind = "tpu"

    mesh = arrange([Device(i) for i in range(8)], 2, 2)
    for group in mesh.devices:
        assert len({device.slice_index for device in group.flat}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("zero", 1), "strategy='zero' is not one of auto, jit, pmap, fsdp"),
        (("pmap", 2), "tensor=2 needs config.parallel.strategy=fsdp, not pmap"),
        (("fsdp", 3), "tensor=3 does not divide the 8 devices of a process; 1, 2, 4, 8 would"),
    ],
)
def test_strategies_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(*options, make_program().abstract_state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": 40, "accum_steps": 4},
            r"batch=40 in accum_steps=4 parts .* 8 devices.*--config.batch=32 or "
            "--config.accum_steps=5",
        ),
        ({"batch": 12, "accum_steps": 1}, "try --config.batch=16"),
        ({"batch_eval": 100}, "batch_eval=100 does not divide among 8 .*--config.batch_eval=96"),
    ],
)
def test_batches_that_do_not_divide_come_with_numbers_that_do(changes, message):
    program = make_program(**changes)
    mesh = make_mesh("pmap", 1, program.abstract_state)
    with pytest.raises(ValueError, match=message):
        fit.check_batch(program.config, mesh)


def test_too_little_memory_comes_with_settings_that_need_less():
    program = make_program(accum_steps=1, batch_eval=64)
    mesh = make_mesh("pmap", 1, program.abstract_state)
    needed = fit.footprint(program, mesh).total
    fit.check_memory(program, mesh, None)
    fit.check_memory(program, mesh, 2 * needed)
    with pytest.raises(ValueError, match=r"Training would take .*--config\.\w+.* would take"):
        fit.check_memory(program, mesh, needed // 2)
    with pytest.raises(ValueError, match=r"smaller model\. Evaluation .* smaller model\.$"):
        fit.check_memory(program, mesh, 1000)


def test_a_batch_that_is_too_large_to_evaluate_comes_with_one_that_is_not():
    program = make_program(batch=8, accum_steps=1, batch_eval=4096)
    mesh = make_mesh("jit", 1, program.abstract_state, jax.devices()[:1])
    limit = fit.evaluation_footprint(program, mesh, 1024).total / 0.89
    with pytest.raises(ValueError, match=r"^Evaluation .* with --config.batch_eval=1024 it would"):
        fit.check_memory(program, mesh, int(limit))


def test_the_devices_of_a_cpu_share_what_the_machine_has_left(monkeypatch):
    monkeypatch.setattr(fit, "available_memory", lambda: 800)
    assert fit.memory_limit(jax.devices()[0]) == 100  # of eight


def test_rematerialising_and_parts_take_less_memory_by_the_estimate():
    def activations(**changes):
        program = make_program(accum_steps=1, **changes)
        return fit.footprint(program, make_mesh("pmap", 1, program.abstract_state)).activations

    plain = activations()
    assert activations(**{"model.remat": "full"}) < plain / 2
    assert activations(batch=128) == 2 * plain


def test_every_alternative_is_a_program_that_fits_the_devices():
    program = make_program(accum_steps=1)
    mesh = make_mesh("pmap", 1, program.abstract_state)
    tried = list(fit.alternatives(program, mesh))
    assert tried
    for change, changed, its_mesh in tried:
        fit.check_batch(changed.config, its_mesh)
        less = fit.footprint(changed, its_mesh).total
        assert less < fit.footprint(program, mesh).total, change


def test_without_a_mesh_constraints_are_not_there():
    x = np.ones((4, 2), np.float32)
    assert constrain(x, "data") is x
    assert target_platform() == jax.default_backend()


def test_a_program_for_another_platform_is_traced_for_it():
    tpu = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=tpu)
    with jax.sharding.use_abstract_mesh(mesh):
        assert target_platform() == "tpu"


def test_the_parameters_of_a_model_do_not_depend_on_a_mesh():
    model = models.get_model("testing", num_classes=3)
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32)
    alone = jax.eval_shape(model.init, jax.random.key(0), images)
    with jax.set_mesh(arrange(jax.devices(), 8, 1)):
        assert jax.eval_shape(model.init, jax.random.key(0), images) == alone
