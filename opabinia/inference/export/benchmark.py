"""Latency, throughput and memory of an exported model on this machine's CPU: ``opabinia benchmark model.onnx``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opabinia.inference.export.exported_task import ExportedTask, load_exported
from opabinia.inference.export.files import total_size
from opabinia.inference.export.speed import times_of
from opabinia.inference.predictor import Predictor
from opabinia.runtime.resources import peak_memory

BATCHES = (1, 2, 4, 8, 16)
"""Batch sizes whose throughput is measured, if the graph takes any number of samples."""


def benchmark_export(path: Path) -> dict[str, Any]:
    """Measure an exported model with an image of noise of its size.

    Args:
        path: see :func:`opabinia.inference.export.exported_task.load_exported`.

    Returns:
        JSON values: ``file``, ``bytes``, ``runtime``, ``threads``, ``input``; ``p50`` and ``p95``, seconds of the graph
        for one sample; ``samples_per_s`` by batch size; ``stages``, median seconds of ``reading`` (the transforms of
        decoded pixels), of the ``graph`` and of the ``predictions`` made of its outputs, empty for videos; ``memory``,
        the peak of this process in bytes.

    Raises:
        ConfigError: the path is not one of ``opabinia export``, or its library is missing.
    """
    predictor = load_exported(path)
    task = predictor.task
    assert isinstance(task, ExportedTask)
    shape = [int(side) for side in task.runtime.shapes["image"][1:]]
    fixed = task.runtime.shapes["image"][0]
    batches = [fixed] if isinstance(fixed, int) else list(BATCHES)
    times = {size: times_of(partial(task.run, **_inputs(task, shape, size))) for size in batches}
    p50, p95 = np.quantile(times[batches[0]], [0.5, 0.95]).tolist()
    return {
        "file": str(path),
        "bytes": total_size(path),
        "runtime": task.runtime.version,
        "threads": torch.get_num_threads(),
        "input": " x ".join(map(str, shape)),
        "p50": p50,
        "p95": p95,
        "samples_per_s": {size: size / float(np.median(values)) for size, values in times.items()},
        "stages": {} if task.takes_video else _stages(predictor, task),
        "memory": peak_memory(),
    }


def _inputs(task: ExportedTask, shape: list[int], count: int) -> dict[str, Tensor]:
    """Return a batch of noise."""
    dtype = torch.uint8 if task.metadata["dtype"] == "uint8" else torch.float32
    noise = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image = noise if dtype == torch.uint8 else noise / 255
    sizes = torch.tensor([task.size]).repeat(count, 1)
    return {"image": image, **({"image_sizes": sizes} if "image_sizes" in task.runtime.shapes else {})}


def _stages(predictor: Predictor, task: ExportedTask) -> dict[str, float]:
    """Return the median seconds of the stages of a prediction. Each round measures all of them, so that other work on
    the machine changes their sum more than their shares."""
    pixels = np.random.default_rng(0).integers(0, 256, (*task.size, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    rounds: list[tuple[float, float, float]] = []

    def measure() -> None:
        started = time.perf_counter()
        sample = predictor.sample(image)
        read = time.perf_counter()
        predictor.outputs([sample], lambda batch: task.run(**task.inputs(batch)))
        computed = time.perf_counter()
        predictor.batch([sample])
        predicted = time.perf_counter()
        rounds.append((read - started, computed - read, (predicted - computed) - (computed - read)))

    times_of(measure)
    reading, graph, predictions = np.median(rounds, axis=0).tolist()
    return {"reading": reading, "graph": graph, "predictions": max(0.0, predictions)}
