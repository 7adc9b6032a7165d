"""One step, any devices: every strategy trains the same model, and moves only what it must."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.parallel.programs import CLASSES, batch_of, make_program
from vit_jax import checkpoint, models
from vit_jax.parallel.mesh import (
    batch_sharding,
    gather_to_host,
    make_mesh,
    replicated,
    state_shardings,
    with_shardings,
)
from vit_jax.planning.collectives import find_collectives
from vit_jax.run.checkpoints import RunCheckpoints

STEPS = 20
STRATEGIES = {"jit": ("jit", 1), "pmap": ("pmap", 1), "fsdp": ("fsdp", 1), "tensor": ("fsdp", 2)}


def compiled_on(mesh, program):
    """The first state on a mesh, and the compiled step."""
    shardings = state_shardings(mesh, program.abstract_state)
    with jax.set_mesh(mesh):
        new_state = jax.jit(
            lambda: program.init_state(program.init_params()), out_shardings=shardings
        )
        step = jax.jit(
            program.train_step,
            in_shardings=(shardings, batch_sharding(mesh)),
            out_shardings=(shardings, replicated(mesh)),
            donate_argnums=0,
        )
        return new_state(), step.lower(program.abstract_state, program.abstract_batch).compile()


@functools.cache
def trained(name: str):
    """The state after twenty steps, the losses, and the compiled program's text."""
    program = make_program()
    mesh = make_mesh(*STRATEGIES[name], program.abstract_state)
    state, compiled = compiled_on(mesh, program)
    losses = []
    for step in range(STEPS):
        batch = jax.device_put(batch_of(step, program.config.batch), batch_sharding(mesh))
        state, metrics = jax.block_until_ready(compiled(state, batch))
        losses.append(float(metrics["loss"]))
    return state, losses, compiled.as_text()


@pytest.mark.parametrize("name", ["pmap", "fsdp", "tensor"])
def test_strategies_equal_one_device_after_twenty_steps(name):
    state, losses, _ = trained(name)
    alone, losses_alone, _ = trained("jit")
    assert losses_alone[-1] < losses_alone[0]
    np.testing.assert_allclose(losses, losses_alone, atol=1e-5, rtol=0)
    close = functools.partial(np.testing.assert_allclose, atol=1e-5, rtol=0)
    jax.tree.map(close, gather_to_host(state), gather_to_host(alone))


def test_biases_of_keys_may_differ_since_they_change_no_output():
    """They add the same to all scores of a query; the pod guide says what AdamW makes of them."""
    program = make_program()
    params = jax.device_get(jax.jit(program.init_params)())
    params["head"]["kernel"] = np.random.default_rng(0).standard_normal((64, CLASSES), np.float32)
    outputs = jax.jit(lambda p: program.model.apply({"params": p}, batch_of(0, 4)["image"]))
    before = outputs(params)
    attention = params["Transformer"]["encoderblock"]["MultiHeadDotProductAttention_0"]
    attention["key"]["bias"] = attention["key"]["bias"] + 0.1
    after = outputs(params)
    np.testing.assert_allclose(before, after, atol=1e-5, rtol=0)
    attention["query"]["bias"] = attention["query"]["bias"] + 0.1  # those of queries do
    assert np.abs(outputs(params) - after).max() > 1e-3


