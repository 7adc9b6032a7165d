"""Batches onto devices, ahead of the step that needs them."""

import contextlib
import functools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np

Batch = dict[str, jax.Array]


def prefetch_to_device(
    batches: Iterator[dict[str, np.ndarray]],
    size: int = 2,
    *,
    sharding: jax.sharding.Sharding | None = None,
    preprocessing: dict[str, Any] | None = None,
) -> "DeviceBatches":
    """An iterator that keeps `size` batches on the device, read and copied by a thread of its own.

    With `sharding`, each process gives its share of a global array. With `preprocessing` (as
    `data.preprocessing` returns it), 8-bit images are normalised after the copy.
    """

    def move(batch: dict[str, np.ndarray]) -> Batch:
        moved = {name: _put(array, sharding) for name, array in batch.items()}
        if preprocessing and moved["image"].dtype == jnp.uint8:
            mean, std = tuple(preprocessing["mean"]), tuple(preprocessing["std"])
            moved["image"] = normalize(moved["image"], mean, std)
        return moved

    return DeviceBatches(iter(batches), move, size)


@functools.partial(jax.jit, static_argnames=("mean", "std", "dtype"))
def normalize(
    images: jax.Array, mean: tuple[float, ...], std: tuple[float, ...], dtype=jnp.float32
) -> jax.Array:
    """8-bit images, `… c`, to `(value / 255 - mean) / std`, on the device."""
    scale = 1 / (255 * np.asarray(std))
    shift = -np.asarray(mean) / np.asarray(std)
    return (images * scale.astype(np.float32) + shift.astype(np.float32)).astype(dtype)


class DeviceBatches(grain.DatasetIterator):
    """Reads ahead in a thread. Its state is that of the batches handed out, not of those waiting.

    Grain's own prefetching iterator would do, but complains when a program ends before it does.
    """

    def __init__(self, batches, move, size: int):
        super().__init__()
        self._batches, self._move, self._size = batches, move, size
        self._state = self._source_state()
        self._thread: threading.Thread | None = None

    def __next__(self) -> Batch:
        if self._thread is None:
            self._waiting = queue.Queue(maxsize=max(1, self._size))
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._read_ahead, daemon=True)
            self._thread.start()
        batch, state, error = self._waiting.get()
        if error is not None:
            self._halt()
            raise error
        self._state = state
        return batch

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._halt()
        self._batches.set_state(state)
        self._state = state

    def close(self) -> None:
        """Ends the thread and what it reads from."""
        self._halt()
        if hasattr(self._batches, "close"):
            self._batches.close()

    def _read_ahead(self) -> None:
        try:
            while not self._stop.is_set():
                batch = self._move(next(self._batches))
                self._hand_over((batch, self._source_state(), None))
        except Exception as error:  # StopIteration too: whoever waits for a batch gets it
            self._hand_over((None, None, error))

    def _hand_over(self, item: tuple) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._waiting.put(item, timeout=0.1)
                return

    def _halt(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _source_state(self) -> dict[str, Any]:
        return self._batches.get_state() if hasattr(self._batches, "get_state") else {}


def _put(array: np.ndarray, sharding: jax.sharding.Sharding | None) -> jax.Array:
    if sharding is None:
        return jax.device_put(array)
    return jax.make_array_from_process_local_data(sharding, array)
