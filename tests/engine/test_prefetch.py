"""Prefetching to the device; tests that need CUDA are in tests/gpu."""

import time
from collections.abc import Iterator

import pytest
import torch

from opabinia.contracts import Batch, GlobalBatch
from opabinia.contracts import Loader as LoaderContract
from opabinia.engine.loop.prefetch import DeviceLoader, lookahead, prefetch, to_device, to_host

CPU = torch.device("cpu")


class Counting:
    """Batches that contain their number; number 5 raises an error."""

    def __init__(self) -> None:
        self.num_skipped, self.seconds, self.closed = 0, 0.0, False

    def iterate(self, start: int = 0) -> Iterator[tuple[GlobalBatch, Batch]]:
        for number in range(start, 10):
            if number == 5:
                raise ValueError("broken")
            self.seconds, self.num_skipped = float(number), number
            yield GlobalBatch(number, 0, number, 1), {"image": torch.full((1,), number), "id": [str(number)]}

    def close(self) -> None:
        self.closed = True


def test_time_of_the_device_transform() -> None:
    def transform(batch: Batch, global_batch: GlobalBatch) -> Batch:
        time.sleep(0.02)
        return {**batch, "left": batch.pop("id")}

    assert 0.02 <= DeviceLoader(Counting(), CPU, transform).time_transform() < 1
    assert DeviceLoader(Counting(), CPU).time_transform() == 0


def test_lookahead() -> None:
    read_numbers = []

    def items() -> Iterator[int]:
        for number in range(3):
            read_numbers.append(number)
            yield number

    states = [(number, list(read_numbers)) for number in lookahead(items())]
    assert states == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]
    assert list(lookahead(iter(()))) == []


def test_an_error_in_a_prefetched_batch_is_raised_in_order() -> None:
    steps = []
    with pytest.raises(ValueError, match="broken"):
        for global_batch, _ in lookahead(Counting().iterate(2)):
            steps.append(global_batch.step)
    assert steps == [2, 3, 4]


def test_on_the_cpu_batches_are_passed_through() -> None:
    loader = Counting()
    device_loader: LoaderContract = DeviceLoader(loader, CPU)
    batches = device_loader.iterate(3)
    global_batch, batch = next(batches)
    assert (global_batch.step, int(batch["image"]), device_loader.seconds, device_loader.num_skipped) == (3, 3, 3.0, 3)
    assert [global_batch.step for global_batch, _ in DeviceLoader(Counting(), CPU).iterate(8)] == [8, 9]
    device_loader.close()
    assert loader.closed


def test_the_device_transform_gets_the_row() -> None:
    device_loader = DeviceLoader(
        Counting(), CPU, lambda batch, global_batch: {**batch, "image": batch["image"] * 10 + global_batch.step}
    )
    rows = []
    with pytest.raises(ValueError, match="broken"):
        for global_batch, batch in device_loader.iterate(1):
            rows.append((global_batch.step, int(batch["image"]), device_loader.seconds))
    assert rows == [(1, 11, 1.0), (2, 22, 2.0), (3, 33, 3.0), (4, 44, 4.0)]


def test_nothing_is_copied_on_the_host() -> None:
    batch: Batch = {"image": torch.ones(2), "id": ["a", "b"]}
    assert to_device(batch, CPU) is batch
    prefetched = next(iter(prefetch(Counting(), CPU, start=7)))
    assert prefetched.global_batch.step == 7 and prefetched.batch is prefetched.loaded
    assert to_host({"a": batch["image"]})()["a"].data_ptr() == batch["image"].data_ptr()