def test_pmap_equals_jax_pmap_with_a_mean_of_the_gradients():
    changes = {"mixup": 0.0, "accum_steps": 1, "momentum": 0.0, "warmup_steps": 0}
    changes |= {"model.transformer.dropout_rate": 0.0, "decay_type": "constant"}
    changes |= {"model.transformer.stochastic_depth_rate": 0.0, "grad_norm_clip": 0.0}
    changes |= {"model.transformer.num_layers": 1}
    program = make_program(**changes)
    mesh = make_mesh("pmap", 1, program.abstract_state)
    state, step_fn = compiled_on(mesh, program)
    copies = functools.partial(jax.tree.map, lambda x: jnp.broadcast_to(x, (8, *x.shape)))
    params = copies(program.init_params())

    @functools.partial(jax.pmap, axis_name="devices")
    def classical(params, images, labels):
        def loss_fn(params):
            logits = program.model.apply({"params": params}, images, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        grads = jax.lax.pmean(jax.grad(loss_fn)(params), "devices")
        return jax.tree.map(lambda p, g: p - program.config.base_lr * g, params, grads)

    for step in range(5):
        batch = batch_of(step, program.config.batch)
        shares = [x.reshape(8, -1, *x.shape[1:]) for x in (batch["image"], batch["label"])]
        params = jax.block_until_ready(classical(params, *shares))
        state, _ = jax.block_until_ready(
            step_fn(state, jax.device_put(batch, batch_sharding(mesh)))
        )
    close = functools.partial(np.testing.assert_allclose, atol=1e-6, rtol=0)
    jax.tree.map(close, gather_to_host(state.params), jax.tree.map(lambda x: x[0], params))


def test_pmap_exchanges_gradients_and_nothing_else():
    state, _, hlo = trained("pmap")
    by_kind = find_collectives(hlo)
    reduced = sum(np.prod(c.shape, dtype=int) for c in by_kind if c.kind == "all-reduce")
    unstacked = models.unstack_blocks(state.params)
    del unstacked["Transformer"]["encoderblock_1"]  # the scan's body is there once for both layers
    parameters = sum(leaf.size for leaf in jax.tree.leaves(unstacked))
    assert parameters <= reduced <= 1.05 * parameters + 100  # and a few scalars: losses, norms
    # mixing pairs an example with one on another device
    assert {c.kind for c in by_kind} <= {"all-reduce", "collective-permute"}


@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_sharded_state_gathers_parameters_and_never_the_batch(name):
    program = make_program()
    state, _, hlo = trained(name)
    largest = max(leaf.size for leaf in jax.tree.leaves(models.unstack_blocks(state.params)))
    tokens = (program.image_shape[0] // 4) ** 2 + 1
    part = program.config.batch // program.config.accum_steps
    activation = part * tokens * program.config.model.hidden_size  # of the whole batch
    assert 3 * largest < activation  # or the test could not tell them apart
    gathered = [c for c in find_collectives(hlo) if c.kind in ("all-gather", "all-to-all")]
    assert gathered
    # queries, keys and values are one matrix product on a CPU, and gathered as one
    assert [c for c in gathered if np.prod(c.shape, dtype=int) > 3 * largest] == []


def test_sharded_state_is_spread_evenly():
    state, _, _ = trained("fsdp")
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    for device in jax.devices():
        held = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(state)
            for shard in leaf.addressable_shards
            if shard.device == device
        )
        assert held < whole / 4  # an eighth, and the small arrays, which stay whole


@pytest.mark.parametrize(
    ("strategy", "tensor", "devices"),
    [("fsdp", 1, 2), ("jit", 1, 1), ("pmap", 1, 8), ("fsdp", 2, 8)],
)
def test_a_state_saved_on_eight_devices_restores_anywhere_exactly(
    strategy, tensor, devices, saved_on_eight
):
    directory, state = saved_on_eight
    shapes = jax.eval_shape(lambda: state)
    mesh = make_mesh(strategy, tensor, shapes, jax.devices()[:devices])
    shardings = state_shardings(mesh, shapes)
    with RunCheckpoints(directory, keep=1, best_metric="accuracy") as checkpoints:
        restored = checkpoints.restore(with_shardings(shapes, shardings))
    assert int(restored.step) == STEPS
    jax.tree.map(np.testing.assert_array_equal, gather_to_host(restored), gather_to_host(state))
    for leaf, sharding in zip(jax.tree.leaves(restored), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


@pytest.fixture(scope="module")
def saved_on_eight(tmp_path_factory):
    directory, (state, _, _) = tmp_path_factory.mktemp("run"), trained("fsdp")
    with RunCheckpoints(directory, keep=1, best_metric="accuracy") as checkpoints:
        checkpoints.save(STEPS, state, card=checkpoint.Card(make_program().model))
    return directory, state
