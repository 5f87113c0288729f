"""Batches of this process, read ahead by worker processes, from any step on.

The loader is handed *requests*: which row of the plan, and which samples of it are this process's. Training and
evaluation differ only by them. One iterator runs over all remaining requests of the whole run, so prefetching does not
drain at the end of an epoch and starting anywhere is index arithmetic. Whatever is drawn while a sample is made comes
from (seed, epoch, position), whatever mixing draws from (seed, step, rank): batches do not depend on the workers.
"""

from __future__ import annotations

import atexit
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from opabinia.contracts import Batch, Facts, Mix, Plan, Row, Sample, Source, Transform
from opabinia.data.batches import evaluation_rows, share
from opabinia.data.collate import collate
from opabinia.data.order import Indices, Order
from opabinia.runtime.seeds import MIX, SAMPLE, generators_kept, hash32, seed_sample


class DataError(ValueError):
    """A sample could not be made. The text names the sample, the source or transform, and the original message.

    The traceback of the worker is attached as a note.
    """

    exit_status = 2


# --- requests -------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """The samples of one batch that are for this process.

    Attributes:
        row: the global batch.
        positions: of this process's samples in the epoch (int64, B); may be empty.
        indices: of the same samples in the source (int64, B).
    """

    row: Row
    positions: Indices
    indices: Indices


Requests = Callable[[int], Iterable[Request]]
"""All requests from a step on."""


def training_requests(plan: Plan, orders: Callable[[int], Order], rank: int, world: int) -> Requests:
    """This process's slice of every batch of ``plan``; ``orders`` gives the order of an epoch."""

    def requests(start: int) -> Iterator[Request]:
        for step in range(start, plan.total_steps):
            row = plan.row(step)
            positions = row.first + _array(share(row.count, rank, world))
            yield Request(row, positions, orders(row.epoch)(positions))

    return requests


def evaluation_requests(samples: int, batch_size: int, rank: int, world: int) -> Requests:
    """Whole batches in turn, in the order of the source: one pass, each sample seen by exactly one process."""

    def requests(start: int) -> Iterator[Request]:
        for row in evaluation_rows(samples, batch_size, rank, world):
            if row.step >= start:
                positions = row.first + _array(range(row.count))
                yield Request(row, positions, positions)

    return requests


def _array(numbers: range) -> Indices:
    return np.arange(numbers.start, numbers.stop, dtype=np.int64)


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Failure:
    """What a worker sends in place of a batch."""

    message: str
    traceback: str


_NO_FACTS = Facts(samples=0)


@dataclass(frozen=True)
class Reader(Dataset[tuple[Row, Batch] | _Failure]):
    """Makes the batch of a request: read, transform, collate, mix. A pure function of seed and request.

    Attributes:
        source: where samples come from.
        transforms: changes to a sample, in order.
        mixes: changes to the collated batch, in order.
        facts: of the training data, for the mixes.
        seed: of the run.
        rank: of this process, so that processes mix differently.
    """

    source: Source
    transforms: Sequence[Transform] = ()
    mixes: Sequence[Mix] = ()
    facts: Facts = _NO_FACTS
    seed: int = 0
    rank: int = 0

    def __getitem__(self, request: Request) -> tuple[Row, Batch] | _Failure:
        try:
            with generators_kept(), _one_thread():
                return request.row, self.batch(request)
        except DataError as error:
            return _Failure(str(error), traceback.format_exc())

    def batch(self, request: Request) -> Batch:
        """The batch of this request. Without positions: all keys, types and shapes, of no samples.

        Draws from the global generators; disturbs them.

        Raises:
            DataError: a sample could not be read or transformed, or the samples do not make a batch.
        """
        if not request.positions.size:
            one = request._replace(positions=_array(range(request.row.first, request.row.first + 1)), indices=_NONE)
            return {key: value[:0] for key, value in self.batch(one).items()}
        row = request.row
        numbers = zip(request.positions.tolist(), request.indices.tolist(), strict=True)
        samples = [self._sample(row.epoch, position, index) for position, index in numbers]
        seed_sample(hash32(MIX, self.seed, row.step, self.rank))
        with _told(f"step {row.step}", collate):
            batch = collate(samples)
        for mix in self.mixes:
            with _told(f"step {row.step}", mix):
                batch = mix(batch, self.facts)
        return batch

    def _sample(self, epoch: int, position: int, index: int) -> Sample:
        seed_sample(hash32(SAMPLE, self.seed, epoch, position))
        with _told(f"sample {index}", self.source):
            sample = _checked(self.source[index])
        for transform in self.transforms:
            with _told(f"sample {index} ({sample.get('id', 'without id')})", transform):
                sample = _checked(transform(sample))
        return sample


