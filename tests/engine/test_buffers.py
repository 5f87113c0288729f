"""Host buffers: copies are in the same memory every time, for tensors of any layout."""

from collections.abc import Callable
from mmap import mmap

import pytest
import torch
from torch import Tensor, nn

from opabinia.engine.checkpointing import buffers
from opabinia.engine.checkpointing.buffers import HostBuffers

ORIGINALS: dict[str, Callable[[], Tensor]] = {
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a slice": lambda: torch.arange(10.0)[3:7],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "a single number": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0, 3),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "float8": lambda: torch.randn(5).to(torch.float8_e4m3fn),
    "complex": lambda: torch.randn(5, dtype=torch.complex64),
    "booleans": lambda: torch.tensor([True, False]),
    "unsigned": lambda: torch.arange(5).to(torch.uint16),
    "a parameter": lambda: nn.Parameter(torch.randn(3)),
}


def raw(tensor: Tensor) -> list[int]:
    numbers: list[int] = tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
    return numbers


@pytest.mark.parametrize("make", ORIGINALS.values(), ids=ORIGINALS.keys())
def test_a_copy_has_the_same_bits_and_is_reused(make: Callable[[], Tensor]) -> None:
    buffers, original = HostBuffers(), make()
    copy = buffers.copy({"model": {"x": original}})["model"]["x"]
    assert (copy.shape, copy.dtype, raw(copy)) == (original.shape, original.dtype, raw(original))
    assert copy.is_contiguous() and not copy.requires_grad
    assert copy.untyped_storage().nbytes() == copy.nbytes, "it is written without being copied again"
    second_copy = buffers.copy({"model": {"x": make()}})["model"]["x"]
    assert second_copy.data_ptr() == copy.data_ptr()


def test_tied_tensors_are_copied_once_and_stay_tied() -> None:
    tensor = torch.randn(4)
    copies = HostBuffers().copy({"model": {"a": tensor, "b": tensor, "c": tensor[:2]}, "ema": {"a": tensor}})
    assert copies["model"]["a"] is copies["model"]["b"]
    addresses = {copies[file][name].data_ptr() for file, name in (("model", "a"), ("model", "c"), ("ema", "a"))}
    assert len(addresses) == 3


def test_another_shape_or_type_gets_another_buffer_and_the_old_one_is_freed() -> None:
    buffers = HostBuffers()
    for tensor in (torch.ones(3), torch.ones(4), torch.ones(4, dtype=torch.int64), torch.ones(2, 2)):
        assert torch.equal(buffers.copy({"model": {"x": tensor}})["model"]["x"], tensor)
        assert len(buffers._buffers) == 1


class OnGpu(Tensor):
    """Claims to be on a GPU."""

    is_cuda = True


def test_copies_from_a_gpu_are_in_the_memory_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in pinned memory, which torch would round up to a power of two and lock for the whole run."""
    sizes = []
    monkeypatch.setattr(buffers, "mmap", lambda file, size: (sizes.append(size), mmap(file, size))[1])
    original = torch.randn(3, 5)
    copy = HostBuffers().copy({"model": {"x": original.as_subclass(OnGpu)}})["model"]["x"]
    assert sizes == [60] and torch.equal(copy, original)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_from_a_gpu_are_complete() -> None:
    buffers = HostBuffers()
    tensor = torch.randn(64, 3, 512, 512, device="cuda").to(memory_format=torch.channels_last)
    addresses = set()
    for _ in range(3):
        copy = buffers.copy({"model": {"x": tensor, "tied": tensor, "on the host": torch.ones(3)}})["model"]
        assert not copy["x"].is_pinned() and copy["x"] is copy["tied"] and copy["x"].is_contiguous()
        assert torch.equal(copy["x"], tensor.cpu())
        addresses.add(copy["x"].data_ptr())
        tensor += 1
    assert len(addresses) == 1
