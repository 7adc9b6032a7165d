"""Batches onto devices, ahead of the step that needs them."""

import functools
import queue
import sys
import threading
from collections.abc import Generator, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from vit_jax.preprocessing import Preprocessing

Batch = dict[str, jax.Array]
DeviceBatches = Generator[Batch, None, None]


def prefetch_to_device(
    batches: Iterable[Mapping[str, np.ndarray]],
    size: int = 2,
    *,
    sharding: jax.sharding.Sharding | None = None,
    preprocessing: Preprocessing | None = None,
) -> DeviceBatches:
    """Keeps `size` batches waiting on the device, read and copied by a thread of its own.

    With `sharding`, each process gives its share of a global array. With `preprocessing`, 8-bit
    images are normalised after the copy. `close()` ends the thread and closes what it reads from.
    """
    source = iter(batches)
    ready: queue.Queue[Batch | Exception | None] = queue.Queue()
    free = threading.Semaphore(max(1, size))
    closing = threading.Event()

    def hand_over(item: Batch | Exception | None) -> None:
        free.acquire()
        ready.put(item)

    def read_ahead() -> None:
        try:
            for batch in source:
                hand_over(_move(batch, sharding, preprocessing))
                if closing.is_set():
                    return
            hand_over(None)
        except Exception as error:
            hand_over(error)

    thread = threading.Thread(target=read_ahead, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            free.release()
            yield item
    finally:
        closing.set()
        free.release()  # wakes a thread that waits to hand over
        if not sys.is_finalizing():  # by then Python has ended the thread, and to join it hangs
            thread.join()
            if close := getattr(source, "close", None):
                close()


@functools.partial(jax.jit, static_argnames=("mean", "std", "dtype"))
def normalize(
    images: jax.Array,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: DTypeLike = jnp.float32,
) -> jax.Array:
    """8-bit images, `… c`, to `(value / 255 - mean) / std`, on the device."""
    scale = 1 / (255 * np.asarray(std))
    shift = -np.asarray(mean) / np.asarray(std)
    return (images * scale.astype(np.float32) + shift.astype(np.float32)).astype(dtype)


def _move(
    batch: Mapping[str, np.ndarray],
    sharding: jax.sharding.Sharding | None,
    preprocessing: Preprocessing | None,
) -> Batch:
    if sharding is None:
        moved = {name: jax.device_put(array) for name, array in batch.items()}
    else:
        moved = {
            name: jax.make_array_from_process_local_data(sharding, array)
            for name, array in batch.items()
        }
    if preprocessing is not None and moved["image"].dtype == jnp.uint8:
        moved["image"] = normalize(moved["image"], preprocessing.mean, preprocessing.std)
    return moved
