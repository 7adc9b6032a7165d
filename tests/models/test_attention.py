"""One function computes attention, and every kernel behind it computes the same."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from vit_jax.models import attention, cpu

LONG = (1, attention.LONG_SEQUENCE, 2, 16)


def inputs(n=300, heads=2, head_dim=16, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(key, (2, n, heads, head_dim), dtype) for key in keys[:3])
    return q, k, v, jax.random.normal(keys[3], (1, heads, n, n))


def plain(q, k, v, bias=None):
    """The definition, one query of one head of one example at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for b, n, h in np.ndindex(*q.shape[:3]):
        logits = k[b, :, h] @ q[b, n, h] / np.sqrt(q.shape[-1])
        if bias is not None:
            logits = logits + np.asarray(bias, np.float64)[0, h, n]
        weights = np.exp(logits - logits.max())
        out[b, n, h] = weights / weights.sum() @ v[b, :, h]
    return out


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kernel", ["xla", "chunked"])
def test_kernel_computes_the_definition(kernel, with_bias):
    q, k, v, bias = inputs()
    bias = bias if with_bias else None
    out = attention.dot_product_attention(q, k, v, bias=bias, kernel=kernel)
    np.testing.assert_allclose(out, plain(q, k, v, bias), atol=2e-6)  # float32 sums of 300 terms


@pytest.mark.parametrize("num_parts", [1, 3, 5])  # of four heads
def test_parts_side_by_side_on_a_cpu_compute_the_definition(num_parts, monkeypatch):
    q, k, v, _ = inputs(n=20, heads=4)
    monkeypatch.setattr(cpu, "PARTS", num_parts)
    monkeypatch.setattr(cpu, "PART_SIZE", 1)
    attend = mock.Mock(wraps=attention._attend)
    monkeypatch.setattr(attention, "_attend", attend)
    out = attention.dot_product_attention(q, k, v)
    np.testing.assert_allclose(out, plain(q, k, v), atol=2e-6)
    assert attend.call_count == min(num_parts, 4)


@pytest.mark.parametrize("with_bias", [False, True])
def test_chunked_gradients_equal_the_plain_ones(with_bias):
    q, k, v, bias = inputs()

    def loss(kernel):
        def f(q, k, v, bias):
            bias = bias if with_bias else None
            out = attention.dot_product_attention(q, k, v, bias=bias, kernel=kernel)
            return (out**2).sum()

        return jax.grad(f, argnums=(0, 1, 2, 3))(q, k, v, bias)

    for chunked, whole in zip(loss("chunked"), loss("xla"), strict=True):
        np.testing.assert_allclose(chunked, whole, atol=1e-5)


def test_tpu_kernel_computes_the_definition_when_interpreted():
    q, k, v, _ = inputs(n=197, heads=1, head_dim=128)  # 197 tokens: padded to whole blocks inside
    with pltpu.force_tpu_interpret_mode():
        out = attention.dot_product_attention(q, k, v, kernel="tpu_flash")
    np.testing.assert_allclose(out, plain(q, k, v), atol=2e-6)


@pytest.mark.parametrize(
    ("backend", "dtype", "shape", "kernel"),
    [
        ("cpu", jnp.float32, (8, 197, 12, 64), "xla"),
        ("cpu", jnp.float32, LONG, "chunked"),
        ("gpu", jnp.bfloat16, (8, 197, 12, 64), "cudnn"),
        ("gpu", jnp.bfloat16, (8, 197, 12, 30), "xla"),  # cuDNN wants heads of a multiple of 8
        ("gpu", jnp.float32, (8, 197, 12, 64), "xla"),  # and half precision
        ("tpu", jnp.bfloat16, (8, 197, 12, 64), "xla"),  # short: XLA fuses it well
        ("tpu", jnp.bfloat16, LONG, "tpu_flash"),
    ],
)
def test_auto_picks_the_kernel_by_backend(backend, dtype, shape, kernel):
    assert attention.choose_kernel(backend, jnp.dtype(dtype), shape, shape) == kernel


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_auto_never_picks_a_kernel_that_cannot_drop_when_attention_drops(backend):
    key = jax.random.key(0)
    shape, dtype = LONG, jnp.dtype(jnp.bfloat16)
    assert attention.choose_kernel(backend, dtype, shape, shape, dropout_rng=key) == "xla"


def test_attention_dropout_drops_weights_and_keeps_their_mean():
    n = 64
    q = k = jnp.zeros((1, n, 1, n))
    identity = jnp.eye(n)[None, :, None, :]  # so that the output is the weights themselves
    weights = attention.dot_product_attention(
        q, k, identity, dropout_rate=0.25, dropout_rng=jax.random.key(0)
    )
    dropped = float((weights == 0).mean())
    assert abs(dropped - 0.25) < 0.03  # 4096 draws: three standard deviations are 0.02
    np.testing.assert_allclose(weights[weights > 0], 1 / n / 0.75, rtol=1e-5)


def test_kernel_that_cannot_drop_says_so():
    q, k, v, _ = inputs(n=8)
    with pytest.raises(ValueError, match="'chunked' cannot drop"):
        attention.dot_product_attention(
            q, k, v, kernel="chunked", dropout_rate=0.1, dropout_rng=jax.random.key(0)
        )


def test_unknown_kernel_lists_the_known_ones():
    q, k, v, _ = inputs(n=8)
    with pytest.raises(ValueError, match=r"'flash'; choose auto, xla, chunked"):
        attention.dot_product_attention(q, k, v, kernel="flash")


def equations(jaxpr):
    """Those of a program, and of the programs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.parametrize("kernel", ["xla", "chunked"])
def test_softmax_stays_in_float32_under_bfloat16(kernel):
    q, k, v, _ = inputs(dtype=jnp.bfloat16)
    attend = functools.partial(attention.dot_product_attention, kernel=kernel)
    program = jax.make_jaxpr(attend)(q, k, v)
    dtypes = {"exp": set(), "reduce_sum": set()}
    for equation in equations(program.jaxpr):
        if equation.primitive.name in dtypes:
            dtypes[equation.primitive.name].add(equation.outvars[0].aval.dtype)
    assert dtypes == {"exp": {jnp.dtype("float32")}, "reduce_sum": {jnp.dtype("float32")}}


def test_weights_are_those_that_were_applied():
    q, k, v, bias = inputs(n=20)
    weights = attention.attention_weights(q, k, bias)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    out = attention.dot_product_attention(q, k, v, bias=bias)
    np.testing.assert_allclose(jnp.einsum("bhqk,bkhd->bqhd", weights, v), out, atol=1e-6)
