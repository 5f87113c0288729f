"""Batches on the device: copied beside what it computes, one ahead of the step that asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from opabinia.contracts import Batch, Loader, Row

T = TypeVar("T")

Finish = Callable[[Batch, Row], Batch]
"""What is left to be done to a batch when it is on the device."""


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on ``device``; copies from pinned memory do not block."""
    return batch if device.type == "cpu" else _moved(batch, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value) if type(value) in (list, tuple) else value
    return value


class Fed(NamedTuple):
    """A batch for a step.

    Attributes:
        row: which one.
        loaded: as the loader gave it.
        batch: on the device, finished.
        seconds: that reading it took.
    """

    row: Row
    loaded: Batch
    batch: Batch
    seconds: float


def prefetch(loader: Loader, device: torch.device, finish: Finish | None = None, start: int = 0) -> Iterator[Fed]:
    """Batches of a loader on ``device``, from step ``start`` on.

    On CUDA the next batch is asked for before one is handed over, and is copied and finished on a stream of its own.
    What went wrong with it is told when it is its turn.
    """
    batches = loader.iterate(start)
    if device.type != "cuda":
        for row, loaded in batches:
            yield Fed(row, loaded, _finished(to_device(loaded, device), row, finish), loader.seconds)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for one, copied in one_batch_ahead(_beside(batches, loader, device, finish, stream)):
        waiting = torch.cuda.current_stream(device)
        waiting.wait_event(copied)
        _used_on(one.batch, waiting)
        yield one


def _finished(batch: Batch, row: Row, finish: Finish | None) -> Batch:
    return batch if finish is None else finish(batch, row)


def _beside(
    batches: Iterator[tuple[Row, Batch]],
    loader: Loader,
    device: torch.device,
    finish: Finish | None,
    stream: torch.cuda.Stream,
) -> Iterator[tuple[Fed, torch.cuda.Event]]:
    """Batches copied on ``stream``, each with the event that says when it is there."""
    for row, loaded in batches:
        with torch.cuda.stream(stream):
            one = Fed(row, loaded, _finished(to_device(loaded, device), row, finish), loader.seconds)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        yield one, copied


def _used_on(value: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of tensors that were made on another stream until ``stream`` is done with them."""
    if isinstance(value, Tensor):
        if value.is_cuda:
            value.record_stream(stream)
    elif isinstance(value, Mapping):
        for one in value.values():
            _used_on(one, stream)
    elif isinstance(value, list | tuple):
        for one in value:
            _used_on(one, stream)


def one_batch_ahead(items: Iterator[T]) -> Iterator[T]:
    """Each item when the one behind it is taken already; an error comes at its turn, and not before.

    Example: ``one_batch_ahead(map(begin, pieces))`` has begun the second piece when it gives the first.
    """
    following = _next(items)
    while following is not None:
        now = following
        if now.error is not None:
            raise now.error
        following = _next(items)
        yield now.item


@dataclass(frozen=True)
class _Taken:
    item: Any = None
    error: Exception | None = None


def _next(items: Iterator[Any]) -> _Taken | None:
    try:
        return _Taken(next(items))
    except StopIteration:
        return None
    except Exception as error:
        return _Taken(error=error)


class Feeding:
    """A loader (:class:`opabinia.contracts.Loader`) whose batches are on the device.

    Args:
        loader: gives them on the host.
        device: where they go.
        finish: what is left to be done to them there.

    Attributes:
        seconds: that reading the batch took that was handed over last.
    """

    def __init__(self, loader: Loader, device: torch.device, finish: Finish | None = None) -> None:
        self._loader, self._device, self._finish = loader, device, finish
        self._seconds: float | None = None

    @property
    def passed_over(self) -> int:
        """Samples that could not be read so far."""
        return self._loader.passed_over

    @property
    def seconds(self) -> float:
        return self._loader.seconds if self._seconds is None else self._seconds

    def iterate(self, start: int = 0) -> Iterator[tuple[Row, Batch]]:
        """Rows and batches from step ``start`` on, as the loader gives them."""
        if self._device.type == "cpu" and self._finish is None:
            return self._loader.iterate(start)
        return self._iterate(start)

    def _iterate(self, start: int) -> Iterator[tuple[Row, Batch]]:
        for one in prefetch(self._loader, self._device, self._finish, start):
            self._seconds = one.seconds
            yield one.row, one.batch

    def finishing(self) -> float:
        """Seconds that it takes to do what is left to be done to the first batch, once it is on the device. Ends an
        iteration that is going on."""
        if self._finish is None:
            return 0.0
        row, loaded = next(iter(self._loader.iterate(0)))
        return min(_seconds(partial(self._finish, dict(to_device(loaded, self._device)), row)) for _ in range(3))

    def close(self) -> None:
        """End what reads."""
        self._loader.close()


def _seconds(call: Callable[[], Any]) -> float:
    """What a call takes, with all that it has begun on a GPU."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else _nothing
    wait()
    began = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - began


def _nothing() -> None: ...


def to_host(tensors: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Begin to copy tensors to the host; the call of what is returned waits for these copies, and for nothing behind
    them on the device."""
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return lambda: {name: tensor.cpu() for name, tensor in tensors.items()}
    copies = {name: _pinned(tensor) for name, tensor in tensors.items()}
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def arrived() -> dict[str, Tensor]:
        done.synchronize()
        return copies

    return arrived


def _pinned(tensor: Tensor) -> Tensor:
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return there.copy_(tensor.detach(), non_blocking=True)
