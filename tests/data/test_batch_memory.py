"""Batches of workers in reused shared memory."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import Sample, Source, SourceInfo
from opabinia.data.batch_memory import BatchMemory, _memories
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> BatchMemory:
    """The memory in worker 1 of 2, with two slots for each."""
    monkeypatch.setattr("opabinia.data.batch_memory.get_worker_info", lambda: SimpleNamespace(id=1))
    return BatchMemory(2, 2)


def send(memory: BatchMemory, value: Any) -> Any:
    packed = memory.pack(value)
    function, arguments = packed.__reduce__()
    return function(*arguments)


def test_all_values_arrive_unchanged(memory: BatchMemory) -> None:
    value: dict[str, Any] = {
        "image": torch.arange(24, dtype=torch.uint8).view(2, 3, 2, 2),
        "views": (torch.ones(2, 3), torch.zeros(1, dtype=torch.bfloat16)),
        "boxes": [torch.zeros(0, 4), torch.ones(2, 4)],
        "flag": torch.tensor(True),
        "strided": torch.arange(6).view(2, 3).t(),
        "id": ["a", "b"],
        "array": np.arange(3),
    }
    result = send(memory, value)
    assert list(result) == list(value) and result["id"] == ["a", "b"] and result["array"].tolist() == [0, 1, 2]
    pairs = [(result[key], value[key]) for key in ("image", "flag", "strided")]
    pairs += [pair for key in ("views", "boxes") for pair in zip(result[key], value[key], strict=True)]
    for tensor, expected in pairs:
        assert torch.equal(tensor, expected) and tensor.dtype == expected.dtype
        assert tensor.stride() == expected.stride() and tensor.shape == expected.shape


def test_a_slot_is_used_until_its_tensors_are_dropped(memory: BatchMemory) -> None:
    batches = [send(memory, {"image": torch.full((9,), float(number)), "label": torch.ones(2)}) for number in (1, 2)]
    value = {"image": torch.zeros(3)}
    view = batches.pop(0)["image"][2:4]
    assert memory.pack(value) is value, "both slots are used: torch sends it"
    pid = os.fork()
    if pid == 0:
        batches.clear()
        os._exit(memory.pack(value) is not value)  # tensors dropped by a child process are still used by its parent
    assert os.waitpid(pid, 0)[1] == 0
    assert view.tolist() == [1, 1]
    del view
    assert memory.pack(value) is not value and batches[0]["image"][0] == 2


class Numbers(Source):
    info = SourceInfo(channels=1, classes=("a",))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Sample:
        return {"image": torch.full((1, 40, 40), index, dtype=torch.uint8)}


def test_workers_use_few_slots_until_their_loader_is_closed() -> None:
    """Even if batches are kept, or iterations dropped."""
    loader, before = Loader(BatchReader(Numbers()), evaluation_requests(64, 2, 0, 1), num_workers=2), len(_memories)
    for _ in range(4):  # prefetched batches are dropped
        next(iter(loader.iterate()))
    addresses = [batch["image"].data_ptr() for _, batch in loader.iterate()]
    assert len(addresses) == 32 and len(set(addresses)) <= 8
    images = [batch["image"] for _, batch in loader.iterate()]
    assert torch.cat(images)[:, 0, 0, 0].tolist() == list(range(64))
    del images
    for _ in range(2):  # also after a restart
        assert len(_memories) > before
        loader.close()
        gc.collect()
        assert len(_memories) <= before
        next(loader.iterate())
    loader.close()
