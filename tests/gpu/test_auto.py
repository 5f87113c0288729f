"""Auto-tuning and benchmarks on a GPU: out-of-memory errors, timing by events, bottleneck detection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opabinia.engine.hooks.bottleneck import Bottleneck
from opabinia.training.autotune import autotune
from opabinia.training.benchmark import benchmark, matmul_flops
from opabinia.training.run_folder import build_parts, resolve
from tests.engine.toys import make_run

pytestmark = pytest.mark.gpu

RECIPE = ["train.device=cuda", "train.num_threads=1", "data.num_workers=0", "train.length=100it"]


@pytest.fixture
def small_gpu() -> Iterator[float]:
    """Limit the memory of the GPU to 1 GiB."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2**30 / total)
    yield 2.0**30
    torch.cuda.set_per_process_memory_fraction(1.0)


def tune(*overrides: str) -> dict[str, int]:
    resolved = resolve("classification/digits", [*RECIPE, *overrides])
    return autotune(resolved.config["data"], partial(build_parts, resolved))


LARGE = "data.train.transforms=[{name: Resize, size: 256}]"


def test_the_largest_batch_that_fits_trains_and_a_much_larger_one_does_not(small_gpu: float, tmp_path: Path) -> None:
    size = tune("data.batch_size=auto", LARGE)["batch_size"]
    assert 16 <= size < 1437 and size % 8 == 0
    benchmark("classification/digits", [*RECIPE, LARGE, f"data.batch_size={size}"], steps=2)
    with pytest.raises(torch.OutOfMemoryError):
        benchmark("classification/digits", [*RECIPE, LARGE, f"data.batch_size={min(1437, 2 * size)}"], steps=2)


def test_micro_batches_let_all_samples_fit(small_gpu: float) -> None:
    assert tune("data.batch_size=auto", LARGE, "train.micro_batch_size=16")["batch_size"] == 1437


def test_a_recipe_is_benchmarked_on_the_device() -> None:
    report = benchmark("classification/digits", RECIPE, steps=10)
    step = report["step"]
    assert report["device"] == torch.cuda.get_device_name(0) and report["memory"]["device"] > 0
    assert min(step["host"], step["forward"], step["backward"], step["update"]) > 0
    assert report["waits_for"] in ("data", "host", "device")
    assert 0 < report["share_of_peak"] < 1


def test_bf16_matmuls_are_faster() -> None:
    device = torch.device("cuda", 0)
    assert matmul_flops(device, "bf16") > matmul_flops(device, "fp32")


@pytest.mark.parametrize(("work", "queued"), [(0, False), (200, True)])
def test_the_share_of_queued_steps_is_measured_without_waiting(work: int, queued: bool) -> None:
    run: Any = make_run(task=torch.nn.Linear(2, 2).cuda(), metrics_log=SimpleNamespace(newest=None))
    hook = Bottleneck(0)
    hook.start(run)
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            for _ in range(work):
                matrix @ matrix
            hook.before_step(run, {})
            if not work:
                sum(range(10**6))  # the host is slow
            hook.after_step(run)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (hook._queued > 5) == queued
