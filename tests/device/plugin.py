"""``pytest -p tests.device.plugin tests/gpu``: run the tests for GPUs on the pretended CUDA device.

``torch.cuda.set_sync_debug_mode("error")`` raises at host waits, as on a GPU.
"""

from __future__ import annotations

import pytest

from tests.device.installation import install

DESELECTED = {
    "test_auto.py::test_the_largest_batch_that_fits_trains_and_a_much_larger_one_does_not": "memory is not limited",
    "test_auto.py::test_micro_batches_let_all_samples_fit": "memory is not limited",
    "test_auto.py::test_a_recipe_is_benchmarked_on_the_device": "computes large matrix products to measure the speed",
    "test_auto.py::test_bf16_matmuls_are_faster": "measures the speed",
    "test_auto.py::test_the_share_of_queued_steps_is_measured_without_waiting[200-True]": "work ends when it is queued",
    "test_cuda.py::test_a_killed_and_resumed_run_is_bitwise_identical": "its processes do not pretend",
    "test_cuda.py::test_features_are_copied_to_the_host_during_later_work": "work is done when it is queued",
    "test_cuda.py::test_two_processes_with_synchronized_norms_have_the_losses_of_one": "its processes do not pretend",
    "test_tasks.py::test_exported_programs_run_on_the_gpu": "tensors of torch.export are subclasses, too",
}
"""Tests that need a GPU, and why."""


def reason(item: pytest.Item) -> str | None:
    """Return why a test is deselected; None if it is not."""
    name = item.nodeid.rpartition("tests/gpu/")[2]
    return DESELECTED.get(name) or DESELECTED.get(name.partition("[")[0])


def pytest_configure() -> None:
    install()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if reason(item)])
    items[:] = [item for item in items if not reason(item)]
