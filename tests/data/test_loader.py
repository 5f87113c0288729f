"""The loader with real worker processes: reproducible batches, clear errors, and no leftover process."""

import multiprocessing
import os
import pickle
import random
import signal
import textwrap
import time
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Batch, DatasetInfo, GlobalBatch, Sample, Source, SourceInfo
from opabinia.contracts import Loader as LoaderContract
from opabinia.data import workers as worker_processes
from opabinia.data.batch_mixing import mixup
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader, LoadedBatch
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import evaluation_requests, training_requests
from opabinia.data.workers import _receive
from opabinia.runtime.durations import Duration
from tests.faults.programs import Server, all_gone, is_alive

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # 3 workers on 2 cores, on purpose

Batches = list[tuple[GlobalBatch, Batch]]


class Numbers(Source):
    """Images filled with their index."""

    info = SourceInfo(channels=3, classes=("a", "b", "c"))

    def __init__(self, n: int, broken: int | None = None) -> None:
        self.n = n
        self.broken = broken

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sample:
        if index == self.broken:
            raise OSError("the disk is on fire")
        image = torch.full((3, 8, 8), index % 256, dtype=torch.uint8)
        return {"image": tv_tensors.Image(image), "label": index % 3, "id": f"n/{index}"}


def noisy(sample: Sample) -> Sample:
    """Draw from all three generators."""
    noise = torch.rand(3, 8, 8) + random.random() + float(np.random.rand())
    return {**sample, "image": sample["image"] + noise}


DATASET_INFO = DatasetInfo(samples=8, classes=("a", "b", "c"))
TRANSFORMS = (noisy, v2.RandomHorizontalFlip())


def plan_of(n: int, batch_size: int, length: str = "2ep") -> ConstantPlan:
    return ConstantPlan(n, batch_size, Duration.parse(length))


def make_loader(
    n: int = 23,
    batch_size: int = 5,
    *,
    length: str = "2ep",
    seed: int = 3,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    source: Any = None,
    transforms: Any = TRANSFORMS,
    mixes: Any = (),
) -> Loader:
    source = source or Numbers(n)
    dataset_info = DatasetInfo(n, classes=Numbers.info.classes)
    requests = training_requests(
        plan_of(n, batch_size, length), partial(epoch_order, seed, n=n, shuffle=True), rank, world
    )
    return Loader(BatchReader(source, transforms, mixes, dataset_info, seed, rank), requests, num_workers=workers)


def read(loader: LoaderContract, start: int = 0) -> Batches:
    try:
        return list(loader.iterate(start))
    finally:
        loader.close()


def assert_same(left: Batches, right: Batches) -> None:
    assert [row for row, _ in left] == [row for row, _ in right]
    for (_, a), (_, b) in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        assert a["id"] == b["id"]
        assert torch.equal(a["label"], b["label"])
        assert torch.equal(a["image"], b["image"])


def children() -> set[int]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split() if is_alive(int(pid))}


# --- the same batches, always ---------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_each_sample_occurs_once_per_epoch(n: int, batch_size: int, world: int, seed: int) -> None:
    plan = plan_of(n, batch_size, "3ep")
    orders = partial(epoch_order, seed, n=n, shuffle=True)
    of_rank = [list(training_requests(plan, orders, rank, world)(0)) for rank in range(world)]
    single_process = list(training_requests(plan, orders, 0, 1)(0))
    for epoch in range(3):
        indices = [i for request in single_process if request.global_batch.epoch == epoch for i in request.indices]
        assert sorted(indices) == list(range(n))
    for step, request in enumerate(single_process):
        slices = [requests[step] for requests in of_rank]
        assert {part.global_batch for part in slices} == {request.global_batch}
        # If a batch has fewer samples than there are processes, each process has all of them.
        copies = 1 if request.global_batch.count >= world else world
        assert np.concatenate([part.positions for part in slices]).tolist() == request.positions.tolist() * copies
        assert np.concatenate([part.indices for part in slices]).tolist() == request.indices.tolist() * copies


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 5))
def test_evaluation_sees_each_sample_once(n: int, batch_size: int, world: int) -> None:
    per_rank = [list(evaluation_requests(n, batch_size, rank, world)(0)) for rank in range(world)]
    by_step = sorted(
        (request for requests in per_rank for request in requests), key=lambda request: request.global_batch.step
    )
    assert [i for request in by_step for i in request.indices] == list(range(n))
    assert all(request.positions.size == request.global_batch.count > 0 for request in by_step)
    later = [request.global_batch for request in evaluation_requests(n, batch_size, world - 1, world)(2)]
    assert later == [request.global_batch for request in per_rank[-1] if request.global_batch.step >= 2]