_NONE = np.zeros(1, dtype=np.int64)


def _checked(sample: Any) -> Sample:
    if not isinstance(sample, dict):
        raise TypeError(f"gives a {type(sample).__name__} where a sample, a dict, is expected")
    return sample


@contextmanager
def _told(what: str, part: object) -> Iterator[None]:
    """Turn whatever goes wrong inside into a DataError that says with what and where."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{what}, {_name(part)}: {type(error).__name__}: {error}") from error


def _name(part: object) -> str:
    if isinstance(part, partial):
        return _name(part.func)
    return getattr(part, "__name__", None) or type(part).__name__


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker: with more threads sums (a mean in ColorJitter) have other last bits. Costs under 1 us."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- loading --------------------------------------------------------------------------------------------------------


class Loader:
    """Batches of this process in order (:class:`opabinia.contracts.Loader`).

    Workers start at the first batch, serve all later passes and end with :meth:`close`, at the latest when this process
    exits or (after some seconds) is killed. They ignore SIGTERM and Ctrl-C: the main process decides.

    Args:
        reader: makes a batch.
        requests: which batches, from a step on.
        workers: processes that read; 0 reads in this one, with the same result.
        prefetch: batches each worker reads ahead.
        pin_memory: hand tensors out in pinned memory, for copies to a GPU that nobody waits for.

    Example::

        requests = training_requests(plan, partial(order, seed, n=len(source), shuffle=True), rank=0, world=1)
        loader = Loader(Reader(source, transforms, seed=seed), requests, workers=2)
        for row, batch in loader.iterate(start=plan.epoch_start(3)):
            ...
        loader.close()
    """

    def __init__(
        self, reader: Reader, requests: Requests, *, workers: int = 0, prefetch: int = 2, pin_memory: bool = False
    ) -> None:
        self._requests = _FromStart(requests)
        self._turn = 0
        self._batches: DataLoader[tuple[Row, Batch] | _Failure] = DataLoader(
            reader,
            batch_size=None,  # what the sampler gives is one whole request
            sampler=self._requests,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=partial(_start_worker, os.getpid()),
            pin_memory=pin_memory,
            generator=torch.Generator(),  # without its own it draws from the global one
        )
        _open.add(self)

    def iterate(self, start: int = 0) -> Iterator[tuple[Row, Batch]]:
        """Rows and batches from step ``start`` on. A second iteration ends the one before.

        Raises:
            DataError: a sample could not be made.
            RuntimeError: a worker died, or this iteration goes on after a later one began.
        """
        self._turn += 1
        turn = self._turn
        self._requests.start = start
        with _signals_held():
            results = iter(self._batches)
        for result in results:
            if isinstance(result, _Failure):
                error = DataError(result.message)
                error.add_note(result.traceback)
                raise error
            yield result
            if turn != self._turn:
                raise RuntimeError("a later iterate() of this loader has begun and ended this one")

    def close(self) -> None:
        """End the workers. Iterating later starts new ones."""
        self._turn += 1
        results: Any = self._batches._iterator
        self._batches._iterator = None
        if results is not None:
            results._shutdown_workers()
            for worker in results._workers:
                if worker.is_alive():  # busy for long; it ignores SIGTERM, and Python would wait for it at exit
                    worker.kill()


class _FromStart(Sampler[Request]):
    """Requests from ``start`` on, each time the DataLoader begins anew."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.start = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests(self.start))


def _as_it_is(result: Any) -> Any:
    return result


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold stop signals back while workers start, so that none finds one that does not ignore them yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(main: int, number: int) -> None:
    if os.getppid() != main:
        os._exit(1)  # torch watches the parent from here on, and would watch whoever has adopted the worker
    for stop_signal in _STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


_open: WeakSet[Loader] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Run before torch and multiprocessing, whose own clean-up would wait for ever for workers without SIGTERM."""
    for loader in list(_open):
        loader.close()
