"""Batches of this process, read ahead by worker processes, from any step on.

The loader is handed *requests*: which row of the plan, and which samples of it are this process's. Training and
evaluation differ only by them. One iterator runs over all remaining requests of the whole run, so prefetching does not
drain at the end of an epoch and starting anywhere is index arithmetic. Whatever is drawn while a sample is made comes
from (seed, epoch, position), whatever mixing draws from (seed, step, rank): batches do not depend on the workers.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, groupby
from multiprocessing.connection import wait
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset, Sampler

from opabinia.contracts import Batch, Combination, DatasetInfo, Indices, Mix, Plan, Row, Sample, Source, Transform
from opabinia.data.collate import collate, is_of_clips, resized
from opabinia.data.decoding.images import LazyImage, opened
from opabinia.data.sampling.batches import evaluation_rows
from opabinia.data.sampling.permutation import Order
from opabinia.runtime.log import log
from opabinia.runtime.seeds import ANOTHER, MIX, REPLACEMENT, SAMPLE, generators_kept, hash32, seed_sample


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
        positions: of this process's samples in the epoch (int64, B).
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
        rows = map(plan.row, range(start, plan.total_steps))
        for epoch, of_epoch in groupby(rows, attrgetter("epoch")):
            order = orders(epoch)
            while some := _some(of_epoch):
                # Looking up many positions at once takes hardly longer than a few.
                positions = [row.first + _array(row.share(rank, world)) for row in some]
                indices, first = order(np.concatenate(positions)), 0
                for row, own in zip(some, positions, strict=True):
                    yield Request(row, own, indices[first : first + len(own)])
                    first += len(own)

    return requests


def _some(rows: Iterator[Row]) -> list[Row]:
    """The next rows, about ``_LOOKED_UP`` samples."""
    some: list[Row] = []
    samples = 0
    for row in rows:
        some.append(row)
        samples += row.count
        if samples >= _LOOKED_UP:
            break
    return some


_LOOKED_UP = 4096


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


class Read(NamedTuple):
    """What a worker sends: a batch and its row, what was wrong with samples that had to be passed over, and how many
    seconds it took.

    The batch is None when none of its samples could be read.
    """

    row: Row
    batch: Batch | None
    passed_over: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class _Failure:
    """What a worker sends in place of a batch."""

    message: str
    traceback: str


_NO_FACTS = DatasetInfo(samples=0)


@dataclass(frozen=True)
class Reader(Dataset[Read | _Failure]):
    """Makes the batch of a request: read, transform, collate, mix. A pure function of seed and request.

    A source that hands over whole batches does so when there are no transforms.

    Attributes:
        source: where samples come from.
        transforms: changes to a sample, in order.
        mixes: changes to the collated batch, in order.
        facts: of the training data, for the mixes.
        seed: of the run.
        rank: of this process, so that processes mix differently.
        on_error: what is done about a sample that cannot be made: ``raise`` ends the run; ``replace`` takes another
            one of the same label if there is one, chosen by seed, epoch, position and attempt; ``leave_out`` makes the
            batch smaller.
        size_multiple: images may differ in size (:func:`opabinia.data.collate.collate`).
        reduced: let the first transform decode of a picture what it takes, and no finer than it is resized to; where it
            and the source know how.
    """

    source: Source
    transforms: Sequence[Transform] = ()
    mixes: Sequence[Mix] = ()
    dataset_info: DatasetInfo = _NO_FACTS
    seed: int = 0
    rank: int = 0
    on_error: Literal["raise", "replace", "leave_out"] = "raise"
    size_multiple: int | None = None
    reduced: bool = False

    def __getitem__(self, request: Request) -> Read | _Failure:
        began = time.perf_counter()
        if self._hands_over and not self.mixes and request.row.shape is None:
            # Nothing is drawn, nothing is computed. What goes wrong is found out below.
            with suppress(Exception):
                batch = self.source.batch(request.indices)  # type: ignore[attr-defined]
                return Read(request.row, batch, (), time.perf_counter() - began)
        try:
            with generators_kept(), _one_thread():
                return self.read(request)._replace(seconds=time.perf_counter() - began)
        except DataError as error:
            return _Failure(str(error), traceback.format_exc())

    @cached_property
    def _hands_over(self) -> bool:
        return not self.transforms and hasattr(self.source, "batch")

    def batch(self, request: Request) -> Batch:
        """The batch of this request, of whose samples none may be passed over without replacement.

        Draws from the global generators; disturbs them.

        Raises:
            DataError: a sample could not be read or transformed, or the samples do not make a batch.
        """
        batch = self.read(request).batch
        if batch is None:
            raise DataError(f"step {request.row.step}: none of its samples can be read")
        return batch

    def read(self, request: Request) -> Read:
        """As :meth:`batch`, with what was passed over; no batch if none of its samples can be read."""
        batch, passed_over = self._collated(request)
        return Read(request.row, batch and self.finished(batch, request.row), tuple(passed_over))

    def finished(self, batch: Batch, row: Row) -> Batch:
        """A collated batch in the size of its row, and mixed. Draws from the global generators.

        Raises:
            DataError: it cannot be resized or mixed.
        """
        if row.shape is not None:
            with _told(f"step {row.step}", resized):
                batch = resized(batch, row.shape)
        if self.mixes:
            seed_sample(hash32(MIX, self.seed, row.step, self.rank))
            for mix in self.mixes:
                with _told(f"step {row.step}", mix):
                    batch = mix(batch, self.dataset_info)
        return batch

    def _collated(self, request: Request) -> tuple[Batch | None, list[str]]:
        row = request.row
        if self._hands_over:
            try:
                with _told(f"step {row.step}", self.source):
                    return self.source.batch(request.indices), []  # type: ignore[attr-defined]
            except DataError:
                pass  # one by one it comes out which sample it was
        passed_over: list[str] = []
        samples = []
        for position, index in zip(request.positions.tolist(), request.indices.tolist(), strict=True):
            sample = self._sample_or_another(row, position, index, passed_over)
            if sample is not None:
                samples.append(sample)
        if not samples:
            return None, passed_over
        with _told(f"step {row.step}", collate):
            return collate(samples, self.size_multiple), passed_over

    def _sample_or_another(self, row: Row, position: int, index: int, passed_over: list[str]) -> Sample | None:
        shape = row.shape if row.shape is not None and is_of_clips(row.shape) else None
        tried = [index]
        for attempt in range(_ATTEMPTS):
            try:
                return self._sample(row.epoch, position, index, shape)
            except DataError as error:
                if self.on_error == "raise":
                    raise
                passed_over.append(str(error))
                if self.on_error == "leave_out":
                    return None
                index = self._another(tried, hash32(REPLACEMENT, self.seed, row.epoch, position, attempt))
                tried.append(index)
        raise DataError(f"{_ATTEMPTS} samples in a row could not be read; the last: {passed_over[-1]}")

    def _another(self, tried: list[int], draw: int) -> int:
        """In place of the first of those tried: one of the same label, for samplers count on it; else any."""
        labels = np.asarray(getattr(self.source, "labels", ()))
        if labels.ndim == 1 and labels.size:
            alike = np.setdiff1d(np.flatnonzero(labels == labels[tried[0]]), tried)
            if alike.size:
                return int(alike[draw % alike.size])
        return draw % len(self.source)

    def _sample(self, epoch: int, position: int, index: int, shape: tuple[int, ...] | None) -> Sample:
        return self._changed(index, hash32(SAMPLE, self.seed, epoch, position), self.transforms, shape)

    def _changed(
        self, index: int, key: int, transforms: Sequence[Transform], shape: tuple[int, ...] | None = None
    ) -> Sample:
        """A sample of the source after ``transforms``; what they draw comes from ``key``. Of clips they are told the
        ``shape`` that is wanted, as decoding more than that would be in vain."""
        if transforms:  # sources draw nothing
            seed_sample(key)
        part: object = self.source
        sample: Sample | None = None
        try:  # not a context for each part: these take as long as a small transform
            sample = _checked(self._taken(index))
            if shape is not None:
                sample = {**sample, "shape": shape}
            for number, part in enumerate(transforms):
                if isinstance(sample.get("image"), LazyImage):
                    sample = _checked(part.of_encoded(sample))  # type: ignore[attr-defined]
                elif id(part) in self._combinations:
                    others = self._others(key, transforms[:number], shape)
                    sample = _checked(part.combine(sample, others))  # type: ignore[attr-defined]
                else:
                    sample = _checked(part(sample))
        except Exception as error:
            name = "" if sample is None else f" ({sample.get('id', 'without id')})"
            raise _failed(f"sample {index}{name}", part, error) from error
        if shape is not None:
            sample.pop("shape", None)
        return sample

    @cached_property
    def _combinations(self) -> frozenset[int]:
        """Which transforms are Combinations; asking them takes 15 us each time."""
        return frozenset(id(one) for one in self.transforms if isinstance(one, Combination))

    @cached_property
    def _taken(self) -> Callable[[int], Sample]:
        """The samples of the source by index; with pictures not decoded yet where the first transform does that."""
        knows = bool(self.transforms) and getattr(self.transforms[0], "of_encoded", None) is not None
        taken = getattr(self.source, "encoded", None) if self.reduced and knows else None
        return self.source.__getitem__ if taken is None else lambda index: opened(taken(index))

    def _others(self, key: int, transforms: Sequence[Transform], shape: tuple[int, ...] | None) -> Callable[[], Sample]:
        """Further samples for one that is combined with others: each call gives the next."""
        keys = (hash32(ANOTHER, key, len(transforms), number) for number in count())

        def another() -> Sample:
            own = next(keys)
            with generators_kept():
                return self._changed(own % len(self.source), own, transforms, shape)

        return another


_ATTEMPTS = 20


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
        raise _failed(what, part, error) from error


def _failed(what: str, part: object, error: Exception) -> DataError:
    return DataError(f"{what}, {_name(part)}: {type(error).__name__}: {error}")


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
        pin_memory: workers hand tensors out in pinned memory, for copies to a GPU that nobody waits for.

    Attributes:
        passed_over: samples that could not be read so far.
        seconds: that reading the newest batch took, in a worker.

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
        self.passed_over, self.seconds = 0, 0.0
        self._named: set[str] = set()
        self._reader, self._requests = reader, _FromStart(requests)
        self._turn = 0
        self._workers: DataLoader[Read | _Failure] | None = None
        if workers:
            self._workers = DataLoader(
                reader,
                batch_size=None,  # what the sampler gives is one whole request
                sampler=self._requests,
                collate_fn=_as_it_is,
                num_workers=workers,
                prefetch_factor=prefetch,
                persistent_workers=True,
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
        for result in self._results():
            if isinstance(result, _Failure):
                error = DataError(result.message)
                error.add_note(result.traceback)
                raise error
            if result.passed_over:
                self._tell(result.passed_over)
            self.seconds = result.seconds
            if result.batch is not None:
                yield result.row, result.batch
            if turn != self._turn:
                raise RuntimeError("a later iterate() of this loader has begun and ended this one")

    def _results(self) -> Iterator[Read | _Failure]:
        if self._workers is None:
            return map(self._reader.__getitem__, self._requests)
        with _signals_held():
            results = iter(self._workers)
        return _received(results)

    def _tell(self, passed_over: Sequence[str]) -> None:
        """Count them, and name the first ones, each once: it comes again in every epoch, and in all views of a film."""
        for message in passed_over:
            self.passed_over += 1
            name = _PLACE.sub("", message)
            if name in self._named or len(self._named) > _TOLD:
                continue
            self._named.add(name)
            if len(self._named) <= _TOLD:
                log.warning("passed over: %s", message)
            else:
                log.warning("more samples are passed over; they are counted, but not named any more")

    def close(self) -> None:
        """End the workers. Iterating later starts new ones."""
        self._turn += 1
        if self._workers is None:
            return
        results: Any = self._workers._iterator
        self._workers._iterator = None
        if results is None:
            return
        try:
            if all(worker.is_alive() for worker in results._workers):
                results._shutdown_workers()
        except RuntimeError:  # a worker has died meanwhile: torch tells it wherever it finds the main process
            log.debug("a loader worker died while its loader was closed")
        finally:
            # A worker that was killed may hold a lock for which torch's own clean-up would wait for ever.
            if not results._shutdown:
                results._shutdown = True
                _remove_worker_pids(id(results))
                results._worker_pids_set = False
            for worker in results._workers:
                if worker.is_alive():  # busy for long; it ignores SIGTERM, and Python would wait for it at exit
                    worker.kill()


def _received(results: Any) -> Iterator[Read | _Failure]:
    """What workers hand over. One that dies is told as torch tells it, however torch came to know of it."""
    try:
        yield from results
    except (ConnectionError, EOFError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "exited unexpectedly" not in str(error):
            raise
        gone = wait([worker.sentinel for worker in results._workers], timeout=2)  # its pipe may be closed before
        dead = [worker for worker in results._workers if worker.sentinel in gone]
        for worker in dead:
            worker.join()  # the sentinel tells it a moment before the exit status can be asked for
        which = ", ".join(str(worker.pid) for worker in dead) or "unknown"
        how = signal.strsignal(-dead[0].exitcode) if dead and dead[0].exitcode < 0 else "unknown"
        raise RuntimeError(f"DataLoader worker (pid {which}) is killed by signal: {how}") from error


_TOLD = 10
_PLACE = re.compile(r"^sample \d+ (?=\((?!without id\)))")
"""Which place in its source a sample with an id has."""


class _FromStart(Sampler[Request]):
    """Requests from ``start`` on, each time the DataLoader begins anew."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.start = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests(self.start))


def _as_it_is(result: Any) -> Any:
    return result


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


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
