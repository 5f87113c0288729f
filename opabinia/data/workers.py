"""Worker processes of a loader."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any
from weakref import WeakSet

import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Sampler

from opabinia.data.batch_memory import BatchMemory
from opabinia.data.errors import DataError
from opabinia.data.reading import BatchReader, Failure, LoadedBatch
from opabinia.data.sampling.requests import Request
from opabinia.runtime.log import log
from opabinia.runtime.signals import STOP_SIGNALS

# Runs state at their start that they have more workers than cores; torch repeats it for each loader, without the key.
warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
# The loader says what to do about it.
warnings.filterwarnings("ignore", "Got pickle error when attempting to start a worker", UserWarning)


_START_METHOD = "spawn" if sys.platform == "darwin" else "fork"
"""Forked workers share the source, which need not be picklable. Python 3.14 does not fork by default any more, and
forked processes that use the libraries of macOS may crash."""


AHEAD = 2
"""Batches that each worker reads ahead."""


class Workers:
    """Processes that read requests, each whole batches in turn: torch's DataLoader, started by the first :meth:`read`.

    Private attributes of the DataLoader and its iterator are used where it has no public way: to replace its function
    ``collate_fn`` before each start, to name the worker that has died, and to end workers that do not react.

    Args:
        reader: reads a batch.
        num_workers: number of processes.
        pin_memory: return tensors in pinned memory.
    """

    def __init__(self, reader: BatchReader, num_workers: int, pin_memory: bool) -> None:
        self.num_workers = num_workers
        self._sampler = _CurrentRequests()
        self._data_loader = DataLoader(
            reader,
            batch_size=None,  # the sampler yields the request of a whole batch
            sampler=self._sampler,
            collate_fn=_identity,
            num_workers=num_workers,
            multiprocessing_context=_START_METHOD,
            prefetch_factor=AHEAD,
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

    def read(self, requests: Iterable[Request]) -> Iterator[LoadedBatch | Failure]:
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
                    # A worker has batches ahead; the main process may hold two more of it.
                    self._data_loader.collate_fn = BatchMemory(AHEAD + 2, self.num_workers).pack
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


def _receive(results: Any) -> Iterator[LoadedBatch | Failure]:
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


_started: WeakSet[Workers] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all workers at exit. This runs before the cleanup of torch and multiprocessing, which would wait
    indefinitely for workers that ignore SIGTERM."""
    for workers in list(_started):
        workers.close()
