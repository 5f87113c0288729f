"""Latency, throughput and memory of an exported model on this machine's CPU: ``opabinia benchmark model.onnx``."""

from __future__ import annotations

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
        "stages": {} if task.takes_video else _stages(predictor, p50),
        "memory": peak_memory(),
    }


def _inputs(task: ExportedTask, shape: list[int], count: int) -> dict[str, Tensor]:
    """Return a batch of noise."""
    dtype = torch.uint8 if task.metadata["dtype"] == "uint8" else torch.float32
    noise = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image = noise if dtype == torch.uint8 else noise / 255
    sizes = torch.tensor([task.size]).repeat(count, 1)
    return {"image": image, **({"image_sizes": sizes} if "image_sizes" in task.runtime.shapes else {})}


def _stages(predictor: Predictor, graph: float) -> dict[str, float]:
    """Return the seconds of the stages of a prediction; ``graph``: of the graph alone."""
    height, width = predictor.task.size  # type: ignore[misc]
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    sample = predictor.sample(image)
    reading, rest = (
        float(np.median(times_of(run))) for run in (lambda: predictor.sample(image), lambda: predictor.batch([sample]))
    )
    return {"reading": reading, "graph": graph, "predictions": max(0.0, rest - graph)}
