"""How batches come to the device; what needs CUDA is in tests/gpu."""

import time
from collections.abc import Iterator

import pytest
import torch

from opabinia.contracts import Batch, Row
from opabinia.contracts import Loader as LoaderContract
from opabinia.engine.loop.prefetch import Fed, Feeding, one_batch_ahead, prefetch, to_device, to_host

CPU = torch.device("cpu")


class Counting:
    """Batches of their own number; the fifth is broken."""

    def __init__(self) -> None:
        self.passed_over, self.seconds, self.closed = 0, 0.0, False

    def iterate(self, start: int = 0) -> Iterator[tuple[Row, Batch]]:
        for number in range(start, 10):
            if number == 5:
                raise ValueError("broken")
            self.seconds, self.passed_over = float(number), number
            yield Row(number, 0, number, 1), {"image": torch.full((1,), number), "id": [str(number)]}

    def close(self) -> None:
        self.closed = True


def test_what_finishing_takes() -> None:
    def finish(batch: Batch, row: Row) -> Batch:
        time.sleep(0.02)
        return {**batch, "left": batch.pop("id")}

    assert 0.02 <= Feeding(Counting(), CPU, finish).finishing() < 1
    assert Feeding(Counting(), CPU).finishing() == 0


def test_one_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(3):
            taken.append(number)
            yield number

    seen = [(number, list(taken)) for number in one_batch_ahead(items())]
    assert seen == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]
    assert list(one_batch_ahead(iter(()))) == []


def test_an_error_ahead_comes_at_its_turn() -> None:
    found = []
    with pytest.raises(ValueError, match="broken"):
        for row, _ in one_batch_ahead(Counting().iterate(2)):
            found.append(row.step)
    assert found == [2, 3, 4]


def test_on_the_cpu_a_loader_is_read_as_it_is() -> None:
    loader = Counting()
    feeding: LoaderContract = Feeding(loader, CPU)
    batches = feeding.iterate(3)
    row, batch = next(batches)
    assert (row.step, int(batch["image"]), feeding.seconds, feeding.passed_over) == (3, 3, 3.0, 3)
    assert [row.step for row, _ in Feeding(Counting(), CPU).iterate(8)] == [8, 9]
    feeding.close()
    assert loader.closed


def test_what_is_left_to_do_is_done_with_the_row() -> None:
    feeding = Feeding(Counting(), CPU, lambda batch, row: {**batch, "image": batch["image"] * 10 + row.step})
    found = []
    with pytest.raises(ValueError, match="broken"):
        for row, batch in feeding.iterate(1):
            found.append((row.step, int(batch["image"]), feeding.seconds))
    assert found == [(1, 11, 1.0), (2, 22, 2.0), (3, 33, 3.0), (4, 44, 4.0)]


def test_fed_tells_what_was_loaded() -> None:
    one = next(iter(prefetch(Counting(), CPU, start=7)))
    assert isinstance(one, Fed)
    assert one.row.step == 7
    assert one.batch is one.loaded


def test_nothing_is_copied_on_the_host() -> None:
    batch: Batch = {"image": torch.ones(2), "id": ["a", "b"]}
    assert to_device(batch, CPU) is batch
    assert to_host({"a": batch["image"]})()["a"].data_ptr() == batch["image"].data_ptr()
