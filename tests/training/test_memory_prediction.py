"""Predicted memory of a step: compared with allocations of the CPU, largest batches, values and shapes, the command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from unittest.mock import Mock

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from opabinia.runtime import operator_costs
from opabinia.runtime.operator_costs import Operator
from opabinia.training import roofline
from opabinia.training.batch_size_search import repeat_samples
from opabinia.training.measurement import StepParts
from opabinia.training.memory_prediction import (
    CONTEXT,
    FRAGMENTATION,
    ObservedStep,
    device_bytes,
    extend,
    largest_batch,
    predict_memory,
)
from opabinia.training.roofline import Gpu, time_bounds
from opabinia.training.run_folder import build_parts, resolve
from opabinia.training.session import TrainingRun

MIB = 2**20


def parts_of(recipe: str, *overrides: str) -> StepParts:
    resolved = resolve(recipe, ["train.device=cpu", "data.num_workers=0", *overrides])
    return StepParts.of(TrainingRun(**build_parts(resolved).keywords))


def allocated(parts: StepParts, samples: int) -> int:
    """Return the largest sum of bytes of torch's CPU allocator in a real step, without the scratch memory of oneDNN,
    which depends on the processor: the next event frees it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        ObservedStep(parts, None).run(repeat_samples(parts.largest[1], samples), samples)
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events, allocations = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if hasattr(event.extra_fields, "total_allocated"):
            allocations.append((event.start_time_ns, event.extra_fields))
    fields = [field for _, field in sorted(allocations, key=itemgetter(0))]
    return max(first.total_allocated for first, second in pairwise(fields) if second.alloc_size != -first.alloc_size)


@pytest.mark.parametrize(
    ("recipe", "fake"),
    [
        ("classification/digits", True),
        ("selfsup/digits_vicreg", True),
        pytest.param("detection/digits_mask", False, marks=pytest.mark.slow),
    ],
)
def test_prediction_equals_the_allocations_of_the_cpu(recipe: str, fake: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_costs, "BLOCK", 1)
    samples = 64 if fake else 4
    parts = parts_of(recipe, f"data.batch_size={samples}", "train.precision=fp32", "ema={decay: 0.9}")
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    peak = ObservedStep(parts, mode).footprint(samples)
    predicted = peak.total() - peak["inputs"] // 2  # nothing is prefetched
    assert predicted == pytest.approx(allocated(parts, samples), rel=0.05)


def test_report() -> None:
    precision = ["train.precision=bf16", "ema={decay: 0.9}"]
    report = predict_memory("classification/digits", precision, device_memory=(2**33, 2**34))
    peak, weights = report["peak"], sum(p.numel() for p in parts_of("classification/digits").model.parameters())
    assert report["method"] == "shapes" and report["input"] == "1 x 32 x 32" and report["batch_size"] == 64
    assert peak["optimizer"] >= 2 * 4 * weights and peak["ema"] >= 4 * weights
    assert peak["total"] == sum(size for name, size in peak.items() if name != "total")
    plain = [row["plain"] for row in report["largest_batch"]]
    assert plain == sorted(plain) and plain[0] > 1000
    assert all(bound["seconds"] > 0 for bound in report["time_bounds"])
    json.dumps(report)
    single = predict_memory("classification/digits", ["train.precision=fp32", "ema={decay: 0.9}"], device_memory=())
    assert peak["parameters"] == single["peak"]["parameters"]
    assert 0.4 < peak["activations"] / single["peak"]["activations"] < 0.95


def test_values_decide_in_two_stage_detectors() -> None:
    report = predict_memory("detection/digits_mask", ["data.batch_size=16"], device_memory=())
    assert report["method"] == "values" and report["bounded_batch"] == 2 and report["batch_size"] == 16


def test_steps_are_observed_up_to_a_number_of_samples_and_extended_beyond() -> None:
    step = Mock()
    step.footprint.side_effect = lambda samples: Counter(activations=3 * samples, gradients=5)
    assert extend(step, 4, 8)(6) == {"activations": 18, "gradients": 5}
    assert extend(step, 4, 8)(100) == {"activations": 300, "gradients": 5}
    assert sorted(call.args[0] for call in step.footprint.call_args_list) == [4, 6, 8]


@pytest.mark.slow
def test_the_line_of_a_detector_leads_to_larger_steps() -> None:
    parts = parts_of("detection/digits")
    step = ObservedStep(parts, FakeTensorMode(allow_non_fake_inputs=True))
    exact, extended = step.footprint(200), extend(step, 32, 64)(200)
    assert extended.total() == pytest.approx(exact.total(), rel=1e-3)


def test_fake_tensors_stay_in_the_prediction() -> None:
    predict_memory("detection/digits", ["data.batch_size=2"], device_memory=())
    parts = parts_of("detection/digits", "data.batch_size=2")
    ObservedStep(parts, None).run(repeat_samples(parts.largest[1], 2), 2)  # anchors are cached by shape


# --- the largest batch ------------------------------------------------------------------------------------------------


def footprint_of(fixed: int, per_sample: int, steep: int = 0) -> Callable[[int], Counter[str]]:
    """Return a convex function; from 50 samples on it grows by ``steep`` more."""

    def footprint(samples: int) -> Counter[str]:
        return Counter(
            activations=max(fixed + per_sample * samples, fixed + steep * samples - 50 * (steep - per_sample))
        )

    return footprint


@pytest.mark.parametrize("steep", [0, 90 * MIB])
def test_largest_batch(steep: int) -> None:
    footprint = footprint_of(300 * MIB, 30 * MIB, steep)
    memory = CONTEXT + int((1 + FRAGMENTATION) * 8 * 2**30)
    best = largest_batch(footprint, memory)
    assert device_bytes(footprint(best)) <= memory < device_bytes(footprint(best + 1 + best // 32))
    assert largest_batch(footprint, CONTEXT) == 0, "nothing fits"


# --- time -------------------------------------------------------------------------------------------------------------


def test_time_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("test", half=100.0, single=10.0, bandwidth=10.0, cache=20.0)
    operators = [
        Operator("aten.mm", "bfloat16", flops=1000, traffic=50),  # 10 s of computing, 3 s of moving
        Operator("aten.mm", "float32", flops=10, traffic=50),  # 1 s and 3 s
        Operator("aten.relu", "float32", flops=0, traffic=10),  # in the cache
    ]
    monkeypatch.setattr(roofline, "GPUS", (gpu,))
    (bound,) = time_bounds(operators)
    assert bound["seconds"] == 13.0 and bound["memory_bound"] == pytest.approx(3 / 13)
