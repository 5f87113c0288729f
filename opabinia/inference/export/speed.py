"""Times of models on this machine's CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

SECONDS = 2.0
"""Time in which a function is measured."""


class Speed(NamedTuple):
    """Speed of a model on this machine's CPU.

    Attributes:
        p50, p95: percentiles of the latency of one sample, in seconds.
        throughput: samples per second in batches of those that the export compares.
    """

    p50: float
    p95: float
    throughput: float


def measure_speed(run: Callable[..., object], inputs: Mapping[str, Tensor]) -> Speed:
    """Measure a function of inputs by name, which hold a row per sample."""
    one = {name: value[:1] for name, value in inputs.items()}
    latencies, batches = times_of(lambda: run(**one)), times_of(lambda: run(**inputs))
    p50, p95 = np.quantile(latencies, [0.5, 0.95]).tolist()
    return Speed(p50, p95, len(inputs["image"]) / float(np.median(batches)))


def times_of(run: Callable[[], object]) -> list[float]:
    """Return seconds of some calls, after two that are not measured."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 5 or (len(times) < 200 and time.perf_counter() < end):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return times[2:]
