"""Which batches a run trains on, and their loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b

import numpy as np
import torch

from opabinia import contracts
from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing
from opabinia.contracts import Batch, BatchSchedule, DatasetInfo, Plan, RunSpec, Sampler, Source
from opabinia.data import Data, Stream
from opabinia.data.decoding.cache import cached
from opabinia.data.device_transforms.apply import OnDevice, noting, work_shared
from opabinia.data.loader import Loader, Reader, training_requests
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.data.sampling.permutation import EachOnce
from opabinia.engine.loop.prefetch import Feeding
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank, world_size
from opabinia.runtime.seeds import FRESH, hash32


def make_sampler(data: Data, seed: int) -> Sampler:
    """What says which samples make up an epoch."""
    if data.sampler is None:
        return EachOnce(len(data.train.source), seed, data.shuffle)
    with errors_at("data.sampler"):
        return data.sampler(data.train.source, seed, data.batch_size)


def order_fingerprint(sampler: Sampler) -> str:
    """Changes with the order of the data: what the sampler gives at the beginning of the first two epochs."""
    positions = np.arange(min(1000, len(sampler)))
    content = b"".join(sampler.order(epoch)(positions).tobytes() for epoch in (0, 1))
    return f"{len(sampler)} positions, {blake2b(content, digest_size=8).hexdigest()}"


def make_plan(
    data: Data, sampler: Sampler, length: Duration, shapes: Callable[[RunSpec], BatchSchedule] | None
) -> ConstantPlan | StagedPlan:
    """All batches of the run."""
    with errors_at("data"):
        plan = ConstantPlan(len(sampler), data.batch_size, length, data.drop_last)
    if shapes is None:
        return plan
    with errors_at("shapes"):
        layout = shapes(RunSpec(len(sampler), data.batch_size, length, world_size(), data.drop_last))
        others = sorted({one.samples for stage in layout.stages for one in stage.cycle} - {data.batch_size})
        if others and data.sampler is not None:
            log.warning(
                "data.sampler may group samples in batches of data.batch_size (%d); shapes takes batches of %s",
                *(data.batch_size, listing([str(one) for one in others])),
            )
        return StagedPlan(len(sampler), layout.stages, layout.length, data.drop_last)


def make_training_loader(
    data: Data,
    plan: Plan,
    sampler: Sampler,
    dataset_info: DatasetInfo,
    seed: int,
    device: torch.device,
    size_multiple: int | None = None,
) -> Feeding:
    """This process's slice of the batches of ``plan``, on ``device``; ``size_multiple`` as in
    :class:`opabinia.contracts.Task`."""
    reader = Reader(
        *(_kept_decoded(data), data.train.transforms, data.mix, dataset_info, seed, rank()),
        on_error="replace" if data.on_error == "skip" else "raise",
        size_multiple=size_multiple,
        reduced=data.decode == "reduced" or data.cache is not None,
    )
    requests = training_requests(plan, sampler.order, rank(), world_size())
    load = partial(Loader, requests=requests, workers=data.workers, pin_memory=device.type == "cuda")
    if data.augment_on == "workers":
        return Feeding(load(reader), device)
    return Feeding(load(noting(reader)), device, OnDevice(reader))


def _kept_decoded(data: Data) -> Source:
    """The samples to train on, with decoded pictures kept if that is wanted."""
    if data.cache is None:
        return data.train.source
    with errors_at("data.cache"):
        return cached(data.train.source, data.cache, data.cache_size, "train")


def tell_work(data: Data, size_multiple: int | None = None) -> None:
    """Tell where training pictures are changed, if that is not only in the workers."""
    if data.augment_on == "device":
        reader = Reader(data.train.source, data.train.transforms, data.mix, size_multiple=size_multiple)
        log.info("data.augment_on: %s", work_shared(reader))


def fresh_batches(
    data: Data,
    dataset_info: DatasetInfo,
    seed: int,
    device: torch.device,
    batch_size: int | None,
    size_multiple: int | None,
    name: str,
    count: int,
) -> Iterator[Batch]:
    """Batches of this process that belong to no epoch, the same every time: of ``train``, unmixed and in an order of
    their own, or of the validation set with this prefix, as far as it goes.

    Raises:
        ConfigError: there is no such set; told before any batch is asked for.
    """
    sets = {one.prefix: one for one in data.validation}
    if name != "train" and name not in sets:
        known = listing(["train", *sets])
        raise ConfigError(Problem("", "hooks", f"there is no data set {name!r}; data sets: {known}"))
    return _fresh(data, sets.get(name), dataset_info, seed, device, batch_size, size_multiple, count)


def _fresh(
    data: Data,
    other: Stream | None,
    dataset_info: DatasetInfo,
    seed: int,
    device: torch.device,
    batch_size: int | None,
    size_multiple: int | None,
    count: int,
) -> Iterator[Batch]:
    own = hash32(FRESH, seed)
    if other is None:
        sampler, size = make_sampler(data, own), data.batch_size
    else:
        data = replace(data, train=other, drop_last=False, cache=None, cache_size=None)
        sampler, size = EachOnce(len(data.train.source), own, False), batch_size or data.batch_size
        count = min(count, -(-len(sampler) // size))
    # Shares of whole batches: every process has as many, which layers that meet the others' need.
    plan = ConstantPlan(len(sampler), size, Duration(count, "it"), data.drop_last)
    loader: contracts.Loader = make_training_loader(
        replace(data, mix=()), plan, sampler, dataset_info, own, device, size_multiple
    )
    try:
        for row, batch in loader.iterate():
            if row.step >= count:
                break
            yield batch
    finally:
        loader.close()
