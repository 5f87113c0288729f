"""Search for the largest batch that fits into memory, by training steps of growing size."""

from __future__ import annotations

import gc
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, GlobalBatch, Step
from opabinia.runtime.resources import peak_memory, reset_peak_memory

GPU_SHARE = 0.9
"""Share of the free GPU memory that a step may fill; the rest is for evaluation and fragmentation."""
MAX_SECONDS = 10.0
"""Longest step that is tried."""
RESOLUTION = 64
"""The search ends when the next increase would be smaller than 1/64 of the batch size."""


class Attempt(NamedTuple):
    """A training step: its samples, peak memory in bytes (infinite: out of memory), and seconds."""

    samples: int
    memory: float
    seconds: float


class Attempts:
    """Training steps of any size, made of the samples of one batch.

    Args:
        step: step of a run on a single rank.
        batch: a batch on its device.
        global_batch, clock: global batch and clock of that batch.
        device: device of the model.

    Example: ``Attempts(step, batch, global_batch, clock, device)(64).memory``.
    """

    def __init__(self, step: Step, batch: Batch, global_batch: GlobalBatch, clock: Clock, device: torch.device) -> None:
        self._step, self._batch, self._global_batch = step, batch, global_batch
        self._clock, self._device = clock, device

    def budget(self, host_budget: float) -> float:
        """Return the bytes that the run may hold on its device, given those it may hold on the host."""
        if self._device.type != "cuda":
            return host_budget
        free, _ = torch.cuda.mem_get_info(self._device)
        return GPU_SHARE * (free + torch.cuda.memory_reserved(self._device))

    def __call__(self, samples: int) -> Attempt:
        """Train one step with ``samples`` samples."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            reset_peak_memory()
        global_batch = replace(self._global_batch, count=samples)
        start = time.perf_counter()
        try:
            self._step(repeat_samples(self._batch, samples), global_batch, self._clock, lambda: None)
            if on_gpu:
                torch.cuda.synchronize(self._device)
            # What torch has reserved counts: memory between tensors is not free.
            memory = torch.cuda.max_memory_reserved(self._device) if on_gpu else peak_memory()
            return Attempt(samples, memory, time.perf_counter() - start)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        gc.collect()  # only now: the traceback of the error held the tensors
        return Attempt(samples, math.inf, 0.0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch, its CPU allocator or cuBLAS says that there is too little memory."""
    text = str(error)
    signs = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in text for sign in signs)


def repeat_samples(batch: Batch, samples: int) -> Batch:
    """Return a batch of ``samples`` samples, which repeats those of ``batch``; that of a multi-task run as it is."""
    if "streams" in batch:
        return batch
    indices = [index % len(batch["id"]) for index in range(samples)]
    return {key: _select(value, indices) for key, value in batch.items()}


def _select(value: Any, indices: list[int]) -> Any:
    if isinstance(value, Tensor):
        return value[torch.tensor(indices, device=value.device)]
    if isinstance(value, tuple):
        return tuple(_select(view, indices) for view in value)
    return [value[index] for index in indices]


def largest_fitting(
    attempt: Callable[[int], Attempt], budget: float, first: Attempt, samples: int
) -> tuple[Attempt, str]:
    """Return the largest attempt that stays within ``budget`` bytes, and why it is not larger.

    Sizes double as long as the memory seen so far predicts that the next one fits; then the gap is filled. On the CPU,
    where too much memory stops the whole machine, nothing is tried that is predicted not to fit.

    Args:
        attempt: trains one step with a number of samples.
        budget: number of bytes.
        first: an attempt that fits.
        samples: number of samples of the dataset; no batch is larger.

    Example: with 2 + 3 n bytes for n samples and a budget of 100 the result is 32, found with 1, 2, 4, 8, 16 and 32.
    """
    fitting, failed = [first], None
    while True:
        last = fitting[-1]
        size = _next_size(fitting, samples, failed, budget)
        if size <= last.samples:
            return last, "all samples of the dataset" if last.samples >= samples else "the largest that fits"
        if last.seconds * size / last.samples > MAX_SECONDS:
            return last, f"a step takes {last.seconds:.1f} s, and no longer one is tried"
        tried = attempt(size)
        if tried.memory <= budget:
            fitting.append(tried)
        else:
            failed = size


def _next_size(fitting: Sequence[Attempt], samples: int, failed: int | None, budget: float) -> int:
    """Samples to try next; as many as fit already if an increase is not worth a step."""
    last = fitting[-1].samples
    size = min(2 * last, samples) if failed is None else (last + failed) // 2
    size = last + bisect_right(range(last + 1, size + 1), budget, key=_predicted_memory(fitting))
    return size if size - last >= max(1, last // RESOLUTION) or size == samples else last


def _predicted_memory(fitting: Sequence[Attempt]) -> Callable[[int], float]:
    """Bytes by number of samples: the parabola through the newest three attempts, or the line through two."""
    (n0, m0), (n1, m1), (n2, m2) = [
        (attempt.samples, attempt.memory) for attempt in [fitting[0], fitting[0], *fitting][-3:]
    ]
    slope_before = (m1 - m0) / (n1 - n0) if n1 > n0 else 0.0
    slope = max(0.0, (m2 - m1) / (n2 - n1)) if n2 > n1 else 0.0
    curvature = max(0.0, (slope - slope_before) / (n2 - n0)) if n1 > n0 else 0.0
    return lambda samples: m2 + slope * (samples - n2) + curvature * (samples - n2) * (samples - n1)
