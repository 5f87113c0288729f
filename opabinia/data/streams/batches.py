"""Batches of several streams: a request and a batch of each stream that takes part in a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from opabinia.contracts import SINGLE, Batch, GlobalBatch, Plan
from opabinia.data.reading import BatchReader, LoadedBatch
from opabinia.data.sampling.requests import Request, Requests
from opabinia.data.streams.order import StreamCycle


class JointRequest(NamedTuple):
    """The samples of one batch that this process reads.

    Attributes:
        global_batch: the global batch.
        streams: the request of each stream that takes part, by name.
    """

    global_batch: GlobalBatch
    streams: Mapping[str, Request]


def joint_requests(
    plan: Plan, cycle: StreamCycle, streams: Mapping[str, Requests]
) -> Callable[[int], Iterable[JointRequest]]:
    """Return a function that gives all requests from a step on: a pure function of the step, as those of the streams.

    Args:
        plan: of the run.
        cycle: which streams take part in a step.
        streams: the requests of each stream, from one of its own steps on.
    """

    def requests(start: int) -> Iterator[JointRequest]:
        iterators = {name: iter(make(cycle.steps_before(name, start))) for name, make in streams.items()}
        for step in range(start, plan.total_steps):
            yield JointRequest(plan.global_batch(step), {name: next(iterators[name]) for name in cycle.active(step)})

    return requests


def join_batches(
    global_batch: GlobalBatch, batches: Mapping[str, Batch], global_batches: Mapping[str, GlobalBatch]
) -> Batch:
    """Return the batch of a step with several streams, see :data:`opabinia.contracts.Batch`.

    Args:
        global_batch: the global batch.
        batches: of the streams, this rank's share.
        global_batches: the global batch of each stream.
    """
    streams = {
        name: {**batch, "id": [f"{name}/{sample_id}" for sample_id in batch["id"]]} if name != SINGLE else batch
        for name, batch in batches.items()
    }
    ids = [sample_id for batch in streams.values() for sample_id in batch["id"]]
    return {"streams": streams, "id": ids, "global_batch": global_batch, "global_batches": dict(global_batches)}


@dataclass(frozen=True)
class JointReader(Dataset[Any]):
    """Read the batch of a request from the readers of its streams; see :class:`opabinia.data.reading.BatchReader`.

    Attributes:
        readers: of the streams.
    """

    readers: Mapping[str, BatchReader]

    def __getitem__(self, request: JointRequest) -> Any:
        start = time.perf_counter()
        results: dict[str, Any] = {}
        for name, stream_request in request.streams.items():
            results[name] = self.readers[name][stream_request]
            if tuple(self.readers) == (SINGLE,) or not isinstance(results[name], LoadedBatch):  # or an error
                return results[name]
        batches = {name: result.batch for name, result in results.items()}
        global_batches = {name: stream_request.global_batch for name, stream_request in request.streams.items()}
        skipped = tuple(message for result in results.values() for message in result.skipped)
        batch = join_batches(request.global_batch, batches, global_batches)
        batch["seconds"] = {name: result.seconds for name, result in results.items()}
        return LoadedBatch(request.global_batch, batch, skipped, time.perf_counter() - start)
