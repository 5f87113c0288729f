"""Values with large arrays, gathered by rank 0.

``torch.distributed.gather_object`` copies arrays into a message, pads messages to the size of the largest one and
copies the arrays out of them. Here the bytes of arrays are sent from where they are and received where they stay; only
the rest of a value is pickled, between ranks of one run.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from opabinia.runtime.processes import all_gather, collective_device, picklable, rank, world_size

T = TypeVar("T")

Bytes = NDArray[np.uint8]

_MESSAGE_SIZE = 2**24
"""Bytes that are sent at once, at most."""


def gather_to_rank_zero(make: Callable[[], T]) -> list[T] | None:
    """Call ``make`` on every rank and return the values of all ranks, in their order, on rank 0; None on other ranks.

    Arrays and tensors in the values may be large. Tensors arrive on the host.

    Raises:
        Exception: the error of the lowest rank on which ``make`` failed, on every rank.
    """
    if world_size() == 1:
        return [make()]
    values: list[Any] = []
    head: Bytes = np.empty(0, np.uint8)
    arrays: list[Bytes] = []
    error: Exception | None = None
    try:
        values.append(make())
        if rank():
            head, arrays = _pack(values.pop())
    except Exception as caught:
        error = picklable(caught)
    ranks: list[tuple[Exception | None, int]] = all_gather((error, head.size))
    for raised, _ in ranks:
        if raised is not None:
            raise raised
    if rank():
        _send([head])
        _send(arrays)
        return None
    for source, (_, size) in enumerate(ranks[1:], 1):
        (head,) = _receive([size], source)
        content, sizes = pickle.loads(head.tobytes())
        values.append(pickle.loads(content, buffers=_receive(sizes, source)))
    return values


def _send(parts: Sequence[Bytes]) -> None:
    for message in _messages(parts):
        dist.send(torch.from_numpy(np.concatenate(message)).to(collective_device()), 0)


def _receive(sizes: Sequence[int], source: int) -> list[Bytes]:
    parts = [np.empty(size, np.uint8) for size in sizes]
    for message in _messages(parts):
        ends = np.cumsum([piece.size for piece in message])
        received = torch.empty(int(ends[-1]), dtype=torch.uint8, device=collective_device())
        dist.recv(received, source)
        for piece, values in zip(message, np.split(received.cpu().numpy(), ends[:-1]), strict=True):
            piece[:] = values
    return parts


def _messages(parts: Sequence[Bytes]) -> Iterator[list[Bytes]]:
    """Yield the pieces (views) of the parts that make up each message, the same on both sides."""
    message: list[Bytes] = []
    room = _MESSAGE_SIZE
    for part in parts:
        rest = part
        while rest.size:
            message.append(rest[:room])
            rest, room = rest[room:], room - message[-1].size
            if not room:
                yield message
                message, room = [], _MESSAGE_SIZE
    if message:
        yield message


def _pack(value: Any) -> tuple[Bytes, list[Bytes]]:
    """Return the pickled value without its arrays, with their sizes, and the bytes of the arrays (views)."""
    buffers: list[pickle.PickleBuffer] = []
    content = BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(value)
    arrays = [np.asarray(buffer.raw()) for buffer in buffers]
    head = pickle.dumps((content.getvalue(), [array.size for array in arrays]))
    return np.frombuffer(head, np.uint8), arrays


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays of bytes."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided:
            return NotImplemented
        flat = value.detach().cpu().contiguous().flatten()
        return _unpack_tensor, (flat.view(torch.uint8).numpy(), value.dtype, tuple(value.shape))


def _unpack_tensor(flat: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(flat).view(dtype).view(shape)
