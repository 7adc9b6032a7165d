"""Batches onto devices, ahead of the step that needs them."""

import functools
import queue
import sys
import threading
from collections.abc import Generator, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

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
    ready: queue.Queue[Batch | Exception | None] = queue.Queue(max(1, size))
    closing = threading.Event()
    put = jax.device_put
    if sharding is not None:
        put = functools.partial(jax.make_array_from_process_local_data, sharding)

    def move(batch: Mapping[str, np.ndarray]) -> Batch:
        moved = {name: put(array) for name, array in batch.items()}
        if preprocessing is not None and moved["image"].dtype == jnp.uint8:
            moved["image"] = normalize(moved["image"], preprocessing.mean, preprocessing.std)
        return moved

    def read_ahead() -> None:
        try:
            for batch in source:
                ready.put(move(batch))
                if closing.is_set():
                    return
            ready.put(None)
        except Exception as error:
            ready.put(error)

    thread = threading.Thread(target=read_ahead, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        closing.set()
        if not sys.is_finalizing():  # by then Python has ended the thread, and to join it hangs
            while not ready.empty():  # wakes the thread if it waits to put one more
                ready.get_nowait()
            thread.join()
            if close := getattr(source, "close", None):
                close()


@functools.partial(jax.jit, static_argnames=("mean", "std"))
def normalize(images: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]) -> jax.Array:
    """8-bit images, `… c`, to float32 `(value / 255 - mean) / std`, on the device."""
    scale = 1 / (255 * np.asarray(std))
    shift = -np.asarray(mean) / np.asarray(std)
    return images * scale.astype(np.float32) + shift.astype(np.float32)