def test_batches_do_not_depend_on_workers_and_start() -> None:
    def states() -> tuple[bytes, Any, bytes]:
        _, numbers, *_ = np.random.get_state()
        return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(numbers).tobytes()

    make, before = partial(make_loader, mixes=(partial(mixup, alpha=1.0),)), states()
    expected = read(make())
    for workers, start in ((0, 7), (1, 0), (3, 4)):
        assert_same(read(make(workers=workers), start), expected[start:])
    assert states() == before, "the generators of this process are unchanged"


def test_slices_of_the_processes_make_up_the_batch() -> None:
    for n, batch_size, world in ((23, 5, 2), (7, 2, 4)):
        slices = zip(*[read(make_loader(n, batch_size, rank=rank, world=world)) for rank in range(world)], strict=True)
        for (row, batch), rank_batches in zip(read(make_loader(n, batch_size)), slices, strict=True):
            copies = 1 if row.count >= world else world
            images = torch.cat([rank_batch["image"] for _, rank_batch in rank_batches])
            assert torch.equal(images, torch.cat([batch["image"]] * copies))


def test_random_numbers_depend_on_seed_epoch_and_position() -> None:
    images: dict[tuple[int, int, int], torch.Tensor] = {}
    for seed in (3, 4):
        batches = read(make_loader(6, 3, seed=seed, source=_Alike(6)))
        images |= {(seed, row.epoch, row.first + i): batch["image"][i] for row, batch in batches for i in range(3)}
    assert len({image.numpy().tobytes() for image in images.values()}) == 2 * 2 * 6


class _Ones(Numbers):
    """Numbers in place of samples."""

    def __getitem__(self, index: int) -> Any:
        return 1


class _Alike(Numbers):
    """The same sample at every index."""

    def __getitem__(self, index: int) -> Sample:
        return super().__getitem__(0)


def test_mixing_differs_between_steps_and_processes() -> None:
    def weights(rank: int) -> list[float]:
        loader = make_loader(40, 20, rank=rank, world=2, mixes=(partial(mixup, alpha=1.0),))
        return [batch["label"].max(dim=1).values.min().item() for _, batch in read(loader)]

    drawn = weights(0) + weights(1)
    assert len(set(drawn)) == len(drawn)


def test_batches_do_not_depend_on_the_number_of_threads() -> None:
    make = partial(make_loader, 8, 2, transforms=(summed,))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        main_process_batches = read(make(workers=0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert_same(main_process_batches, read(make(workers=1)))


def summed(sample: Sample) -> Sample:
    """Compute a sum whose rounding depends on the number of threads."""
    return {**sample, "image": torch.rand(300_000).sum()}


# --- one iterator over all epochs ----------------------------------------------------------------------------------


def test_prefetching_continues_into_the_next_epoch() -> None:
    requested: list[GlobalBatch] = []
    loader = make_loader(10, 5, length="4ep", workers=2)
    requests = loader._requests

    def recording_requests(start: int) -> Iterator[Any]:
        for request in requests(start):
            requested.append(request.global_batch)
            yield request

    loader._requests = recording_requests
    next(loader.iterate())
    assert requested[-1].epoch == 2  # 2 workers x 2 ahead, in epochs of 2 steps
    loader.close()


def test_iterations_can_be_dropped_and_repeated() -> None:
    expected = read(make_loader())
    for workers in (0, 2):
        loader = make_loader(workers=workers)
        dropped = loader.iterate()
        next(dropped)
        before = children()
        assert_same(list(loader.iterate(4)), expected[4:])
        with pytest.raises(RuntimeError, match="a later iterate"):
            next(dropped)
        assert_same(list(loader.iterate()), expected)
        assert children() == before, "workers persist"
        assert list(loader.iterate(len(expected))) == []
        loader.close()


def test_workers_end_when_their_loader_is_closed_or_dropped() -> None:
    before = children()
    loader = make_loader(workers=2)
    batches = loader.iterate()
    next(batches)
    assert len(children() - before) == 2
    loader.close()
    loader.close()
    assert children() == before
    batches = loader.iterate()
    assert_same([next(batches)], read(make_loader())[:1])
    assert len(children() - before) == 2, "closing is not final"
    del batches, loader
    assert children() == before


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 1])
def test_pinned_memory(workers: int) -> None:
    reader = BatchReader(Numbers(4), seed=1)
    loader = Loader(reader, evaluation_requests(4, 2, 0, 1), num_workers=workers, pin_memory=True)
    for row, batch in read(loader):
        assert isinstance(row, GlobalBatch)
        assert batch["image"].is_pinned()


