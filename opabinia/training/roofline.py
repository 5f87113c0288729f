"""A lower bound of a training step's time on GPUs, by the roofline model (Williams et al. 2009).

Every operator takes at least the time of its floating point operations at the peak of the device, and at least the time
of moving its operands and results, as far as they do not fit into the cache of the device. Real steps take longer:
kernels reach a part of these peaks, and launching them takes time. It is a bound, not a prediction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opabinia.runtime.operator_costs import Operator


@dataclass(frozen=True)
class Gpu:
    """Published peaks of a GPU.

    Attributes:
        name: name of the product.
        half: FLOP/s of matrix products in bfloat16 and float16, without sparsity.
        single: FLOP/s of matrix products in TensorFloat-32, which cuDNN uses for float32.
        bandwidth: bytes/s of its memory.
        cache: bytes of its level-2 cache.
    """

    name: str
    half: float
    single: float
    bandwidth: float
    cache: float


GPUS = (
    Gpu("H100 SXM", 989.4e12, 494.7e12, 3.35e12, 50e6),  # NVIDIA H100 data sheet and Hopper white paper
    Gpu("A100 SXM 80GB", 312e12, 156e12, 2.039e12, 40e6),  # NVIDIA A100 data sheet and Ampere white paper
    Gpu("L4", 121e12, 60.5e12, 300e9, 48e6),  # NVIDIA L4 data sheet
    Gpu("RTX 4090", 165.2e12, 82.6e12, 1.008e12, 72e6),  # NVIDIA Ada white paper
)


def time_bounds(operators: Iterable[Operator]) -> list[dict[str, Any]]:
    """Return the bound of each of :data:`GPUS` for these operators.

    Returns:
        For each GPU JSON values: ``gpu``; ``seconds``, no step with these operators is faster; ``memory_bound``, the
        share of them in operators that the memory limits; ``classes``, the seconds by class of operators (``matrix
        products``, ``others``).
    """
    operators, bounds = list(operators), []
    for gpu in GPUS:
        classes, memory_bound = defaultdict[str, float](float), 0.0
        for operator in operators:
            peak = gpu.half if operator.dtype in ("bfloat16", "float16") else gpu.single
            computing = operator.flops / peak
            moving = max(0.0, operator.traffic - gpu.cache) / gpu.bandwidth
            classes["matrix products" if operator.flops else "others"] += max(computing, moving)
            memory_bound += moving if moving > computing else 0.0
        seconds = sum(classes.values())
        fraction = memory_bound / seconds if seconds else 0.0
        bounds.append({"gpu": gpu.name, "seconds": seconds, "memory_bound": fraction, "classes": dict(classes)})
    return bounds
