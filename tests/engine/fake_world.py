"""One rank of a world of any size in this process: torch's fake process group, whose collectives move nothing.

With fake tensors a large model is sharded and trained for a step without memory. Numbers are meaningless: real
processes (tests/engine/test_parallel.py, tests/faults) compare those.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from opabinia.contracts import Clock, DatasetInfo, Task
from opabinia.engine.loop.parallel import fsdp
from opabinia.models.backbones.timm import timm
from opabinia.runtime.operator_costs import OperatorCosts
from opabinia.tasks.classification import Classification
from opabinia.training.flops import copy_without_values

CPU = torch.device("cpu")


@contextmanager
def fake_world(rank: int, world: int) -> Iterator[None]:
    """Be this rank of ``world`` ranks until the block ends."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def local(tensor: Any) -> Any:
    """Return this rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def classifier(model: str, classes: int = 1000) -> Task:
    """Return a classifier on the meta device."""
    info = DatasetInfo(samples=10**6, channels=3, classes=tuple(map(str, range(classes))))
    with torch.device("meta"):
        return Classification(info, backbone=partial(timm, model=model))


class ShardedCosts(OperatorCosts):
    """Follows FSDP, which frees and reallocates the storages of gathered parameters in place."""

    def __enter__(self) -> Any:
        self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            self._resize(storage, size)
            if known := self._storages.get(storage._cdata):
                self.live[known.category] -= known.size
                known.size = size
                self._grow(known.category, size)
            return storage

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*args)


def sharded_step(meta: Task, samples: int, side: int = 224) -> dict[str, int]:
    """Train a step under FSDP with AdamW in bf16 as the present rank; return its bytes at the peak by category.

    Args:
        meta: the model, on the meta device.
        samples: of this rank's batch.
        side: of its images.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        task = copy_without_values(meta, CPU)
    parallel = fsdp(task, [task], CPU) if dist.is_initialized() else task  # torch builds a device mesh from real values
    costs = ShardedCosts()
    with mode:
        params = list(task.parameters())
        costs.add(map(local, params), "parameters")
        optimizer = torch.optim.AdamW(params, foreach=True)
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
        states = [local(value) for state in optimizer.state.values() for value in state.values()]
        costs.add([state for state in states if isinstance(state, Tensor)], "optimizer")
        optimizer.zero_grad()
        batch = {"image": torch.zeros(samples, 3, side, side, dtype=torch.uint8), "id": list(range(samples))}
        batch["label"] = torch.zeros(samples, dtype=torch.long)
        costs.restart()
        with costs:
            with torch.autocast("cpu", torch.bfloat16):
                losses: Any = parallel(batch, Clock(total_steps=10))
            costs.category = "temporaries"
            losses["loss"].backward()
            optimizer.step()
    return dict(costs.peak)


def main() -> None:
    """Print the peak of a rank that trains ViT-L/16 on 8 images, by world size."""
    meta = classifier("vit_large_patch16_224")
    print("ranks   parameters  optimizer  peak of rank 0  of the last rank   seconds")
    for world in (1, 8, 64, 512):
        peaks, started = [], time.perf_counter()
        for rank in dict.fromkeys((0, world - 1)):
            if world == 1:
                peaks.append(sharded_step(meta, 8))
            else:
                with fake_world(rank, world):
                    peaks.append(sharded_step(meta, 8))
        first, last = peaks[0], peaks[-1]
        gib = [
            size / 2**30 for size in (first["parameters"], first["optimizer"], sum(first.values()), sum(last.values()))
        ]
        print(
            f"{world:5}   {gib[0]:6.3f} GiB  {gib[1]:6.3f} GiB  {gib[2]:9.3f} GiB  {gib[3]:12.3f} GiB  "
            f"{time.perf_counter() - started:7.1f}"
        )


if __name__ == "__main__":
    main()
