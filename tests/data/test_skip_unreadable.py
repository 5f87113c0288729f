"""Unreadable samples, and sources that return batches."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import Batch, DatasetInfo, GlobalBatch, RunSpec, Sample, Source, SourceInfo
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batch_shapes import progressive, progressive_size
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import Request, evaluation_requests, training_requests
from opabinia.runtime.durations import Duration

N = 40
BROKEN = {3, 7, 8, 30}


class PartlyUnreadable(Source):
    """A source with unreadable samples."""

    info = SourceInfo(channels=1, classes=("a", "b"))

    def __init__(self, broken: set[int] = BROKEN) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Sample:
        if index in self.broken:
            raise OSError(f"cut short at byte {index}")
        return {"image": torch.full((1, 2, 2), index, dtype=torch.uint8), "label": index % 2, "id": str(index)}


def training_loader(on_error: Any, *, workers: int = 0, world: int = 1, rank: int = 0, source: Any = None) -> Loader:
    plan = ConstantPlan(N, 8, Duration(2, "ep"))
    orders = partial(epoch_order, 5, n=N, shuffle=True)
    reader = BatchReader(source or PartlyUnreadable(), seed=5, on_error=on_error)
    return Loader(reader, training_requests(plan, orders, rank, world), num_workers=workers)


def ids(loader: Loader, start: int = 0) -> list[str]:
    try:
        return [name for _, batch in loader.iterate(start) for name in batch["id"]]
    finally:
        loader.close()


def test_unreadable_samples_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    expected = ids(training_loader("raise", source=PartlyUnreadable(set())))
    result = ids(training_loader("replace"))
    assert len(result) == len(expected) == 2 * N
    replaced = [(old, new) for old, new in zip(expected, result, strict=True) if old != new]
    assert {old for old, _ in replaced} == set(map(str, BROKEN)) and len(replaced) == 2 * len(BROKEN)
    assert not {new for _, new in replaced} & set(map(str, BROKEN))
    assert "skipped: sample 3, PartlyUnreadable: OSError: cut short at byte 3" in caplog.text


def test_replacements_depend_only_on_the_position() -> None:
    result = ids(training_loader("replace"))
    assert ids(training_loader("replace", workers=2)) == result
    assert ids(training_loader("replace"), start=6) == result[N + 8 :]
    shares = [list(training_loader("replace", world=2, rank=rank).iterate()) for rank in (0, 1)]
    merged = [name for left, right in zip(*shares, strict=True) for name in left[1]["id"] + right[1]["id"]]
    assert merged == result


def test_replacements_have_the_same_label() -> None:
    class Labelled(PartlyUnreadable):
        info = SourceInfo(channels=1, classes=("a", "b"), labels=np.arange(N) % 2)

    only_9_of_the_odd_ones = Labelled({8, 30, *range(1, N, 2)} - {9})
    expected = ids(training_loader("raise", source=PartlyUnreadable(set())))
    result = ids(training_loader("replace", source=only_9_of_the_odd_ones))
    for old, new in zip(map(int, expected), map(int, result), strict=True):
        assert new == 9 if old % 2 else new % 2 == 0 and (new == old or old in (8, 30))

    class DistinctLabels(PartlyUnreadable):
        info = SourceInfo(channels=1, labels=np.arange(N))

    assert ids(training_loader("replace", source=DistinctLabels())) == ids(training_loader("replace")), "any sample"


def test_a_dataset_without_readable_samples_raises() -> None:
    with pytest.raises(DataError, match="20 samples in a row could not be read; the last: sample"):
        ids(training_loader("replace", source=PartlyUnreadable(set(range(N)))))


def test_evaluation_skips_and_counts_unreadable_samples() -> None:
    reader, requests = BatchReader(PartlyUnreadable(), on_error="skip"), evaluation_requests(N, 8, 0, 1)
    for workers in (0, 1):
        loader = Loader(reader, requests, num_workers=workers)
        assert ids(loader) == [str(number) for number in range(N) if number not in BROKEN]
        assert loader.num_skipped == len(BROKEN)


def test_the_first_unreadable_samples_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also if they recur, in every epoch and as every view of a video."""
    loader = Loader(BatchReader(PartlyUnreadable(set(range(30))), on_error="skip"), evaluation_requests(N, 8, 0, 1))
    assert [global_batch.step for global_batch, _ in loader.iterate()] == [3, 4], "batches without samples are dropped"
    assert loader.num_skipped == 30
    assert caplog.text.count("skipped: sample") == 10 and "no longer logged" in caplog.text
    caplog.clear()

    def see(sample: Sample) -> Sample:
        if sample["id"] in ("1", "2"):
            raise ValueError("it is torn")
        return sample

    def view(sample: Sample) -> Sample:
        return {**sample, "id": str(int(sample["id"]) // 4)}

    loader = Loader(BatchReader(PartlyUnreadable(set()), [view, see], on_error="skip"), evaluation_requests(N, 8, 0, 1))
    assert len(ids(loader)) == len(ids(loader)) == N - 8 and loader.num_skipped == 16
    assert caplog.text.count("skipped: sample") == 2 and "sample 4 (1), see: it is torn" in caplog.text


# --- sources that return batches ---


class BatchSource(PartlyUnreadable):
    """A source that returns batches."""

    num_calls = 0

    def batch(self, indices: Any) -> Batch:
        self.num_calls += 1
        samples = [self[index] for index in indices.tolist()]
        images = torch.stack([sample["image"] for sample in samples])
        return {"image": images, "label": torch.from_numpy(indices % 2), "id": [sample["id"] for sample in samples]}


def test_a_source_may_return_batches() -> None:
    source, state = BatchSource(set()), torch.get_rng_state()
    per_sample, batched = (training_loader("raise", source=each) for each in (PartlyUnreadable(set()), source))
    for (row, left), (other_row, right) in zip(per_sample.iterate(), batched.iterate(), strict=True):
        assert row == other_row and left["id"] == right["id"]
        assert torch.equal(left["image"], right["image"]) and torch.equal(left["label"], right["label"])
    assert source.num_calls == 10
    assert torch.equal(torch.get_rng_state(), state), "no random numbers are used"
    numbers = np.arange(4)
    BatchReader(source, [lambda sample: sample]).batch(Request(GlobalBatch(0, 0, 0, 4), numbers, numbers))
    assert source.num_calls == 10, "with transforms samples are read one by one"


def test_the_samples_of_an_unreadable_batch_are_read_one_by_one() -> None:
    assert ids(training_loader("replace", source=BatchSource())) == ids(training_loader("replace"))
    with pytest.raises(DataError, match=r"sample \d+, BatchSource: OSError: cut short"):
        ids(training_loader("raise", source=BatchSource()))


# --- progressive sizes ---


def test_batches_have_the_image_size_of_their_epoch() -> None:
    layout = progressive(RunSpec(N, 20, Duration(4, "ep")), start=4, end=12, until=0.5, multiple=4)
    plan = StagedPlan(N, layout.stages, layout.length)
    orders = partial(epoch_order, 5, n=N, shuffle=True)

    class Large(PartlyUnreadable):
        def __getitem__(self, index: int) -> Sample:
            return {"image": torch.full((1, 12, 12), index, dtype=torch.uint8), "label": 0, "id": str(index)}

    loader = Loader(BatchReader(Large(), dataset_info=DatasetInfo(N)), training_requests(plan, orders, 0, 1))
    sizes = [tuple(batch["image"].shape[2:]) for _, batch in loader.iterate()]
    assert sizes == [(4, 4)] * 2 + [(8, 8)] * 2 + [(12, 12)] * 4
    at = (0.0, 0.2, 0.45, 0.5, 0.79, 0.8, 1.0)
    sizes = [progressive_size(progress, start=128, end=224, until=0.8) for progress in at]  # type: ignore[misc]
    assert sizes == [128, 160, 192, 192, 224, 224, 224]