def nested(sample: Sample) -> Sample:
    """Add a value of each kind that batches consist of."""
    image = sample["image"]
    return {
        **sample,
        "views": (image, image.flip(1)),
        "text": f"index {sample['label']}",
        "boxes": image.new_ones(2, 4),
    }


def test_pinned_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read here or pinned by the DataLoader's thread. Every pinned tensor passes through a replaced ``pin_memory``;
    older torch returned lists for tuples (pytorch issue 48419), by which views are recognized."""
    pinned = set()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        pinned.add(copy.data_ptr())
        return copy

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    for name in ("current_accelerator", "current_device_index", "set_device_index"):
        monkeypatch.setattr(torch.accelerator, name, lambda *index: None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    reader, requests = BatchReader(Numbers(4), (noisy, nested), seed=1), evaluation_requests(4, 2, 0, 1)
    expected = read(Loader(reader, requests))
    assert not pinned
    for workers in (0, 1):
        batches = read(Loader(reader, requests, num_workers=workers, pin_memory=True))
        assert_same(batches, expected)
        for (_, batch), (_, other) in zip(batches, expected, strict=True):
            assert type(batch["views"]) is tuple and batch["text"] == other["text"]
            tensors = [batch["image"], batch["label"], batch["boxes"], *batch["views"]]
            assert {tensor.data_ptr() for tensor in tensors} <= pinned
            assert all(map(torch.equal, batch["views"], other["views"]))


def test_readers_can_be_pickled() -> None:
    reader = BatchReader(Numbers(8), (noisy, v2.RandomCrop(6)), (partial(mixup, alpha=1.0),), DATASET_INFO, seed=1)
    requests = list(evaluation_requests(8, 4, 0, 1)(0))
    assert isinstance(reader[requests[0]], LoadedBatch)  # then it holds functions and the ids of its transforms
    unpickled: BatchReader = pickle.loads(pickle.dumps(reader))
    assert unpickled.__dict__.keys() == {field.name for field in fields(BatchReader)}
    for request in requests:
        assert torch.equal(unpickled.batch(request)["image"], reader.batch(request)["image"])


@pytest.fixture
def start_method_of_python_3_14() -> Iterator[None]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("start_method_of_python_3_14")
def test_workers_are_forked_whatever_the_default() -> None:
    transforms = (lambda sample: {**sample, "image": sample["image"] + 1},)  # cannot be pickled
    loader = make_loader(workers=1, transforms=transforms)
    next(loader.iterate())
    assert loader._workers is not None
    assert loader._workers._data_loader.collate_fn.__name__ == "pack", "in reused memory"
    assert_same(read(loader), read(make_loader(transforms=transforms)))


@pytest.mark.slow
def test_spawned_workers_read_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(worker_processes, "_START_METHOD", "spawn")
    reader, requests = BatchReader(Numbers(8), (v2.RandomCrop(6),), seed=1), evaluation_requests(8, 4, 0, 1)
    assert_same(read(Loader(reader, requests, num_workers=1)), read(Loader(reader, requests)))


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_readers_that_cannot_be_spawned_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "_START_METHOD", "spawn")
    loader = make_loader(workers=1, transforms=(lambda sample: sample,))
    for _ in range(2):
        with pytest.raises(DataError, match=r"cannot be sent to a loader worker: .*lambda.*; set data.num_workers=0"):
            next(loader.iterate())
    loader.close()


# --- errors ---------------------------------------------------------------------------------------------------------


def too_small(sample: Sample) -> Sample:
    raise ValueError("crop 9 x 9 does not fit")


def forgetful(sample: Sample) -> None:
    pass


def of_its_own_size(sample: Sample) -> Sample:
    return {**sample, "image": sample["image"][:, : 4 + int(sample["id"][2:]) % 2]}


def unlucky(batch: Batch, dataset_info: DatasetInfo, /) -> Batch:
    raise KeyError("boxes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": Numbers(23, broken=7)}, "sample 7, Numbers: OSError: the disk is on fire"),
        ({"source": Numbers(23, broken=7), "workers": 2}, "sample 7, Numbers: OSError: the disk is on fire"),
        ({"transforms": [partial(too_small)]}, "(n/17), too_small: crop 9 x 9 does not fit"),
        ({"transforms": [v2.LinearTransformation(torch.eye(2), torch.zeros(2))]}, "LinearTransformation"),
        ({"transforms": [forgetful, noisy]}, "forgetful: TypeError: returned a NoneType, not a sample"),
        ({"source": _Ones(23)}, "_Ones: TypeError: returned a int, not a sample (dict)"),
        ({"transforms": [of_its_own_size]}, "step 0, collate: 'image' differs in size: n/"),
        ({"mixes": [unlucky]}, "step 0, unlucky: KeyError: 'boxes'"),
    ],
)
def test_errors_name_the_sample_and_the_transform(arguments: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        read(make_loader(**arguments))
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
    assert "Traceback" in error.value.__notes__[0] and isinstance(error.value, ValueError)


# --- processes and signals ------------------------------------------------------------------------------------------


def test_workers_leave_stop_signals_to_the_main_process() -> None:
    before = children()
    loader = make_loader(60, 2, workers=2)
    batches = loader.iterate()
    first = next(batches)
    for pid in children() - before:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    assert_same([first, *batches], read(make_loader(60, 2)))
    loader.close()


PROGRAM = """
    import os, signal, sys, time
    import torch
    from opabinia.contracts import Source, SourceInfo
    from opabinia.data.loader import Loader
    from opabinia.data.reading import BatchReader
    from opabinia.data.sampling.requests import evaluation_requests

    class Slow(Source):
        info = SourceInfo(channels=1)
        def __len__(self): return 100_000
        def __getitem__(self, index):
            time.sleep({seconds} if index > {after} else 0)
            return {{"image": torch.zeros(1, 2, 2)}}

    loader = Loader(BatchReader(Slow()), evaluation_requests(100_000, 10, 0, 1), num_workers=2)
    batches = loader.iterate()
