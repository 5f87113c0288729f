"""Claim: with `augment_on: device` a worker spends at most half its time on a sample, and batches are the same.

Images of noise, 320 x 320, are in memory: decoding would dominate the times. They are cropped to 224 and flipped; then
jittered and erased (``usual``), or transformed by RandAugment (``rand``), and mixed (mixup); or SimCLR's two views are
made of them (``views``). One side does everything in a worker, the other runs on the device what ``data.augment_on:
device`` runs there: the GPU if there is one, otherwise the same CPU, where the option is only faster if the total work
is less. Times are CPU time per sample, one thread each, medians over rounds in turn; that of a GPU is wall time.
``sent`` is what a worker sends to the main process (a quarter where mixing makes floats of bytes).

Run: ``python benchmarks/augment.py``, or with names (usual, rand, views); ``--quick`` takes few samples.
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

from opabinia.contracts import Batch, DatasetInfo, GlobalBatch, Sample, Source, SourceInfo, Transform
from opabinia.data.batch_mixing import mixup
from opabinia.data.device_transforms.apply import DeviceTransforms, recording_reader
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import EpochSampler
from opabinia.data.sampling.requests import Request, training_requests
from opabinia.data.transforms.augment import RandomErase, RandomGaussianBlur
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import RandomHorizontalFlip
from opabinia.data.transforms.views import View, Views
from opabinia.engine.loop.prefetch import DeviceLoader, to_device
from opabinia.runtime.durations import Duration
from opabinia.training.device_times import synchronize

QUICK = "--quick" in sys.argv
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, ROUNDS, STEPS = (16, 3, 6) if QUICK else (32, 5, 10)
SAMPLES, SIDE, CROP = 256, 320, 224
WORKERS = 2


class Noise(Source):
    """Images of noise, in memory."""

    info = SourceInfo(channels=3, classes=tuple("0123456789"))

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self._pixels = torch.randint(256, (16, 3, SIDE, SIDE), dtype=torch.uint8, generator=draw)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return {"image": tv_tensors.Image(self._pixels[index % 16]), "label": index % 10, "id": str(index)}


def crop() -> Transform:
    return RandomResizedCrop(CROP, antialias=True)


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
PLAN = ConstantPlan(SAMPLES, BATCH, Duration(STEPS, "it"))


def timed(action: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
    """Return the microseconds per sample, and the result."""
    synchronize(DEVICE)
    started = clock()
    result = action()
    synchronize(DEVICE)
    return (clock() - started) / BATCH * 1e6, result


def num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(num_bytes, values))


def images_of(batch: Batch) -> list[Tensor]:
    return list(batch["views"]) if "views" in batch else [batch["image"]]


def check_same(expected: Batch, batch: Batch) -> None:
    """Compare both sides: bitwise identical on the CPU, while a GPU may round differently."""
    for wanted, images in zip(images_of(expected), images_of(batch), strict=True):
        difference = (wanted.float() - images.cpu().float()).abs().mean() / (1 if wanted.is_floating_point() else 255)
        assert difference == 0 if DEVICE.type == "cpu" else difference < 1 / 255, f"images differ by {difference:.2g}"


def measure(reader: BatchReader, request: Request, row: GlobalBatch) -> tuple[float, float, float, int, int]:
    """Return the times of a sample (all in the worker; its part; the device's part) and bytes sent (both ways)."""
    clock = time.process_time if DEVICE.type == "cpu" else time.perf_counter
    all_in_worker, whole = timed(lambda: reader.batch(request))
    in_worker, sent = timed(lambda: recording_reader(reader).batch(request))
    on_device, finished = timed(lambda: DeviceTransforms(reader)(dict(to_device(sent, DEVICE)), row), clock)
    check_same(whole, finished)
    return all_in_worker, in_worker, on_device, num_bytes(whole), num_bytes(sent)


def throughput(reader: BatchReader, *, on_device: bool) -> float:
    """Return the samples/s of the workers without training, from the third batch on."""
    requests = training_requests(PLAN, EpochSampler(SAMPLES, 0, True).order, 0, 1)
    worker_reader, transform = (recording_reader(reader), DeviceTransforms(reader)) if on_device else (reader, None)
    loader = Loader(worker_reader, requests, num_workers=WORKERS, pin_memory=DEVICE.type == "cuda")
    batches = DeviceLoader(loader, DEVICE, transform).iterate()
    for _ in range(2):
        next(batches)
    started = time.perf_counter()
    count = sum(row.count for row, _ in batches)
    synchronize(DEVICE)
    seconds = time.perf_counter() - started
    loader.close()
    return count / seconds


def main() -> None:
    torch.set_num_threads(1)
    source = Noise()
    requests = list(training_requests(PLAN, EpochSampler(SAMPLES, 0, True).order, 0, 1)(0))
    for name in [word for word in sys.argv[1:] if word in CASES] or CASES:
        transforms, mixes = CASES[name]
        reader = BatchReader(
            source, transforms, mixes, DatasetInfo(SAMPLES, channels=3, classes=source.classes), seed=0
        )
        measure(reader, requests[0], requests[0].global_batch)
        rounds = [measure(reader, request, request.global_batch) for request in requests[:ROUNDS]]
        whole, worker, device, bytes_before, bytes_after = map(statistics.median, zip(*rounds, strict=True))
        rates = [[throughput(reader, on_device=place) for place in (False, True)] for _ in range(1 if QUICK else 3)]
        before, after = map(statistics.median, zip(*rates, strict=True))
        print(f"{name}: time of a sample, median of {ROUNDS} rounds in turn, batches of {BATCH}")
        print(f"  all in the worker {whole:6.0f} us, {bytes_before / BATCH / 1024:5.0f} KiB sent")
        print(f"  with the device   {worker:6.0f} us, {bytes_after / BATCH / 1024:5.0f} KiB sent, "
              f"{device:6.0f} us on the {DEVICE.type}")  # fmt: skip
        print(f"  with the device / all in the worker: worker {worker / whole:.2f}, "
              f"bytes {bytes_after / bytes_before:.2f}, worker and device {(worker + device) / whole:.2f}")  # fmt: skip
        text = f"{before:.0f} samples/s, with the device {after:.0f}: ratio {after / before:.2f}"
        print(f"  {WORKERS} workers: {text}", flush=True)


if __name__ == "__main__":
    main()
