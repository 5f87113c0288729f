"""Batches on the device: copied while it computes, one batch ahead of the step that needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from opabinia.contracts import Batch, GlobalBatch, Loader
from opabinia.engine.loop.layer_outputs import nested_tensors
from opabinia.runtime.device import move_tensor
from opabinia.runtime.progress import PhaseBar

T = TypeVar("T")

DeviceTransform = Callable[[Batch, GlobalBatch], Batch]
"""Transforms a batch after it has been copied to the device."""


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on ``device``; see :func:`opabinia.runtime.device.move_tensor`."""
    return batch if device.type == "cpu" else _move(batch, device)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return move_tensor(value, device)
    if isinstance(value, dict):
        return {key: _move(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_move(item, device) for item in value)
    return value


class PrefetchedBatch(NamedTuple):
    """A batch that is ready for a step.

    Attributes:
        global_batch: the global batch of the plan that it belongs to.
        loaded: as the loader gave it, on the host.
        batch: on the device, transformed.
        seconds: time that reading it took.
    """

    global_batch: GlobalBatch
    loaded: Batch
    batch: Batch
    seconds: float


def prefetch(
    loader: Loader, device: torch.device, transform: DeviceTransform | None = None, start: int = 0
) -> Iterator[PrefetchedBatch]:
    """Yield the batches of a loader on ``device``, from step ``start`` on.

    On CUDA the next batch is requested before one is yielded, and copied and transformed on a CUDA stream of its own.
    An error of the next batch is raised when it is its turn.
    """

    def prepare(cuda_stream: AbstractContextManager[object]) -> Iterator[PrefetchedBatch]:
        for global_batch, loaded in loader.iterate(start):
            with cuda_stream:
                batch = to_device(loaded, device)
                batch = batch if transform is None else transform(batch, global_batch)
            yield PrefetchedBatch(global_batch, loaded, batch, loader.seconds)

    if device.type != "cuda":
        yield from prepare(nullcontext())
        return
    cuda_stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for item, copied in lookahead(
        (item, cuda_stream.record_event()) for item in prepare(torch.cuda.stream(cuda_stream))
    ):
        # The GPU waits for the copy here, not the host.
        compute_stream = torch.cuda.current_stream(device)
        compute_stream.wait_event(copied)
        for tensor in nested_tensors(item.batch):
            if tensor.is_cuda:  # its memory belongs to the other stream: keep it until this one has finished with it
                tensor.record_stream(compute_stream)
        yield item


def with_bar(batches: Iterable[PrefetchedBatch], bar: PhaseBar) -> Iterator[PrefetchedBatch]:
    """Yield the batches of a dataset. The bar, which counts its samples, moves when the next batch is requested."""
    for item in batches:
        yield item
        bar.update(item.global_batch.first + item.global_batch.count)


def lookahead(items: Iterator[T]) -> Iterator[T]:
    """Yield each item after the next one has been taken from ``items``; an error is raised at its turn, not before.

    Example: ``lookahead(map(launch, batches))`` has launched the second batch when it yields the first.
    """
    end: Any = object()
    current = next(items, end)
    while current is not end:
        error: Exception | None = None
        try:
            following = next(items, end)
        except Exception as caught:
            error = caught
        yield current
        if error is not None:
            raise error
        current = following


class DeviceLoader:
    """A loader (:class:`opabinia.contracts.Loader`) whose batches are on the device.

    Args:
        loader: reads them on the host.
        device: to copy them to.
        transform: applied on the device.

    Attributes:
        seconds: time that reading the last yielded batch took.
    """

    def __init__(self, loader: Loader, device: torch.device, transform: DeviceTransform | None = None) -> None:
        self._loader, self._device, self._transform = loader, device, transform
        self.seconds = 0.0

    @property
    def num_skipped(self) -> int:
        """Number of samples that could not be read so far."""
        return self._loader.num_skipped

    def iterate(self, start: int = 0) -> Iterator[tuple[GlobalBatch, Batch]]:
        """Yield global batches and their batches from step ``start`` on."""
        for item in prefetch(self._loader, self._device, self._transform, start):
            self.seconds = item.seconds
            yield item.global_batch, item.batch

    def time_transform(self) -> float:
        """Return the seconds that the transform of the first batch takes on the device. Ends a running iteration."""
        if self._transform is None:
            return 0.0
        wait: Callable[[], None] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
        global_batch, loaded = next(iter(self._loader.iterate(0)))
        seconds = []
        for _ in range(3):
            batch = dict(to_device(loaded, self._device))
            wait()
            started = time.perf_counter()
            self._transform(batch, global_batch)
            wait()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    def close(self) -> None:
        """Close the loader."""
        self._loader.close()


def to_host(tensors: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Start copying tensors to the host; the returned function waits for these copies, not for later GPU work."""
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return lambda: {name: tensor.cpu() for name, tensor in tensors.items()}
    copies = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach(), non_blocking=True)
        for name, tensor in tensors.items()
    }
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> dict[str, Tensor]:
        done.synchronize()
        return copies

    return wait
