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

import re
from collections.abc import Iterator, Sequence

from opabinia.contracts import Batch, GlobalBatch
from opabinia.data.errors import DataError
from opabinia.data.reading import BatchReader, Failure, LoadedBatch
from opabinia.data.sampling.requests import Request, Requests
from opabinia.data.workers import Workers
from opabinia.runtime.log import log


class Loader:
    """Batches of this process in order (:class:`opabinia.contracts.Loader`).

    Workers are forked (on macOS spawned) when the first batch is asked for, serve all later iterations, and end with
    :meth:`close`, at the latest when this process exits. If this process is killed, they notice within a few seconds
    and exit. They ignore SIGTERM, SIGINT and SIGUSR1: the main process decides when to stop. Each worker reads whole
    batches, in turn, and holds up to two finished ones. If a worker dies, iterating raises a RuntimeError with
    its process id and signal; nothing is retried.

    Args:
        reader: reads a batch.
        requests: the batches, from a step on.
        num_workers: worker processes; 0 reads in this process, with the same result.
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
        pin_memory: bool = False,
    ) -> None:
        self.num_skipped, self.seconds = 0, 0.0
        self._logged: set[str] = set()
        self._reader, self._requests, self._pin_memory, self._iteration = reader, requests, pin_memory, 0
        self._workers = Workers(reader, num_workers, pin_memory) if num_workers else None

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
            if isinstance(result, Failure):
                error = DataError(result.message)
                error.add_note(result.traceback)
                raise error
            self._count_skipped(result.skipped)
            self.seconds = result.seconds
            if result.batch is not None:
                yield result.global_batch, result.batch
            if iteration != self._iteration:
                raise RuntimeError("a later iterate() of this loader has begun and ended this one")

    def _read_here(self, request: Request) -> LoadedBatch | Failure:
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
