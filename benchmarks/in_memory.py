"""Shared by benchmarks of a step: a clock, and training a network on tensors in memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Times = tuple[float, float]
"""Wall and CPU, in seconds."""


def now() -> Times:
    return time.perf_counter(), time.process_time()


def since(began: Times, steps: int) -> Times:
    """Return the times of a step."""
    wall, cpu = now()
    return (wall - began[0]) / steps, (cpu - began[1]) / steps


def ours(
    network: Callable[[], nn.Module],
    images: Tensor,
    labels: Tensor,
    batch_size: int,
    steps: int,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    ema: Any = None,
    **training: Any,
) -> Times:
    """Train with a cosine schedule, and return the times of a step; nothing is saved before the last one."""
    # Not at the top: the processes of other trainers must not pay for these imports.
    from opabinia.contracts import Batch, Clock, DatasetInfo, Hook, Indices, Run, Sample, Source, SourceInfo, Task
    from opabinia.data import Data, Stream
    from opabinia.optim.schedules import cosine
    from opabinia.runtime.durations import Duration
    from opabinia.training.session import Session, train
    from opabinia.training.settings import Checkpointing, Evaluation, Training

    class InMemory(Source):
        info = SourceInfo(channels=images.shape[1] if images.ndim > 2 else 1, classes=tuple("0123456789"))

        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> Sample:
            return {"image": images[index], "label": int(labels[index]), "id": str(index)}

        def batch(self, indices: Indices) -> Batch:
            part = torch.from_numpy(indices)
            return {"image": images[part], "label": labels[part], "id": indices.tolist()}

    class Classify(Task):
        def __init__(self, dataset_info: DatasetInfo) -> None:
            super().__init__()
            self.net = network()

        def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
            return {"loss": cross_entropy(self.net(batch["image"]), batch["label"])}

    class Watch(Hook):
        def start(self, run: Run) -> None:
            self.began = now()

        def after_step(self, run: Run) -> None:
            if run.clock.step == steps:  # all but the last line is written by now
                self.took = since(self.began, steps)

    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        train(
            Session(Path(folder)),
            task=Classify,
            data=Data(train=Stream(source=InMemory()), batch_size=batch_size),
            optimizer=optimizer,
            schedule=cosine,
            train=Training(length=Duration(steps, "it"), device="cpu", **training),
            ema=ema,
            evaluate=Evaluation(),
            checkpoint=Checkpointing(every=Duration(0, "it")),
            hooks={"watch": watch},
            seed=0,
        )
    return watch.took
