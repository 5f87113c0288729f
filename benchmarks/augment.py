"""Claim: with `augment_on: device` half of a sample's work or less is left to a worker; the batches are the same.

Pictures are noise, 256 x 256, in memory: decoding would hide what is measured. They are cropped to 128 and mirrored;
then jittered and erased (``usual``), or given RandAugment (``rand``), and mixed (mixup); or SimCLR's two views are made
of them (``views``). One side does everything in a worker, the other what ``data.augment_on: device`` leaves there; the
device is the same CPU. Told are the CPU time of a sample on both, one thread each, medians over rounds in turn; what is
sent from process to process (a quarter where mixing makes floats of bytes); and the samples a second that two workers
bring about while nobody trains.

``--quick`` takes few samples, to see that it runs. Run: ``python benchmarks/augment.py``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Batch, DatasetInfo, GlobalBatch, Sample, Transform
from opabinia.data.batch_mixing import mixup
from opabinia.data.device_transforms.apply import DeviceTransforms, recording_reader
from opabinia.data.loader import BatchReader, Loader, Request, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.data.transforms.augment import RandomErase, RandomGaussianBlur
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import RandomHorizontalFlip
from opabinia.data.transforms.views import View, Views
from opabinia.engine.loop.prefetch import DeviceLoader
from opabinia.runtime.durations import Duration

QUICK = "--quick" in sys.argv
BATCH, ROUNDS, STEPS = (16, 1, 8) if QUICK else (64, 9, 16)
SAMPLES = 256


class Noise:
    """Pictures of noise, in memory."""

    channels = 3
    classes = tuple("0123456789")

    def __init__(self) -> None:
        self._pixels = torch.randint(
            256, (16, 3, 256, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return {"image": tv_tensors.Image(self._pixels[index % 16]), "label": index % 10, "id": str(index)}


def crop() -> Transform:
    return RandomResizedCrop(128, antialias=True)


def jitter() -> Transform:
    return v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)


VIEW = View(
    count=2, transforms=[crop(), RandomHorizontalFlip(), jitter(), v2.RandomGrayscale(0.2), RandomGaussianBlur()]
)
MIX = (partial(mixup, alpha=0.2),)
CASES: dict[str, tuple[Sequence[Transform], Sequence[Any]]] = {
    "usual": ((crop(), RandomHorizontalFlip(), jitter(), RandomErase()), MIX),
    "rand": ((crop(), RandomHorizontalFlip(), v2.RandAugment(2)), MIX),
    "views": ((Views(views=[VIEW]),), ()),
}


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU microseconds a sample, and what it gives."""
    began = time.process_time()
    found = action()
    return (time.process_time() - began) / BATCH * 1e6, found


def bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(bytes_of, inside))


def images_of(batch: Batch) -> list[Tensor]:
    return list(batch["views"]) if "views" in batch else [batch["image"]]


def one_round(reader: BatchReader, request: Request, row: GlobalBatch) -> tuple[float, float, float, int, int]:
    in_worker, whole = timed(lambda: reader.batch(request))
    noted, sent = timed(lambda: recording_reader(reader).batch(request))
    sizes = bytes_of(whole), bytes_of(sent)
    on_device, finished = timed(lambda: DeviceTransforms(reader)(sent, row))
    assert all(map(torch.equal, images_of(whole), images_of(finished))), "both give the same batch"
    return in_worker, noted, on_device, *sizes


def brought(reader: BatchReader, workers: int, *, on_device: bool) -> float:
    """Samples a second, from the third batch on."""
    requests = training_requests(PLAN, EpochSampler(SAMPLES, 0, True).order, 0, 1)
    loader = Loader(recording_reader(reader) if on_device else reader, requests, num_workers=workers)
    batches = DeviceLoader(loader, torch.device("cpu"), DeviceTransforms(reader) if on_device else None).iterate()
    for _ in range(2):
        next(batches)
    began = time.perf_counter()
    count = sum(row.count for row, _ in batches)
    took = time.perf_counter() - began
    loader.close()
    return count / took


PLAN = ConstantPlan(SAMPLES, BATCH, Duration(STEPS, "it"))


def main() -> None:
    torch.set_num_threads(1)
    source = Noise()
    requests = list(training_requests(PLAN, EpochSampler(SAMPLES, 0, True).order, 0, 1)(0))
    for name, (transforms, mixes) in CASES.items():
        reader = BatchReader(source, transforms, mixes, DatasetInfo(SAMPLES, 3, classes=source.classes), seed=0)
        one_round(reader, requests[0], requests[0].row)
        rounds = [one_round(reader, one, one.row) for one in (requests * ROUNDS)[:ROUNDS]]
        worker, noted, device, whole, sent = map(statistics.median, zip(*rounds, strict=True))
        rates = [[brought(reader, 2, on_device=one) for one in (False, True)] for _ in range(min(ROUNDS, 3))]
        before, after = map(statistics.median, zip(*rates, strict=True))
        print(f"{name}: CPU time of a sample, median of {ROUNDS} rounds in turn, batches of {BATCH}")
        print(f"  all in the worker {worker:6.0f} us, {whole / BATCH / 1024:5.0f} KiB sent")
        print(
            f"  on the device     {noted:6.0f} us, {sent / BATCH / 1024:5.0f} KiB sent, {device:6.0f} us on the device"
        )
        print(f"  of a worker's time {noted / worker:.2f} is left, of the bytes {sent / whole:.2f}, of all work "
              f"{(noted + device) / worker:.2f}")  # fmt: skip
        print(f"  two workers: {before:.0f} samples/s, with the device {after:.0f}")


if __name__ == "__main__":
    main()
