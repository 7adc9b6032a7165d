"""What goes beyond the reference: each option does what it says, and is off by default."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import random_params
from vit_jax import models
from vit_jax.models import layers

IMAGE = jax.random.normal(jax.random.key(7), (4, 32, 48, 3))


def make(images=IMAGE, num_layers=2, **fields):
    transformer = {"num_layers": num_layers, "dropout_rate": 0.0, **fields.pop("transformer", {})}
    model = models.get_model(
        "testing", num_classes=3, hidden_size=16, transformer=transformer, **fields
    )
    return model, random_params(model, images)


def run(model, params, images=IMAGE, **options):
    return jax.jit(lambda p, x: model.apply({"params": p}, x, **options))(params, images)


def gradients(model, params, **apply):
    return jax.jit(jax.grad(lambda p: (model.apply({"params": p}, IMAGE, **apply) ** 2).sum()))(
        params
    )


def assert_trees_close(a, b, atol):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=1e-5), a, b)


def test_dropout_is_linens_number_for_number():
    class Ours(nn.Module):
        @nn.compact
        def __call__(self, x):
            drop = layers.Dropout(0.3)
            return layers.Dropout(0.1)(drop(drop(x, train=True), train=True), train=True)

    class Theirs(nn.Module):
        @nn.compact
        def __call__(self, x):
            drop = nn.Dropout(0.3, deterministic=False)
            return nn.Dropout(0.1, deterministic=False)(drop(drop(x)))

    ours, theirs = (
        m.apply({}, IMAGE, rngs={"dropout": jax.random.key(0)}) for m in (Ours(), Theirs())
    )
    np.testing.assert_array_equal(ours, theirs)
    assert 0.5 < (ours == 0).mean() < 0.6  # 1 - 0.7 * 0.7 * 0.9
    np.testing.assert_array_equal(layers.Dropout(0.3).apply({}, IMAGE, train=False), IMAGE)


def test_dropping_all_gives_zeros_and_gradients_of_zero():
    rngs = {"dropout": jax.random.key(0)}
    value, gradient = jax.value_and_grad(
        lambda x: layers.Dropout(1.0).apply({}, x, train=True, rngs=rngs).sum()
    )(IMAGE)
    assert value == 0
    np.testing.assert_array_equal(gradient, jnp.zeros_like(IMAGE))


# Scan over layers and rematerialisation


@pytest.fixture(scope="module")
def unrolled():
    model, params = make()
    return model, params, run(model, params), gradients(model, params)


@pytest.mark.parametrize(
    ("scan", "remat"),
    [(True, None), (False, "full"), (True, "full"), (False, "dots"), (True, "dots_no_batch")],
)
def test_scan_and_remat_change_neither_outputs_nor_gradients(unrolled, scan, remat):
    plain, params, outputs, grads = unrolled
    model = plain.clone(scan=scan, remat=remat)
    np.testing.assert_allclose(run(model, params), outputs, atol=1e-5)
    assert_trees_close(gradients(model, params), grads, atol=1e-4)


def test_scanned_model_takes_the_stacked_layout_too(unrolled):
    plain, params, outputs, grads = unrolled
    model = plain.clone(scan=True)
    stacked = models.stack_blocks(params)
    assert stacked["Transformer"]["encoderblock"]["LayerNorm_0"]["scale"].shape == (2, 16)
    np.testing.assert_allclose(run(model, stacked), outputs, atol=1e-5)
    assert_trees_close(models.unstack_blocks(gradients(model, stacked)), grads, atol=1e-4)


def test_scanned_model_starts_with_the_published_tree():
    plain, params = make()
    init = plain.clone(scan=True).init
    scanned = jax.eval_shape(init, jax.random.key(0), IMAGE)["params"]
    assert jax.tree.map(jnp.shape, scanned) == jax.tree.map(jnp.shape, params)


def test_stack_and_unstack_are_inverse_and_leave_their_own_layout_alone():
    _, params = make()
    stacked = models.stack_blocks(params)
    assert_trees_close(models.unstack_blocks(stacked), params, atol=0)
    assert_trees_close(models.stack_blocks(stacked), stacked, atol=0)
    assert_trees_close(models.unstack_blocks(params), params, atol=0)


def test_stacking_names_missing_blocks():
    _, params = make()
    del params["Transformer"]["encoderblock_0"]
    with pytest.raises(ValueError, match=r"blocks \[0\] are missing"):
        models.stack_blocks(params)


def test_remat_keeps_dropout_the_same_in_forward_and_backward():
    model, params = make(transformer={"dropout_rate": 0.3})
    rngs = {"dropout": jax.random.key(3)}
    plain = gradients(model, params, train=True, rngs=rngs)
    assert_trees_close(
        gradients(model.clone(remat="full"), params, train=True, rngs=rngs), plain, atol=1e-4
    )


# Compute dtype


def test_bfloat16_keeps_parameters_and_outputs_in_float32():
    model, params = make(dtype=jnp.bfloat16)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    outputs = run(model, params)
    exact = run(model.clone(dtype=jnp.float32), params)
    assert outputs.dtype == jnp.float32
    assert float(jnp.abs(outputs - exact).max()) > 0  # it really computed in bfloat16
    np.testing.assert_allclose(outputs, exact, atol=0.1)  # 8 bits of mantissa, 2 blocks


def test_bfloat16_reaches_the_matmuls_of_every_block():
    model, params = make(dtype="bfloat16")
    program = jax.make_jaxpr(lambda p: model.apply({"params": p}, IMAGE))(params)
    products = [e for e in _equations(program.jaxpr) if e.primitive.name == "dot_general"]
    assert {e.invars[0].aval.dtype for e in products} == {jnp.dtype("bfloat16")}


def test_bfloat16_takes_layer_norm_statistics_and_softmax_in_float32():
    model, params = make(dtype=jnp.bfloat16)
    program = jax.make_jaxpr(lambda p: model.apply({"params": p}, IMAGE))(params)
    for name in ("rsqrt", "exp"):
        found = [e for e in _equations(program.jaxpr) if e.primitive.name == name]
        assert found
        assert {e.invars[0].aval.dtype for e in found} == {jnp.dtype("float32")}


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


# Heads and tokens


def test_map_head_is_big_visions_attention_pooling():
    _, params = make(classifier="map")
    assert set(params["MAPHead_0"]) == {
        "probe",
        "MultiHeadDotProductAttention_0",
        "LayerNorm_0",
        "MlpBlock_0",
    }
    tokens = jax.random.normal(jax.random.key(2), (2, 6, 16))
    head = layers.MAPHead(mlp_dim=10, num_heads=2)
    pooled = head.apply({"params": params["MAPHead_0"]}, tokens)

    theirs = nn.MultiHeadDotProductAttention(num_heads=2)
    p = params["MAPHead_0"]
    probe = jnp.tile(p["probe"], (2, 1, 1))
    x = theirs.apply({"params": p["MultiHeadDotProductAttention_0"]}, probe, tokens)
    y = nn.LayerNorm().apply({"params": p["LayerNorm_0"]}, x)
    y = layers.MlpBlock(10).apply({"params": p["MlpBlock_0"]}, y, train=False)
    np.testing.assert_allclose(pooled, (x + y)[:, 0], atol=1e-5)


def test_map_pooling_does_not_see_the_order_of_tokens():
    model, params = make(classifier="map", position="none")
    flipped = jnp.concatenate([IMAGE[:, 16:], IMAGE[:, :16]], axis=1)
    outputs, expected = (run(model, params, x) for x in (flipped, IMAGE))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_registers_are_attended_to_and_never_returned():
    model, params = make(classifier="unpooled", num_registers=4)
    assert params["Transformer"]["registers"].shape == (1, 4, 16)
    outputs = run(model, params)
    assert outputs.shape == (4, 6, 3)  # 2×3 patches and nothing else
    moved = jax.tree.map(lambda p: p, params)
    moved["Transformer"]["registers"] = -2 * params["Transformer"]["registers"]
    assert float(jnp.abs(run(model, moved) - outputs).max()) > 1e-3


def test_registers_have_no_position():
    _, params = make(num_registers=4)
    assert params["Transformer"]["posembed_input"]["pos_embedding"].shape[1] == 1 + 6


# Inputs


@pytest.mark.parametrize("channels", [1, 4, 13])
def test_any_number_of_channels(channels):
    images = jnp.ones((2, 32, 32, channels))
    model, params = make(images=images)
    assert params["embedding"]["kernel"].shape == (16, 16, channels, 16)
    assert run(model, params, images).shape == (2, 3)


def test_non_square_images_and_patches():
    images = jax.random.normal(jax.random.key(0), (2, 32, 60, 3))
    model, params = make(images=images, patches={"size": (16, 12)}, classifier="unpooled")
    assert run(model, params, images).shape == (2, 2 * 5, 3)


def test_image_that_does_not_divide_into_patches_is_refused_with_a_size_that_does():
    with pytest.raises(ValueError, match=r"250×200 .* 16×16 patches; .* 256×192"):
        make(images=jnp.ones((1, 250, 200, 3)))


def test_images_without_a_batch_axis_are_refused():
    with pytest.raises(ValueError, match=r"\(batch, height, width, channels\), not \(32, 48, 3\)"):
        make(images=jnp.ones((32, 48, 3)))


# The patch embedding


def test_patch_embedding_is_a_convolution_whose_stride_is_its_kernel():
    embed = layers.PatchEmbedding(features=5, patch_size=(16, 8))
    params = random_params(embed, IMAGE)
    convolution = nn.Conv(5, (16, 8), strides=(16, 8), padding="VALID")
    outputs = embed.apply({"params": params}, IMAGE)
    np.testing.assert_allclose(outputs, convolution.apply({"params": params}, IMAGE), atol=1e-5)


def test_patch_embedding_is_cutting_and_a_linear_map():
    embed = layers.PatchEmbedding(features=5, patch_size=(16, 8))
    params = random_params(embed, IMAGE)
    outputs = embed.apply({"params": params}, IMAGE)
    patch = IMAGE[1, 16:32, 24:32].reshape(-1)  # row 1, column 3
    expected = patch @ params["kernel"].reshape(-1, 5) + params["bias"]
    np.testing.assert_allclose(outputs[1, 1, 3], expected, atol=1e-5)


def test_patch_norm_normalises_pixels_before_and_vectors_after():
    embed = layers.PatchEmbedding(features=6, patch_size=(16, 16), norm=True)
    params = embed.init(jax.random.key(0), IMAGE)["params"]
    outputs = embed.apply({"params": params}, IMAGE)
    np.testing.assert_allclose(outputs.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(-1), 1, atol=1e-2)
    brighter = embed.apply({"params": params}, 3 * IMAGE + 5)
    np.testing.assert_allclose(outputs, brighter, atol=1e-4)


def test_patch_norm_is_a_field_of_the_model():
    _, params = make(patch_norm=True)
    assert set(params["embedding"]) == {"kernel", "bias", "LayerNorm_0", "LayerNorm_1"}


# The block


def test_qkv_bias_off_leaves_only_the_output_bias():
    _, params = make(qkv_bias=False)
    block = params["Transformer"]["encoderblock_0"]["MultiHeadDotProductAttention_0"]
    assert {name: set(p) for name, p in block.items()} == {
        "query": {"kernel"},
        "key": {"kernel"},
        "value": {"kernel"},
        "out": {"kernel", "bias"},
    }


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_attention_module_equals_linens(qkv_bias):
    x = jax.random.normal(jax.random.key(0), (2, 5, 16))
    ours = layers.MultiHeadDotProductAttention(num_heads=4, qkv_bias=qkv_bias)
    theirs = nn.MultiHeadDotProductAttention(num_heads=4)
    params = theirs.init(jax.random.key(1), x, x)["params"]
    if not qkv_bias:
        for name in ("query", "key", "value"):
            np.testing.assert_array_equal(params[name].pop("bias"), 0)
    outputs = ours.apply({"params": params}, x, train=False)
    zeros = {n: {"bias": jnp.zeros((4, 4)), **p} for n, p in params.items() if n != "out"}
    expected = theirs.apply({"params": {**params, **zeros}}, x, x)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_head_dim_may_differ_from_width_over_heads():
    _, params = make(transformer={"head_dim": 24})
    block = params["Transformer"]["encoderblock_0"]["MultiHeadDotProductAttention_0"]
    assert block["query"]["kernel"].shape == (16, 2, 24)
    assert block["out"]["kernel"].shape == (2, 24, 16)


def test_gelu_is_tanh_by_default_and_erf_on_request():
    x = jnp.linspace(-3, 3, 50)[None, None]
    identity = {"kernel": jnp.eye(50), "bias": jnp.zeros(50)}
    params = {"Dense_0": identity, "Dense_1": identity}

    def mlp(**fields):
        return layers.MlpBlock(50, **fields).apply({"params": params}, x, train=False)

    np.testing.assert_allclose(mlp(), jax.nn.gelu(x, approximate=True), atol=1e-6)
    np.testing.assert_allclose(mlp(gelu="erf"), jax.nn.gelu(x, approximate=False), atol=1e-6)
    assert float(jnp.abs(mlp() - mlp(gelu="erf")).max()) > 1e-4


def test_norm_eps_reaches_every_layer_norm():
    model, params = make(norm_eps=1e3, patch_norm=True, classifier="map")
    program = str(jax.make_jaxpr(lambda p: model.apply({"params": p}, IMAGE))(params))
    norms = 2 * 2 + 1 + 2 + 1  # blocks, encoder_norm, patch norms, MAP head
    assert program.count("1000.0:f32[]") == norms
    assert "e-06" not in program


def test_stochastic_depth_rises_linearly_and_skips_whole_examples():
    model, params = make(transformer={"stochastic_depth_rate": 0.5})
    images = jnp.tile(IMAGE[:1], (512, 1, 1, 1))
    outputs, state = model.apply(
        {"params": params},
        images,
        train=True,
        rngs={"dropout": jax.random.key(0)},
        mutable=["intermediates"],
    )
    blocks = state["intermediates"]["Transformer"]
    first, second = (blocks[f"encoderblock_{i}"]["block"] for i in range(2))
    np.testing.assert_allclose(first, jnp.broadcast_to(first[:1], first.shape), atol=1e-6)
    skipped_both = jnp.isclose(second, first, atol=1e-7).all(axis=(1, 2)).mean()
    assert abs(float(skipped_both) - 0.25) < 0.06  # half × half of 512: three deviations are 0.057
    expected = run(model, params, IMAGE[:1], train=False)
    assert float(jnp.abs(outputs - expected).max()) > 1e-3


def test_stochastic_depth_works_under_scan():
    model, params = make(scan=True, transformer={"stochastic_depth_rate": 0.5})
    rngs = {"dropout": jax.random.key(0)}
    images = jnp.tile(IMAGE[:1], (64, 1, 1, 1))
    outputs = run(model, params, images, train=True, rngs=rngs)
    assert len(np.unique(np.round(outputs[:, 0], 4))) == 4  # each half of the last block, or not


def test_attention_dropout_drops_in_the_model():
    model, params = make(transformer={"attention_dropout_rate": 0.5})
    rngs = {"dropout": jax.random.key(0)}
    a = run(model, params, IMAGE, train=True, rngs=rngs)
    b = run(model, params, IMAGE, train=False)
    assert float(jnp.abs(a - b).max()) > 1e-3
