"""Make this process believe in a CUDA device: the functions of ``torch.cuda``, generators, and threads.

Nothing is undone: install it in a process that does nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torchvision  # noqa: F401 (its operations)
from torch import Tensor

from tests.device import driver_hooks
from tests.device.pretended import DEVICE, DEVICE_GENERATORS, PretendedDevice
from tests.device.records import RECORD

MEMORY = 2**34
"""Bytes of the device."""

NAME = "pretended CUDA device"


def install() -> None:
    """Pretend that there is one CUDA device, in this thread and those started from now on.

    Raises:
        RuntimeError: there is no C++ compiler, or it failed.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of real ones nothing is seen
    driver_hooks.install()
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(1.0, device="cuda") is a copy, which is recorded
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.backends.cudnn.enabled = False  # its operations are not those of the CPU
    replace_functions()
    # In deterministic mode torchvision computes this in Python, with tensors that take gigabytes.
    sys.modules["torchvision.ops.roi_align"]._roi_align = AlignRegions.apply  # type: ignore[attr-defined]
    torch.Generator = GeneratorType("Generator", (), {})  # type: ignore[misc]
    run_thread = threading.Thread.run

    def run_on_device(thread: threading.Thread) -> None:
        enter_thread()
        run_thread(thread)

    threading.Thread.run = run_on_device  # type: ignore[method-assign]
    enter_thread()


def enter_thread() -> None:
    """Direct the operations of this thread to the device."""
    torch.autograd.set_multithreading_enabled(False)  # type: ignore[no-untyped-call]
    PretendedDevice().__enter__()


def replace_functions() -> None:
    """Replace the functions of ``torch.cuda`` and ``torch.accelerator``."""
    properties = SimpleNamespace(
        name=NAME, total_memory=MEMORY, multi_processor_count=100, major=9, minor=0, uuid="GPU-0"
    )
    generator = _HostGenerator()
    cuda = {
        **{"is_available": True, "is_initialized": True, "is_bf16_supported": True, "_is_in_bad_fork": False},
        **{"device_count": 1, "current_device": 0, "is_current_stream_capturing": False},
        **{"memory_allocated": 2**20, "max_memory_allocated": 2**20, "memory_reserved": 2**20},
        **{"max_memory_reserved": 2**20, "mem_get_info": (MEMORY // 2, MEMORY)},
        **{"get_device_name": NAME, "get_device_capability": (9, 0), "get_device_properties": properties},
        **dict.fromkeys(("init", "_lazy_init", "set_device", "reset_peak_memory_stats", "empty_cache", "_sleep")),
        "set_per_process_memory_fraction": None,
    }
    for name, value in cuda.items():
        setattr(torch.cuda, name, _always(value))
    functions = {
        "synchronize": lambda device=None: _wait_for_all("synchronize"),
        **{"Stream": Stream, "Event": StreamEvent, "stream": lambda stream: nullcontext(), "device": _DeviceContext},
        **dict.fromkeys(("current_stream", "default_stream"), lambda device=None: Stream()),
        **dict.fromkeys(("manual_seed", "manual_seed_all"), lambda seed: generator.manual_seed(seed)),
        "get_rng_state": lambda device=None: generator.get_state(),
        "set_rng_state": lambda state, device=None: generator.set_state(state),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
        "set_sync_debug_mode": _set_sync_debug_mode,
        "get_sync_debug_mode": lambda: 2 * RECORD.forbid_waits,
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
    torch.cuda.amp.common.amp_definitely_not_available = _always(False)
    accelerator = {
        **{"is_available": True, "current_accelerator": torch.device("cuda"), "device_count": 1},
        **{"current_device_index": 0, "current_device_idx": 0, "set_device_index": None, "set_device_idx": None},
    }
    for name, value in accelerator.items():
        setattr(torch.accelerator, name, _always(value))
    torch.accelerator.synchronize = functions["synchronize"]


class AlignRegions(torch.autograd.Function):
    """Pooling of regions by torchvision's kernels, which refuse deterministic mode."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, regions: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(regions)
        ctx.shape, ctx.dtype, ctx.options = features.shape, features.dtype, options
        pooled: Tensor = torch.ops.torchvision.roi_align(features.float(), regions.float(), *options)
        return pooled.to(features.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (regions,), (scale, height, width, *sampling) = ctx.saved_tensors, ctx.options
        options = (scale, height, width, *ctx.shape, *sampling)
        result = torch.ops.torchvision._roi_align_backward(gradient.float(), regions.float(), *options)
        return (result.to(ctx.dtype), None, *(None for _ in ctx.options))


def _always(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _set_sync_debug_mode(mode: int | str) -> None:
    RECORD.forbid_waits = mode in (2, "error")


def _wait_for_all(kind: str) -> None:
    """Record that the host waits for everything that the device has to do."""
    RECORD.add_wait(kind, explicit=True)
    RECORD.pending_copies.clear()


# --- streams and generators -------------------------------------------------------------------------------------------


class Stream:
    """A stream, without time: its work is done when it is queued."""

    device = DEVICE
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        event = event or StreamEvent()
        event.record(self)
        return event

    def wait_event(self, event: StreamEvent) -> None:
        """Do nothing: the device waits, not the host."""

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing: the device waits, not the host."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _wait_for_all("synchronize")


class StreamEvent:
    """An event of a stream; the host that waits for it may read what was copied to it before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seconds = 0.0
        self._copies: list[Any] = []

    def record(self, stream: Stream | None = None) -> None:
        self._seconds, self._copies = time.perf_counter(), list(RECORD.pending_copies)

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing: the device waits, not the host."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        RECORD.add_wait("event", explicit=True)
        ended = set(map(id, self._copies))
        RECORD.pending_copies[:] = [copy for copy in RECORD.pending_copies if id(copy) not in ended]

    def elapsed_time(self, later: StreamEvent) -> float:
        return (later._seconds - self._seconds) * 1e3


class _DeviceContext(nullcontext[None]):
    """``torch.cuda.device(...)``."""


_HostGenerator = torch.Generator


class DeviceGenerator(_HostGenerator):
    """A generator of the device."""

    def __new__(cls) -> DeviceGenerator:
        generator = super().__new__(cls, "cpu")
        DEVICE_GENERATORS.add(generator._cdata)
        _all_generators.append(generator)
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


_all_generators: list[DeviceGenerator] = []


class GeneratorType(type):
    """The type of ``torch.Generator``, which may be of either device."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return DeviceGenerator() if torch.device(device).type == DEVICE.type else _HostGenerator(device)
