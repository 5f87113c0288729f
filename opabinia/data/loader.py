"""Batches of this process, read ahead by worker processes, from any step on.

How a batch is made:

1. The plan says which positions of an epoch form the batch of a step; a *request* holds this process's share of them
   and the indices of these samples in the source (``training_requests``, ``evaluation_requests``).
2. A :class:`BatchReader` turns a request into a batch: read, transform, collate, resize, mix. It is a pure function of
   seed and request. Before each sample the global generators of torch, NumPy and Python are seeded from (seed, epoch,
   position), before mixing from (seed, step, rank). So a batch does not depend on the number of workers, on which
   worker reads it, or on the step at which the run was resumed.
3. A :class:`Loader` runs the reader in worker processes by torch's ``DataLoader`` and returns batches in order, which
   come in memory that is reused (:mod:`opabinia.data.batch_memory`).

One iterator runs over all remaining requests of the whole run: workers are not restarted between epochs and prefetching
does not drain at their end. To resume, the requests begin at another step; nothing is skipped by reading it.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import chain, count, groupby, islice
from multiprocessing.connection import wait
from operator import attrgetter
from pickle import PicklingError
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset, Sampler

from opabinia.contracts import (
    Batch,
    CombiningTransform,
    DatasetInfo,
    GlobalBatch,
    Indices,
    Mix,
    Plan,
    Sample,
    Source,
    Transform,
)
from opabinia.data.batch_memory import BatchMemory
from opabinia.data.collate import collate, is_clip_shape, resize_batch
from opabinia.data.decoding.images import DeferredImage, decode_sample, read_encoded
from opabinia.data.decoding.resized import decode_large
from opabinia.data.sample_keys import GROUND_TRUTH_KEYS
from opabinia.data.sampling.batches import evaluation_batches
from opabinia.data.sampling.epoch_order import Order
from opabinia.runtime.local_copies import fetch_all
from opabinia.runtime.log import log
from opabinia.runtime.seeds import ANOTHER, MIX, REPLACEMENT, SAMPLE, hash32, preserve_generators, seed_sample
from opabinia.runtime.signals import STOP_SIGNALS
from opabinia.runtime.storage import StorageError
from opabinia.runtime.text import error_text

# Runs state at their start that they have more workers than cores; torch repeats it for each loader, without the key.
warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
# The loader says what to do about it.
warnings.filterwarnings("ignore", "Got pickle error when attempting to start a worker", UserWarning)


class DataError(ValueError):
    """A sample could not be made. The text names the sample, the source or transform, and the original message.

    The traceback of the worker is attached as a note.
    """

    exit_status = 2


_HINT = "; `opabinia data check` lists all samples that cannot be read, data.on_error=skip omits them"
"""End of the error of a sample that cannot be read."""


# --- requests -------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """The samples of one batch that this process reads.

    Attributes:
        global_batch: the global batch.
        positions: of this process's samples in the epoch (int64, B).
        indices: of the same samples in the source (int64, B).
    """

    global_batch: GlobalBatch
    positions: Indices
    indices: Indices


Requests = Callable[[int], Iterable[Request]]
"""Returns all requests from a step on."""

_POSITIONS_PER_LOOKUP = 4096


def training_requests(plan: Plan, orders: Callable[[int], Order], rank: int, world: int) -> Requests:
    """Return this process's share of every batch of ``plan``; ``orders`` returns the order of an epoch."""

    def requests(start: int) -> Iterator[Request]:
        planned_batches = map(plan.global_batch, range(start, plan.total_steps))
        for epoch, batches in groupby(planned_batches, attrgetter("epoch")):
            order, count = orders(epoch), 1
            # Looking up thousands of positions takes hardly longer than looking up one.
            while chunk := list(islice(batches, count)):
                positions = [planned.first + _array(planned.rank_range(rank, world)) for planned in chunk]
                count = max(1, _POSITIONS_PER_LOOKUP // len(positions[0]))
                indices, first = order(np.concatenate(positions)), 0
                for planned, local in zip(chunk, positions, strict=True):
                    yield Request(planned, local, indices[first : first + len(local)])
                    first += len(local)

    return requests


def evaluation_requests(samples: int, batch_size: int, rank: int, world: int) -> Requests:
    """Return whole batches in the order of the source: one pass, in which each sample is read by exactly one
    process."""

    def requests(start: int) -> Iterator[Request]:
        for global_batch in evaluation_batches(samples, batch_size, rank, world):
            if global_batch.step >= start:
                positions = global_batch.first + _array(range(global_batch.count))
                yield Request(global_batch, positions, positions)

    return requests


def _array(numbers: range) -> Indices:
    return np.arange(numbers.start, numbers.stop, dtype=np.int64)


# --- reading --------------------------------------------------------------------------------------------------------


class LoadedBatch(NamedTuple):
    """A batch as a worker sends it.

    Attributes:
        global_batch: the global batch.
        batch: None if none of its samples could be read.
        skipped: error messages of samples that were skipped or replaced.
        seconds: duration of reading.
    """

    global_batch: GlobalBatch
    batch: Batch | None
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0

    def pin_memory(self) -> LoadedBatch:
        """Return it with its tensors in pinned memory. The DataLoader's thread calls this, too, so that batches are the
        same with and without workers."""
        return self._replace(batch=_pinned(self.batch))


def _pinned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory()
    if isinstance(value, dict):
        return {key: _pinned(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_pinned, value))
    return value


class _Failure(NamedTuple):
    """Sent by a worker instead of a batch: exceptions do not survive the way to the main process unchanged."""

    message: str
    traceback: str


_MAX_REPLACEMENTS = 20


@dataclass(frozen=True)
class BatchReader(Dataset[LoadedBatch | _Failure]):
    """Read the batch of a request: read, transform, collate, resize, mix. A pure function of seed and request.

    If there are no transforms, the source is asked for the whole batch.

    Attributes:
        source: of the samples.
        transforms: applied to each sample, in order.
        mixes: applied to the collated batch, in order.
        dataset_info: of the training data, for the mixes.
        seed: of the run.
        rank: of this process, so that processes mix differently.
        on_error: for a sample that cannot be made: ``raise`` ends the run; ``replace`` takes another one, of the same
            label if there is one, chosen by seed, epoch, position and attempt; ``skip`` makes the batch smaller.
        size_multiple: images may differ in size (:func:`opabinia.data.collate.collate`).
        reduced: let the first transform decode only the crop that it takes, at the lowest sufficient resolution, if it
            and the source support this.
        task: in a multi-task run, the name of the task that is evaluated; it is added to each batch.
        ground_truth: keep what only evaluators read (:data:`opabinia.data.sample_keys.GROUND_TRUTH_KEYS`).
    """

    source: Source
    transforms: Sequence[Transform] = ()
    mixes: Sequence[Mix] = ()
    dataset_info: DatasetInfo = DatasetInfo(samples=0)
    seed: int = 0
    rank: int = 0
    on_error: Literal["raise", "replace", "skip"] = "raise"
    size_multiple: int | None = None
    reduced: bool = False
    task: str | None = None
    ground_truth: bool = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: what is derived from them cannot be pickled, or has the ids of this process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getitem__(self, request: Request) -> LoadedBatch | _Failure:
        start = time.perf_counter()
        if not self.mixes and request.global_batch.shape is None and not self.task:
            # Nothing is drawn and nothing computed, so the generators need no care.
            batch = self._whole_batch(request)
            if batch is not None:
                return LoadedBatch(request.global_batch, batch, (), time.perf_counter() - start)
        try:
            with preserve_generators(), _one_thread():
                return self.read(request)._replace(seconds=time.perf_counter() - start)
        except DataError as error:
            return _Failure(str(error), traceback.format_exc())

    def _whole_batch(self, request: Request) -> Batch | None:
        """Return the batch of a source that returns whole batches; None: read one by one, the samples show which of
        them is at fault, if any."""
        if not self.transforms:
            with suppress(Exception):
                return self.source.batch(request.indices)
        return None

    def batch(self, request: Request) -> Batch:
        """Return the batch of a request with at least one readable sample. Seeds and uses the global generators.

        Raises:
            DataError: a sample could not be read or transformed, or the samples do not form a batch.
        """
        batch = self.read(request).batch
        if batch is None:
            raise DataError(f"step {request.global_batch.step}: none of its samples can be read")
        return batch

    def read(self, request: Request) -> LoadedBatch:
        """Return the batch of a request with the messages of skipped samples."""
        batch, skipped = self._collate(request)
        return LoadedBatch(request.global_batch, batch and self.finish(batch, request.global_batch), tuple(skipped))

    def finish(self, batch: Batch, global_batch: GlobalBatch) -> Batch:
        """Resize a collated batch to the shape of its global batch, and mix it. Seeds and uses the global generators.

        Raises:
            DataError: it cannot be resized or mixed.
        """
        if global_batch.shape is not None:
            with _errors_in(f"step {global_batch.step}", resize_batch):
                batch = resize_batch(batch, global_batch.shape)
        if self.mixes:
            seed_sample(hash32(MIX, self.seed, global_batch.step, self.rank))
            for mix in self.mixes:
                with _errors_in(f"step {global_batch.step}", mix):
                    batch = mix(batch, self.dataset_info)
        return {**batch, "task": self.task} if self.task else batch

    def _collate(self, request: Request, deferred: bool = True) -> tuple[Batch | None, list[str]]:
        """Return the batch and the messages of skipped samples; ``deferred`` as in :meth:`_transformed_sample`."""
        global_batch, deferred = request.global_batch, deferred and self._defers
        batch = self._whole_batch(request)
        if batch is not None:
            return batch, []
        with _errors_in(f"step {global_batch.step}", self.source):
            fetch_all(chain.from_iterable(map(self.source.paths, request.indices.tolist())))
        skipped: list[str] = []
        samples = []
        for position, index in zip(request.positions.tolist(), request.indices.tolist(), strict=True):
            sample = self._sample(global_batch, position, index, skipped, deferred)
            if sample is not None:
                dropped = () if self.ground_truth else GROUND_TRUTH_KEYS
                samples.append({name: value for name, value in sample.items() if name not in dropped})
        if not samples:
            return None, skipped
        try:
            with _errors_in(f"step {global_batch.step}", collate):
                return collate(samples, self.size_multiple), skipped
        except DataError:
            if not any(isinstance(sample.get("image"), DeferredImage) for sample in samples):
                raise
        return self._collate(request, deferred=False)  # decoded one by one, the samples show which of them is broken

    def _sample(
        self, global_batch: GlobalBatch, position: int, index: int, skipped: list[str], deferred: bool
    ) -> Sample | None:
        """Return a transformed sample, or its replacement, or None if it is skipped; append errors to ``skipped``."""
        shape = global_batch.shape if global_batch.shape is not None and is_clip_shape(global_batch.shape) else None
        key = hash32(SAMPLE, self.seed, global_batch.epoch, position)
        tried = [index]
        for attempt in range(_MAX_REPLACEMENTS):
            try:
                return self._transformed_sample(index, key, shape, deferred)
            except DataError as error:
                # A sample that storage does not give is not broken, and without it the run would be another one.
                if self.on_error == "raise" or isinstance(error.__cause__, StorageError):
                    raise
                skipped.append(str(error))
                if self.on_error == "skip":
                    return None
                index = self._replacement(tried, hash32(REPLACEMENT, self.seed, global_batch.epoch, position, attempt))
                tried.append(index)
        raise DataError(f"{_MAX_REPLACEMENTS} samples in a row could not be read; the last: {skipped[-1]}")

    def _replacement(self, tried: list[int], draw: int) -> int:
        """Return another index than those tried: of the first one's label, since samplers rely on it; else any."""
        labels = self.source.info.single_labels
        if labels is not None:
            same_label = np.setdiff1d(np.flatnonzero(labels == labels[tried[0]]), tried)
            if same_label.size:
                return int(same_label[draw % same_label.size])
        return draw % len(self.source)

    def _transformed_sample(
        self, index: int, key: int, shape: tuple[int, ...] | None, deferred: bool = False, stop: int | None = None
    ) -> Sample:
        """Read a sample and apply the transforms (the first ``stop`` of them), whose random numbers come from ``key``.

        Transforms of clips see the wanted ``shape`` in the sample, so that they decode no frames in vain. With
        ``deferred`` the image may be a :class:`ResizedCrop`, which the batch decodes.
        """
        transforms = self.transforms[:stop]
        if transforms:  # sources draw no random numbers
            seed_sample(key)
        part: object = self.source
        sample: Sample | None = None
        try:  # one handler for all parts: a context manager for each takes as long as a small transform
            sample = _check_sample(self._read_source(index))
            if shape is not None:
                sample = {**sample, "shape": shape}
            for number, part in enumerate(transforms):
                if isinstance(sample.get("image"), DeferredImage):
                    sample = _check_sample(part.of_encoded(sample))  # type: ignore[attr-defined]
                    sample = decode_large(sample) if deferred else decode_sample(sample)
                elif id(part) in self._combinations:
                    others = self._other_samples(key, shape, number)
                    sample = _check_sample(part.combine(sample, others))  # type: ignore[attr-defined]
                else:
                    sample = _check_sample(part(sample))
        except Exception as error:
            name = "" if sample is None else f" ({sample.get('id', 'without id')})"
            unread = sample is None or isinstance(sample.get("image"), DeferredImage)
            hint = _HINT if unread and self.on_error == "raise" and not isinstance(error, StorageError) else ""
            raise _data_error(f"sample {index}{name}", part, error, hint) from error
        if shape is not None:
            sample.pop("shape", None)
        return sample

    @cached_property
    def _combinations(self) -> frozenset[int]:
        """Ids of the transforms that are combinations; ``isinstance`` of a protocol takes 15 us."""
        return frozenset(id(transform) for transform in self.transforms if isinstance(transform, CombiningTransform))

    @cached_property
    def _defers(self) -> bool:
        """Whether images may stay encoded through all transforms, until their batch is collated."""
        return self.size_multiple is None and all(map(_takes_encoded, self.transforms))

    @cached_property
    def _read_source(self) -> Callable[[int], Sample]:
        """Returns a sample by index; with its image still encoded if the first transform decodes it."""
        decodes = bool(self.transforms) and _takes_encoded(self.transforms[0])
        if self.reduced and decodes and self.source.info.encoded:
            encoded = self.source.encoded
            return lambda index: read_encoded(encoded(index))
        return self.source.__getitem__

    def _other_samples(self, key: int, shape: tuple[int, ...] | None, stop: int) -> Callable[[], Sample]:
        """Return a function whose calls give the additional samples for a combination, one after the other."""
        keys = (hash32(ANOTHER, key, stop, number) for number in count())

        def another() -> Sample:
            other_key = next(keys)
            with preserve_generators():
                return self._transformed_sample(other_key % len(self.source), other_key, shape, stop=stop)

        return another


def _takes_encoded(transform: Transform) -> bool:
    return getattr(transform, "of_encoded", None) is not None


def _check_sample(sample: Any) -> Sample:
    if not isinstance(sample, dict):
        raise TypeError(f"returned a {type(sample).__name__}, not a sample (dict)")
    return sample


@contextmanager
def _errors_in(location: str, part: object) -> Iterator[None]:
    """Turn any error inside into a DataError with its location and the name of the part."""
    try:
        yield
    except Exception as error:
        raise _data_error(location, part, error) from error


def _data_error(location: str, part: object, error: Exception, hint: str = "") -> DataError:
    return DataError(f"{location}, {part_name(part)}: {error_text(error)}{hint}")


def part_name(part: object) -> str:
    """Return the name of a source, transform or mix, for messages."""
    while isinstance(part, partial):
        part = part.func
    return getattr(part, "__name__", None) or type(part).__name__


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, as in a worker: with more threads sums (a mean in ColorJitter) have other last bits. Costs less
    than 1 us."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- loading --------------------------------------------------------------------------------------------------------


class Loader:
    """Batches of this process in order (:class:`opabinia.contracts.Loader`).

    Workers are forked (on macOS spawned) when the first batch is asked for, serve all later iterations, and end with
    :meth:`close`, at the latest when this process exits. If this process is killed, they notice within a few seconds
    and exit. They ignore SIGTERM, SIGINT and SIGUSR1: the main process decides when to stop. Each worker reads whole
    batches, in turn, and holds up to ``prefetch`` finished ones. If a worker dies, iterating raises a RuntimeError with
    its process id and signal; nothing is retried.

    Args:
        reader: reads a batch.
        requests: the batches, from a step on.
        num_workers: worker processes; 0 reads in this process, with the same result.
        prefetch: batches that each worker reads ahead.
        pin_memory: return tensors in pinned memory, for asynchronous copies to a GPU.

    Attributes:
        num_skipped: samples that could not be read so far.
        seconds: duration of reading the newest batch, in a worker.

    Example::

        requests = training_requests(plan, partial(epoch_order, seed, n=len(source), shuffle=True), rank=0, world=1)
        loader = Loader(BatchReader(source, transforms, seed=seed), requests, num_workers=2)
        for global_batch, batch in loader.iterate(start=plan.epoch_start(3)):
            ...
        loader.close()
    """

    def __init__(
        self,
        reader: BatchReader,
        requests: Requests,
        *,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        self.num_skipped, self.seconds = 0, 0.0
        self._logged: set[str] = set()
        self._reader, self._requests, self._pin_memory, self._iteration = reader, requests, pin_memory, 0
        self._workers = _Workers(reader, num_workers, prefetch, pin_memory) if num_workers else None

    def iterate(self, start: int = 0) -> Iterator[tuple[GlobalBatch, Batch]]:
        """Yield global batches and their batches from step ``start`` on. A second iteration ends the first.

        Raises:
            DataError: a sample could not be made, or the reader cannot be sent to workers (macOS).
            RuntimeError: a worker died, or this iteration continues after a later one began.
        """
        self._iteration += 1
        iteration = self._iteration
        requests = self._requests(start)
        for result in self._workers.read(requests) if self._workers else map(self._read_here, requests):
            if isinstance(result, _Failure):
                error = DataError(result.message)
                error.add_note(result.traceback)
                raise error
            self._count_skipped(result.skipped)
            self.seconds = result.seconds
            if result.batch is not None:
                yield result.global_batch, result.batch
            if iteration != self._iteration:
                raise RuntimeError("a later iterate() of this loader has begun and ended this one")

    def _read_here(self, request: Request) -> LoadedBatch | _Failure:
        result = self._reader[request]
        return result.pin_memory() if self._pin_memory and isinstance(result, LoadedBatch) else result

    def _count_skipped(self, messages: Sequence[str]) -> None:
        """Count skipped samples and log the first ones, each once: it recurs in every epoch and view of a video."""
        for message in messages:
            self.num_skipped += 1
            name = _SAMPLE_INDEX.sub("", message)
            if name not in self._logged and len(self._logged) <= _MAX_LOGGED:
                self._logged.add(name)
                if len(self._logged) <= _MAX_LOGGED:
                    log.warning("skipped: %s", message)
                else:
                    log.warning("more samples are skipped; they are counted, but no longer logged")

    def close(self) -> None:
        """End the workers. A later iteration starts new ones."""
        self._iteration += 1
        if self._workers is not None:
            self._workers.close()


_MAX_LOGGED = 10
_SAMPLE_INDEX = re.compile(r"^sample \d+ (?=\((?!without id\)))")
"""The index in the source, in messages about samples that have an id."""


# --- worker processes -----------------------------------------------------------------------------------------------


_START_METHOD = "spawn" if sys.platform == "darwin" else "fork"
"""Forked workers share the source, which need not be picklable. Python 3.14 does not fork by default any more, and
forked processes that use the libraries of macOS may crash."""


class _Workers:
    """Processes that read requests, each whole batches in turn: torch's DataLoader, started by the first :meth:`read`.

    Private attributes of the DataLoader and its iterator are used where it has no public way: to replace its function
    ``collate_fn`` before each start, to name the worker that has died, and to end workers that do not react.

    Args:
        reader: reads a batch.
        num_workers: number of processes.
        prefetch: batches that each reads ahead.
        pin_memory: return tensors in pinned memory.
    """

    def __init__(self, reader: BatchReader, num_workers: int, prefetch: int, pin_memory: bool) -> None:
        self.num_workers, self._prefetch = num_workers, prefetch
        self._sampler = _CurrentRequests()
        self._data_loader = DataLoader(
            reader,
            batch_size=None,  # the sampler yields the request of a whole batch
            sampler=self._sampler,
            collate_fn=_identity,
            num_workers=num_workers,
            multiprocessing_context=_START_METHOD,
            prefetch_factor=prefetch,
            persistent_workers=True,
            worker_init_fn=partial(_init_worker, os.getpid()),
            pin_memory=pin_memory,
            generator=torch.Generator(),  # without its own it would draw from the global one
        )
        _started.add(self)

    @property
    def processes(self) -> list[Any]:
        """The running processes."""
        results: Any = self._data_loader._iterator
        return [] if results is None else results._workers

    def read(self, requests: Iterable[Request]) -> Iterator[LoadedBatch | _Failure]:
        """Return what the workers read, in order. An earlier iteration ends, and what was read ahead for it is dropped.

        Raises:
            DataError: the reader cannot be sent to the workers (macOS).
        """
        self._sampler.requests = requests
        # No stop signal may arrive at a worker that does not ignore it yet.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            if not self.processes and _START_METHOD == "fork":
                with suppress(AttributeError, OSError):  # only Linux has memory files, and a process may open few files
                    # A worker has `prefetch` batches ahead; the main process may hold two more of it.
                    self._data_loader.collate_fn = BatchMemory(self._prefetch + 2, self.num_workers).pack
            return _receive(iter(self._data_loader))
        except (AttributeError, PicklingError, TypeError) as error:
            if _START_METHOD == "fork":
                raise
            message = f"the source or a transform cannot be sent to a loader worker: {error}; set data.num_workers=0"
            raise DataError(message) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the processes, also those that are busy or were killed."""
        results: Any = self._data_loader._iterator
        self._data_loader._iterator, self._data_loader.collate_fn = None, _identity  # frees the memory of the batches
        if results is None:
            return
        try:
            if all(worker.is_alive() for worker in results._workers):
                results._shutdown_workers()
        except RuntimeError:  # a worker has just died: torch's signal handler raises wherever the main process is
            log.debug("a loader worker died while its loader was closed")
        finally:
            # A worker that was killed may hold a lock that torch's own shutdown would wait for indefinitely.
            if not results._shutdown:
                results._shutdown = True
                _remove_worker_pids(id(results))
                results._worker_pids_set = False
            for worker in results._workers:
                if worker.is_alive():  # still busy; it ignores SIGTERM, and Python would wait for it at exit
                    worker.kill()


def _receive(results: Any) -> Iterator[LoadedBatch | _Failure]:
    """Yield the results of the workers. Re-raise a worker's death as torch's standard RuntimeError, however torch
    noticed it: by a signal, a closed pipe or a timeout."""
    try:
        yield from results
    except (ConnectionError, EOFError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "exited unexpectedly" not in str(error):
            raise
        # A pipe may be closed before its worker has exited.
        exited = wait([worker.sentinel for worker in results._workers], timeout=2)
        dead = [worker for worker in results._workers if worker.sentinel in exited]
        for worker in dead:
            worker.join()  # the sentinel is ready a moment before the exit code
        pids = ", ".join(str(worker.pid) for worker in dead) or "unknown"
        cause = signal.strsignal(-dead[0].exitcode) if dead and dead[0].exitcode < 0 else "unknown"
        raise RuntimeError(f"DataLoader worker (pid {pids}) is killed by signal: {cause}") from error


class _CurrentRequests(Sampler[Request]):
    """The requests of the iteration that the DataLoader starts."""

    def __init__(self) -> None:
        self.requests: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


def _identity(result: Any) -> Any:
    return result


def _init_worker(main_pid: int, worker: int) -> None:
    if os.getppid() != main_pid:
        os._exit(1)  # the main process is dead already; torch would watch the process that adopted this worker
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


_started: WeakSet[_Workers] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all workers at exit. This runs before the cleanup of torch and multiprocessing, which would wait
    indefinitely for workers that ignore SIGTERM."""
    for workers in list(_started):
        workers.close()
