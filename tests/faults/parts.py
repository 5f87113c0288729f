"""Parts for the recipe of the fault tests. Environment variables control the faults, so the config stays the same."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import (
    Backbone,
    Batch,
    Count,
    DatasetInfo,
    Hook,
    ParallelTask,
    Phase,
    Run,
    Sample,
    Schedules,
    StepOptions,
    Task,
)
from opabinia.data.sources import Digits, DigitScenes
from opabinia.engine.loop.step import StandardStep
from tests.faults.programs import BROKEN, CRASH, PAUSE, ROOM, SLOW, TRACE


def pause_at(line: str) -> None:
    """Wait until the test calls ``unpause`` if a pause at this line was requested."""
    if line == os.environ.get(PAUSE):
        trace = Path(os.environ[TRACE])
        trace.with_suffix(".paused").touch()
        end = time.monotonic() + 60
        while not trace.with_suffix(".go").exists() and time.monotonic() < end:
            time.sleep(0.01)


@register.backbone
class Tiny(Backbone):
    """Two layers with batch normalization, whose running means must be saved."""

    def __init__(self, channels: int, /, *, width: Count = 8) -> None:
        super().__init__()
        self.out_channels = width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * width, width),
        )

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.layers(images)
        return vectors


@register.backbone
class Narrow(Tiny):
    """``tiny`` that runs out of memory for large batches, as on a small GPU."""

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > int(os.environ[ROOM]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return super().forward(images)


@register.backbone
class Grouped(Backbone):
    """Two layers with a norm per sample: the output does not depend on the rest of the batch."""

    def __init__(
        self, channels: int, /, *, width: Count = 8, norm: Literal["group", "batch", "none"] = "group"
    ) -> None:
        super().__init__()
        self.out_channels = width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1),
            {"group": nn.GroupNorm(2, width), "batch": nn.BatchNorm2d(width), "none": nn.Identity()}[norm],
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * width, width),
        )

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.layers(images)
        return vectors


@register.step
class Blind(StandardStep):
    """A step that does not check losses on the host, as on a GPU."""

    def __init__(
        self, task: Task | ParallelTask, optimizer: Optimizer, schedules: Schedules, options: StepOptions, /
    ) -> None:
        super().__init__(task, optimizer, schedules, options)
        self._checks_losses = False


@register.backbone
class Forgetful(Grouped):
    """A backbone with an unused parameter."""

    def __init__(self, channels: int, /) -> None:
        super().__init__(channels)
        self.forgotten = nn.Parameter(torch.zeros(3))


class Explosive(nn.Linear):
    """A layer with infinite output for very large inputs."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / (input.detach().abs().amax() < 1e25).float()


@register.backbone(name="explosive")
class GroupedExplosive(Grouped):
    """A backbone whose last layer overflows for large inputs."""

    def __init__(self, channels: int, /) -> None:
        super().__init__(channels, norm="none")
        self.layers[-1] = Explosive(128, 8)


@register.source
class Poisoned(Digits):
    """Digits; the pixels of one of them are NaN."""

    pixels = float("nan")

    def __init__(self, *, n: Count, sample: int) -> None:
        super().__init__(split="train")
        self._n, self._sample = n, sample

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        image = sample["image"].float() / 255
        return {**sample, "image": torch.full_like(image, self.pixels) if index == self._sample else image}


@register.source
class Huge(Poisoned):
    """Digits; the pixels of one of them are very large."""

    pixels = 1e30


@register.source
class SomeDigits(Digits):
    """The first ``n`` of the embedded digits."""

    def __init__(self, *, n: Count, split: Literal["train", "val"] = "train") -> None:
        super().__init__(split=split)
        self.info = self.info.select(np.arange(n))
        self._n, self._split = n, split

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Sample:
        pause_at(f"{self._split} sample {index}")
        if self._split == "val":
            time.sleep(float(os.environ.get(SLOW, "0")))
        elif str(index) == os.environ.get(BROKEN):
            raise OSError("the disk is on fire")
        return super().__getitem__(index)


@register.source
class HalfLabeled(SomeDigits):
    """Digits, of which every second has no label."""

    def __init__(self, *, n: Count, split: Literal["train", "val"] = "train") -> None:
        super().__init__(n=n, split=split)
        self.info = replace(self.info, partly_labeled=("label",))

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        return sample if index % 2 else {key: value for key, value in sample.items() if key != "label"}


@register.source
class SomeScenes(DigitScenes):
    """The first ``n`` of the embedded scenes; ``empty``: without objects."""

    def __init__(
        self,
        *,
        n: Count,
        split: Literal["train", "val"] = "train",
        masks: bool = False,
        keypoints: bool = False,
        empty: bool = False,
    ) -> None:
        self._n, self._empty = n, empty
        super().__init__(split=split, masks=masks, keypoints=keypoints)
        self.info = self.info.select(np.arange(n))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(range(self._n)[index])
        if not self._empty:
            return sample
        ground_truth = sample["ground_truth"]
        empty = {name: getattr(ground_truth, name)[:0] for name in ("ids", "boxes", "labels", "areas", "crowd")}
        empty |= {name: values and values[:0] for name, values in (("segments", ground_truth.segments),)}
        if ground_truth.keypoints is not None:
            empty["keypoints"] = ground_truth.keypoints[:0]
        targets = {
            key: tv_tensors.wrap(sample[key][:0], like=sample[key])
            for key in ("boxes", "masks", "keypoints")
            if key in sample
        }
        targets |= {key: sample[key][:0] for key in ("labels", "visibility") if key in sample}
        return {**sample, **targets, "ground_truth": replace(ground_truth, **empty)}


@register.evaluator
class Underived:
    """Has scores, but does not derive from Evaluator."""

    def __init__(self, dataset_info: DatasetInfo, /) -> None:
        self.better, self.dataset_info = {"share": "max"}, dataset_info


@register.hook
class Trace(Hook):
    """Write the name of every hook to a file when it is called, so that a test knows what the program is doing."""

    def __init__(self) -> None:
        self._file = os.open(os.environ[TRACE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _note(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())
        if line == os.environ.get(CRASH):
            raise RuntimeError(f"crashed at {line}")
        pause_at(line)

    def start(self, run: Run) -> None:
        self._note(f"start {run.clock.step}")

    def before_phase(self, run: Run, phase: Phase) -> None:
        self._note(f"before_phase {phase.kind} {run.clock.step}")

    def before_step(self, run: Run, batch: Batch) -> None:
        self._note(f"before_step {run.clock.step}")

    def after_backward(self, run: Run) -> None:
        self._note(f"after_backward {run.clock.step}")
        time.sleep(float(os.environ.get(SLOW, "0")))

    def after_step(self, run: Run) -> None:
        self._note(f"after_step {run.clock.step}")

    def after_phase(self, run: Run, phase: Phase) -> None:
        self._note(f"after_phase {phase.kind} {run.clock.step}")

    def finish(self, run: Run, how: str | BaseException) -> None:
        self._note(f"finish {how}")