"""


def code(body: str, *, seconds: float = 0.0, after: int = 0) -> str:
    return textwrap.dedent(PROGRAM).format(seconds=seconds, after=after) + textwrap.dedent(body)


SHOW_WORKERS = "print(*[worker.pid for worker in loader._workers.processes], flush=True)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "seconds"), [("", 0.0), ("loader.close()", 0.0), ("", 600.0)], ids=["unfinished", "closed", "busy workers"]
)
def test_an_unfinished_iteration_does_not_delay_the_exit(warm_server: Server, end: str, seconds: float) -> None:
    program = warm_server.start(code=code(f"next(batches)\n{SHOW_WORKERS}\n{end}", seconds=seconds, after=30))
    assert program.wait(40) == 0
    pids = [int(pid) for pid in program.out.split()]
    assert len(pids) == 2 and all_gone(pids, 1)


def test_stop_signals_while_workers_start(warm_server: Server) -> None:
    """Signals are sent to the process group, as a terminal and many schedulers do."""
    body = """
        signals = []
        signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
        print("ready", flush=True)
        while len(signals) < 5:
            time.sleep(0.001)
        for turn in range(5):
            list(zip(range(3), loader.iterate()))
            loader.close()
        print(len(signals), flush=True)
    """
    program = warm_server.start(code=code(body))
    program.until(lambda: program.out == "ready\n")
    while (status := program.wait(0)) is None:
        program.signal_group(signal.SIGTERM)
        time.sleep(0.001)
    assert int(program.out.split()[1]) > 20
    # At exit Python restores the default action of SIGTERM.
    assert status in (0, -signal.SIGTERM)


class _SlowNumbers(Numbers):
    def __getitem__(self, index: int) -> Sample:
        time.sleep(0.05)
        return super().__getitem__(index)


def test_seconds_is_the_duration_of_reading_a_batch() -> None:
    """In a worker or in this process; the time that the consumer needs does not count."""
    for workers in (0, 1):
        loader = Loader(BatchReader(_SlowNumbers(4)), evaluation_requests(4, 2, 0, 1), num_workers=workers)
        assert loader.seconds == 0
        for _ in loader.iterate():
            assert 0.1 <= loader.seconds < 5
        loader.close()


class _Dying:
    """Like torch's iterator when a worker's pipe closes; the worker closes its files well before it exits."""

    def __init__(self) -> None:
        self._workers = [multiprocessing.get_context("fork").Process(target=self._die)]
        self._workers[0].start()

    @staticmethod
    def _die() -> None:
        os.closerange(3, 1024)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    def __iter__(self) -> Iterator[Any]:
        raise ConnectionResetError


def test_a_worker_that_dies_slowly_is_named() -> None:
    results = _Dying()
    with pytest.raises(RuntimeError, match=rf"\(pid {results._workers[0].pid}\) is killed by signal: Killed"):
        next(_receive(results))
