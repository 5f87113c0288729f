"""The pretended device refuses what CUDA refuses, and records where the host waits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, grid_sample

from tests.device.installation import Stream
from tests.device.program import on_device
from tests.device.records import RECORD

DEVICE = "cuda"


def waits() -> list[str]:
    """Return the kinds of waits so far."""
    return [event.kind for events in RECORD.waits.values() for event, count in events.items() for _ in range(count)]


# --- devices ----------------------------------------------------------------------------------------------------------


@on_device
def test_results_are_on_the_device() -> None:
    layer = nn.Linear(3, 2).to(DEVICE)
    loss = layer(torch.ones(4, 3, device=DEVICE)).sum()
    loss.backward()
    assert all(value.is_cuda for value in (loss, layer.weight, layer.weight.grad))
    assert isinstance(layer.weight, nn.Parameter) and isinstance(copy.deepcopy(layer).weight, nn.Parameter)
    assert layer.weight.grad is not None and torch.equal(layer.weight.grad.cpu(), torch.full((2, 3), 4.0))


@on_device
def test_assigned_data_have_the_layout_that_fused_kernels_assume() -> None:
    weight = nn.Parameter(torch.arange(16.0, device=DEVICE).reshape(2, 2, 2, 2))
    weight.data = weight.data.to(memory_format=torch.channels_last)
    (weight * torch.arange(4.0, device=DEVICE).reshape(2, 2, 1, 1)).sum().backward()
    torch.optim.SGD([weight], lr=1.0, fused=True).step()
    expected = torch.arange(16.0).reshape(2, 2, 2, 2) - torch.arange(4.0).reshape(2, 2, 1, 1)
    assert torch.equal(weight.detach().cpu(), expected) and weight.is_contiguous(memory_format=torch.channels_last)


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": lambda device, host: device + host,
    "in place": lambda device, host: host.add_(device),
    "matrix product": lambda device, host: device @ host,
    "concatenation": lambda device, host: torch.cat([device, host]),
    "scalar in a concatenation": lambda device, host: torch.stack([device.sum(), host.sum()]),
    "index on the device": lambda device, host: host[device.long()],
    "value on the host": lambda device, host: device.index_put_((device.long(),), host),
}


@pytest.mark.parametrize("name", MIXED)
@on_device
def test_tensors_of_host_and_device_do_not_mix(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        MIXED[name](torch.zeros(2, 2, device=DEVICE), torch.zeros(2, 2))


@on_device
def test_scalars_of_the_host_may_be_operands() -> None:
    values, scalar = torch.ones(2, device=DEVICE), torch.tensor(3.0)
    assert (values * scalar + torch.where(values > 0, scalar, values)).tolist() == [6, 6]


@on_device
def test_generators_belong_to_a_device() -> None:
    torch.rand(2, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    assert isinstance(torch.Generator(DEVICE), torch.Generator) and isinstance(torch.Generator(), torch.Generator)
    for draw in (
        lambda generator: torch.rand(2, device=DEVICE, generator=generator),
        lambda generator: torch.zeros(2, device=DEVICE).normal_(generator=generator),
        lambda generator: torch.ones(2, device=DEVICE).multinomial(1, generator=generator),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            draw(torch.Generator())


@on_device
def test_another_device_does_not_exist() -> None:
    with pytest.raises(RuntimeError, match="cuda:1 does not exist"):
        torch.zeros(2, device="cuda:1")


@on_device
def test_numpy_needs_the_host() -> None:
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        torch.zeros(2, device=DEVICE).numpy()


# --- data types -------------------------------------------------------------------------------------------------------


@on_device
def test_half_precision_is_refused_where_cuda_has_no_kernel() -> None:
    values = torch.ones(4, 4, device=DEVICE, dtype=torch.float16)
    for function in (torch.linalg.inv, torch.fft.fft, torch.erfinv):
        with pytest.raises(RuntimeError, match=r"not implemented for torch\.float16 on CUDA"):
            function(values)


@on_device
def test_autocast_is_that_of_cuda() -> None:
    values = torch.full((2, 2), 0.5, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert (values @ values).dtype == torch.bfloat16
        assert (values.bfloat16() ** 2).dtype == torch.float32, "the CPU's would keep the type"
        with pytest.raises(RuntimeError, match="binary_cross_entropy"):
            binary_cross_entropy(values, values)


@on_device
def test_float64_is_recorded_and_may_be_refused() -> None:
    values = torch.ones(2, device=DEVICE)
    values.double()
    assert [event.kind for event in RECORD.float64["other"]] == ["aten::_to_copy"]
    RECORD.forbid_float64 = True
    for create in (
        values.double,
        lambda: values.sum(dtype=torch.float64),
        lambda: torch.zeros(2, dtype=torch.float64).to(DEVICE),
    ):
        with pytest.raises(RuntimeError, match="MPS framework doesn't support float64"):
            create()


# --- determinism ------------------------------------------------------------------------------------------------------


@on_device
def test_operations_without_a_deterministic_implementation_are_refused() -> None:
    images = torch.ones(1, 1, 4, 4, device=DEVICE, requires_grad=True)
    positions = torch.zeros(1, 2, 2, 2, device=DEVICE)
    sampled = grid_sample(images, positions, align_corners=False).sum()
    sampled.backward(retain_graph=True)
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="grid_sampler_2d_backward does not have a deterministic implementation"):
        sampled.backward()
    RECORD.forbid_nondeterministic = False
    sampled.backward()
    assert {event.kind for event in RECORD.nondeterministic["other"]} == {"aten::grid_sampler_2d_backward"}


# --- host waits -------------------------------------------------------------------------------------------------------

WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda values: values.sum().item(),
    "nonzero": lambda values: values.nonzero(),
    "boolean index": lambda values: values[values > 0],
    "unique": lambda values: values.unique(),
    "copy to the host": lambda values: values.cpu(),
    "copy to the device": lambda values: values.new_tensor([1.0, 2.0]),
    "index on the host": lambda values: values[torch.tensor([0, 1])],
    "multinomial": lambda values: values.multinomial(1),
    "repeat_interleave": lambda values: values.repeat_interleave(values.long()),
    "synchronize": lambda values: torch.cuda.synchronize(),
    "event": lambda values: Stream().record_event().synchronize(),
}
"""An example of each kind."""


@pytest.mark.parametrize("kind", WAITS)
@on_device
def test_waits_are_recorded(kind: str) -> None:
    values = torch.tensor([1.0, 2.0]).to(DEVICE, non_blocking=True)
    WAITS[kind](values)
    assert waits() == [kind]


@on_device
def test_other_operations_do_not_wait() -> None:
    values = torch.arange(4.0).pin_memory().to(DEVICE, non_blocking=True)
    values[values > 2] = 0.0
    values.masked_fill_(values > 1, 5.0)
    values[torch.arange(2, device=DEVICE)] += torch.full((), 2.0, device=DEVICE)
    torch.randperm(4, device=DEVICE)
    assert not waits() and not RECORD.pageable


@on_device
def test_copies_from_memory_that_is_not_pinned_are_recorded() -> None:
    torch.zeros(2).to(DEVICE, non_blocking=True)
    assert not waits() and len(RECORD.pageable["other"]) == 1


@on_device
def test_waits_can_be_forbidden() -> None:
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation: item"):
        torch.ones(1, device=DEVICE).item()
    torch.cuda.synchronize()  # as asked


@on_device
def test_memory_is_not_read_before_its_copy_has_ended() -> None:
    copied = torch.ones(2, device=DEVICE).to("cpu", non_blocking=True)
    with pytest.raises(RuntimeError, match="read before the copy from the device has ended"):
        copied.sum()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert copied.sum() == 2
