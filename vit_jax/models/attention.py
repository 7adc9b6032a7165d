"""How attention is computed, and which kernel computes it.

Every attention of every model goes through `dot_product_attention`. All kernels compute the same
function; `choose_kernel` says which one a backend gets. Softmax is always taken in float32.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from vit_jax.models import cpu
from vit_jax.models.sharding import BATCH, TENSOR, automatic_mesh, target_platform

# Sequences at least this long get a kernel that never holds the whole n × n matrix.
LONG_SEQUENCE = 1024
QUERY_CHUNK = 256
Dropout = tuple[float, Array]  # rate and key


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    bias: Array | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    kernel: str = "auto",
) -> Array:
    """Softmax(query · keyᵀ / √d + bias) · value, each `b n h d`; bias is `1|b h n n`.

    `kernel` is 'auto' or a name in KERNELS. Dropout (with a `dropout_rng`) applies to the weights,
    and only the XLA kernel can do it.
    """
    if dropout_rng is None or not dropout_rate:
        dropout_rate, dropout_rng = 0.0, None
    if kernel == "auto":
        kernel = choose_kernel(
            target_platform(), query.dtype, query.shape, key.shape, bias, dropout_rng
        )
    if kernel not in KERNELS:
        raise ValueError(f"No attention kernel {kernel!r}; choose auto, {', '.join(KERNELS)}.")
    if dropout_rng is not None:
        if kernel != "xla":
            raise ValueError(
                f"The attention kernel {kernel!r} cannot drop attention weights; use kernel 'xla' "
                "or 'auto', or set attention_dropout_rate to 0."
            )
        return _xla(query, key, value, bias, (dropout_rate, dropout_rng))
    return KERNELS[kernel](query, key, value, bias)


def choose_kernel(
    backend: str,
    dtype: jnp.dtype,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    bias: Array | None = None,
    dropout_rng: Array | None = None,
) -> str:
    """The kernel that 'auto' stands for: a pure function of the backend and the shapes."""
    num_queries, num_keys, head_dim = query_shape[1], key_shape[1], query_shape[3]
    long = num_keys >= LONG_SEQUENCE and num_queries == num_keys
    if dropout_rng is not None:
        return "xla"
    if backend == "gpu" and dtype in (jnp.bfloat16, jnp.float16) and num_queries > 1:
        # cuDNN flash attention: half precision, heads of a multiple of 8 up to 128.
        return "cudnn" if head_dim % 8 == 0 and head_dim <= 128 else "xla"
    if backend == "tpu" and long and bias is None:
        return "tpu_flash"
    return "chunked" if long else "xla"


def attention_weights(query: Array, key: Array, bias: Array | None = None) -> Array:
    """The float32 weights `b h n n` that every kernel applies, for code that looks at them."""
    scale = query.shape[-1] ** -0.5
    logits = jnp.einsum("bqhd,bkhd->bhqk", query * scale, key, preferred_element_type=jnp.float32)
    return jax.nn.softmax(logits if bias is None else logits + bias, axis=-1)


def _xla(
    query: Array, key: Array, value: Array, bias: Array | None, dropout: Dropout | None = None
) -> Array:
    # Matmuls over (b, h, n, d): 1.3 times faster on XLA:CPU than the einsum over (b, n, h, d).
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
    if bias is None and dropout is None and cpu.on_one_cpu():
        out = cpu.attend_in_parts(_attend, q, k, v)
    else:
        out = _attend(q, k, v, bias, dropout)
    return out.transpose(0, 2, 1, 3)


def _attend(
    q: Array, k: Array, v: Array, bias: Array | None = None, dropout: Dropout | None = None
) -> Array:  # each b h n d
    q = q * q.shape[-1] ** -0.5
    logits = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(logits if bias is None else logits + bias, axis=-1)
    if dropout is not None:
        rate, rng = dropout
        keep = jax.random.bernoulli(rng, 1.0 - rate, weights.shape)
        weights = jnp.where(keep, weights / (1.0 - rate), 0.0)
    return jnp.matmul(weights.astype(v.dtype), v)


def _chunked(query: Array, key: Array, value: Array, bias: Array | None) -> Array:
    """A few hundred queries at a time, so that memory is linear in n, backwards too."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
    b, h, n, d = q.shape
    chunk = min(QUERY_CHUNK, n)
    num_chunks = -(-n // chunk)
    pad = num_chunks * chunk - n

    q = jnp.pad(q, ((0, 0), (0, 0), (0, pad), (0, 0)))
    queries = q.reshape(b, h, num_chunks, chunk, d).transpose(2, 0, 1, 3, 4)
    biases = None
    if bias is not None:
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, pad), (0, 0)))
        biases = bias.reshape(*bias.shape[:2], num_chunks, chunk, bias.shape[-1])
        biases = biases.transpose(2, 0, 1, 3, 4)

    def attend(chunk: tuple[Array, Array | None]) -> Array:
        return _attend(chunk[0], k, v, chunk[1])

    out = jax.lax.map(jax.checkpoint(attend), (queries, biases))  # chunks b h chunk d
    out = out.transpose(1, 2, 0, 3, 4).reshape(b, h, num_chunks * chunk, d)
    return out[:, :, :n].transpose(0, 2, 1, 3)


def _cudnn(query: Array, key: Array, value: Array, bias: Array | None) -> Array:
    if bias is not None:
        bias = bias.astype(query.dtype)
    return jax.nn.dot_product_attention(query, key, value, bias, implementation="cudnn")


def _tpu_flash(query: Array, key: Array, value: Array, bias: Array | None) -> Array:
    """The Pallas flash kernel. It needs whole blocks of 128, so tokens are padded and masked."""
    from jax.experimental.pallas.ops.tpu import flash_attention as flash

    if bias is not None:
        raise ValueError(
            "The tpu_flash kernel takes no attention bias; use kernel 'auto' or 'xla'."
        )
    b, n, _, d = query.shape
    pad = -n % flash.MIN_BLOCK_SIZE
    q, k, v = (
        jnp.pad(x.transpose(0, 2, 1, 3), ((0, 0), (0, 0), (0, pad), (0, 0)))
        for x in (query, key, value)
    )
    real = jnp.broadcast_to(jnp.arange(n + pad) < n, (b, n + pad)).astype(jnp.int32)
    segments = flash.SegmentIds(q=real, kv=real)
    attend = functools.partial(flash.flash_attention, sm_scale=d**-0.5)
    out = _per_device(attend)(q, k, v, None, segments)
    return out[:, :, :n].transpose(0, 2, 1, 3)


def _per_device(attend: Callable[..., Array]) -> Callable[..., Array]:
    """Runs a kernel that XLA cannot partition on each device's own examples and heads."""
    mesh = automatic_mesh()
    if mesh is None:
        return attend
    heads = PartitionSpec(BATCH, TENSOR)
    specs = (heads, heads, heads, None, PartitionSpec(BATCH))
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)


KERNELS: dict[str, Callable[[Array, Array, Array, Array | None], Array]] = {
    "xla": _xla,
    "chunked": _chunked,
    "cudnn": _cudnn,
    "tpu_flash": _tpu_flash,
}
