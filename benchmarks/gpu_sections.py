"""The sections of ``gpu.py``: ``python benchmarks/gpu_sections.py NAME --json FILE [--tiny]`` runs a section."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data.loader import PrefetchLoader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from opabinia.config import build
from opabinia.contracts import Batch, Clock, GlobalBatch, Hook, Indices, Run, Sample, Source, SourceInfo, StepOptions
from opabinia.data import Data, Stream
from opabinia.data.decoding.images import decode_bytes
from opabinia.engine.loop.step import StandardStep
from opabinia.optim.schedules import cosine
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.resources import cores
from opabinia.training.benchmark import benchmark, matmul_flops
from opabinia.training.device_times import synchronize
from opabinia.training.run_folder import resolve
from opabinia.training.samples import read_dataset_info
from opabinia.training.session import Session, TrainingRun
from opabinia.training.settings import Checkpointing, Evaluation, Training

ROOT = Path(__file__).resolve().parents[1]
TINY = "--tiny" in sys.argv
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISION = "fp32" if TINY else "bf16"
ROUNDS, WARM_UP, SETTLE, STEPS = (1, 1, 1, 1) if TINY else (3, 15, 3, 30)
"""Rounds of a side, steps before the first measured one, before that of a later round, and measured in a round."""
TOTAL = WARM_UP + (ROUNDS - 1) * SETTLE + ROUNDS * STEPS
LOG_EVERY = 50
MAX_RATIO = 1.05
"""Largest accepted time of our step, relative to the other side's."""
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""FLOP/s of dense matrix products in bf16 by the vendor's data sheets (SXM)."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESULTS: dict[str, Any] = {}
"""Results of this section: values by name, and lists of messages under ``failed`` and ``skipped``."""


# --- reporting --------------------------------------------------------------------------------------------------------


def report(text: str, **values: Any) -> None:
    """Print a line, and record its values."""
    print(f"  {text}", flush=True)
    RESULTS.update(values)
    if "--json" in sys.argv:  # replaced in one step, since the process may be stopped at any time
        file = Path(sys.argv[sys.argv.index("--json") + 1])
        file.with_suffix(".new").write_text(json.dumps(RESULTS))
        file.with_suffix(".new").replace(file)


def check(passed: bool, text: str) -> None:
    """Report a check; with tiny networks its outcome is ignored."""
    report(f"{'ok' if passed or TINY else 'FAILED'}: {text}")
    if not passed and not TINY:
        RESULTS.setdefault("failed", []).append(text)


def skip(reason: str) -> None:
    RESULTS.setdefault("skipped", []).append(reason)
    report(f"skipped: {reason}")


# --- steps of a run in turn with steps of another loop ----------------------------------------------------------------


class Round(NamedTuple):
    """Seconds of a step, seconds until the host has launched it, and peak memory in bytes above that between steps."""

    seconds: float
    host: float
    memory: float


class Watch:
    """Measures rounds of steps; synchronizes with the device at both ends of a round."""

    def __init__(self) -> None:
        self._unmeasured, self._steps = WARM_UP, 0

    def after_step(self) -> Round | None:
        """Call this after each step; return the round if that was its last step."""
        self._steps += 1
        if self._steps == self._unmeasured:
            synchronize(DEVICE)
            if DEVICE.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self._held, self._started = torch.cuda.memory_allocated(), time.perf_counter()
        if self._steps < self._unmeasured + STEPS:
            return None
        launched = time.perf_counter()
        synchronize(DEVICE)
        seconds = time.perf_counter() - self._started
        self._unmeasured, self._steps = SETTLE, 0
        memory = torch.cuda.max_memory_allocated() - self._held
        return Round(seconds / STEPS, (launched - self._started) / STEPS, memory)


class Done(Exception):
    """Raised to stop the run when all rounds are measured."""


class Turns(Hook):
    """Measures rounds of a run, and lets the other loop go one round after each.

    Args:
        other: yields the rounds of the other loop.
    """

    def __init__(self, other: Iterator[Round]) -> None:
        self._watch, self._other = Watch(), other
        self.ours: list[Round] = []
        self.others: list[Round] = []

    def after_step(self, run: Run) -> None:
        measured = self._watch.after_step()
        if measured is None:
            return
        self.ours.append(measured)
        with torch.enable_grad():
            self.others.append(next(self._other))
        report(f"round {len(self.ours)}: {measured.seconds * 1e3:.2f} ms, other {self.others[-1].seconds * 1e3:.2f} ms")
        if len(self.ours) == ROUNDS:
            raise Done


class Held(Source):
    """A source that repeats the same batch."""

    def __init__(self, held: Batch, classes: tuple[str, ...], *, boxes: bool = False) -> None:
        self.held, self.info = held, SourceInfo(classes=classes, boxes=boxes)

    def __len__(self) -> int:
        return len(self.held["id"]) * (TOTAL + 1)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError("only batches are read")

    def batch(self, indices: Indices) -> Batch:
        return {key: value[: len(indices)] for key, value in self.held.items()}


def make_task(section: dict[str, Any]) -> Any:
    """Return the constructor of a task from its config section."""
    return build(resolve("classification/digits", [f"task={json.dumps(section)}"]).config).keywords["task"]


def compare(
    task: dict[str, Any], source: Held, optimizer: Callable[..., Any], other: Iterator[Round], **training: Any
) -> float:
    """Train in turn with the other loop, report both, and return the seconds of our step."""
    turns, images = Turns(other), len(source.held["id"])
    with tempfile.TemporaryDirectory() as folder, suppress(Done):
        TrainingRun(
            task=make_task(task),
            data=Data(train=Stream(source=source), batch_size=images),
            optimizer=optimizer,
            schedule=cosine,
            train=Training(
                length=Duration(TOTAL + 1, "it"),
                device=DEVICE.type,  # type: ignore[arg-type]
                log_every=LOG_EVERY,
                cudnn_benchmark=True,
                **training,
            ),
            evaluate=Evaluation(every=Duration(0, "ep")),
            checkpoint=Checkpointing(every=Duration(0, "it")),
            hooks={"turns": turns},
            loggers=[],
            seed=0,
        )(Session(Path(folder)))
    sides = {"ours": turns.ours, "other": turns.others}
    middle = {side: Round(*map(statistics.median, zip(*rounds, strict=True))) for side, rounds in sides.items()}
    for side, (seconds, host, memory) in middle.items():
        text = f"{seconds * 1e3:8.2f} ms, {images / seconds:8.1f} images/s, host {host * 1e3:.2f} ms"
        report(
            f"{side:<6} {text}, {memory / 2**30:.2f} GiB",
            **{side: {"seconds": seconds, "host": host, "memory": memory}},
        )
    ratio = middle["ours"].seconds / middle["other"].seconds
    check(ratio <= MAX_RATIO, f"our step takes {ratio:.3f} times as long ({1 / ratio:.3f} times as many images/s)")
    if middle["other"].memory:
        share = middle["ours"].memory / middle["other"].memory
        check(share <= MAX_RATIO, f"and {share:.3f} times as much memory")
    return middle["ours"].seconds


def pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if DEVICE.type == "cuda" else tensor


def noise(*shape: int) -> Tensor:
    return pinned(torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)))


def names(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def to_input(images: Tensor) -> Tensor:
    """Return uint8 images on the device, normalized, in channels_last."""
    mean, std = (torch.tensor(values, device=DEVICE).view(3, 1, 1) * 255 for values in (MEAN, STD))
    images = images.to(DEVICE, non_blocking=True)
    return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


# --- classification, compared with timm's train.py -------------------------------------------------------------------


class Repeated:
    """A loader that repeats a batch, with the attributes that timm's prefetcher reads."""

    sampler = None

    def __init__(self, *batch: Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return TOTAL + 1

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for _ in range(len(self)):
            yield self._batch


def timm_loop(model_name: str, images: Tensor, labels: Tensor, **optimizer_options: Any) -> Iterator[Round]:
    """The step of timm's train.py, which timm does not install, written as its code and documentation describe it:
    ``--amp --amp-dtype bfloat16 --channels-last --torchcompile --smoothing 0.1 --sched-on-updates``."""
    model = timm.create_model(model_name, num_classes=1000).to(DEVICE, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, **optimizer_options)
    scheduler = CosineLRScheduler(optimizer, t_initial=TOTAL + 1, t_in_epochs=False)
    criterion = LabelSmoothingCrossEntropy(0.1).to(DEVICE)
    compiled = model if TINY else torch.compile(model)
    watch = Watch()
    model.train()
    batches = PrefetchLoader(Repeated(images, labels), mean=MEAN, std=STD, device=DEVICE)
    for step, (inputs, targets) in enumerate(batches, 1):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        with autocast(DEVICE, PRECISION):
            loss = criterion(compiled(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step_update(step)
        if step % LOG_EVERY == 0:
            loss.item()
        if (measured := watch.after_step()) is not None:
            yield measured


def classification(model: str, batch_size: int, size: int, optimizer: Callable[..., Any], **theirs: Any) -> None:
    """Compare a compiled training with timm's, and report the model FLOP utilization (MFU)."""
    images, labels = noise(batch_size, 3, size, size), pinned(torch.arange(batch_size) % 1000)
    source = Held({"image": images, "label": labels, "id": list(names(batch_size))}, names(1000))
    loss = {"name": "cross_entropy", "label_smoothing": 0.1}
    task = {"name": "classification", "backbone": {"name": "timm", "model": model}, "loss": loss}
    how = {"precision": PRECISION, "channels_last": True, "compile": not TINY}
    seconds = compare(task, source, optimizer, timm_loop(model, images, labels, **theirs), **how)
    net = timm.create_model(model, num_classes=1000).to(DEVICE)
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(2, 3, size, size, device=DEVICE)).sum().backward()
    flops = counter.get_total_flops() / 2 * batch_size / seconds
    peaks = {"measured matrix product": matmul_flops(DEVICE, PRECISION)}
    if DEVICE.type == "cuda":
        peaks |= {f"data sheet of {name}": peak for name, peak in PEAKS.items() if name in torch.cuda.get_device_name()}
    for name, peak in peaks.items():
        text = f"MFU {flops / peak:.1%}: {flops / 1e12:.4g} of {peak / 1e12:.4g} TFLOP/s in {PRECISION} ({name})"
        report(text, **{f"mfu, {name}": flops / peak})


def resnet50() -> None:
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 2e-5}
    size = ("test_resnet", 4, 32) if TINY else ("resnet50", 256, 224)
    classification(*size, partial(torch.optim.SGD, nesterov=True, **options), opt="sgd", **options)


def vit_small() -> None:
    options = {"lr": 1e-3, "weight_decay": 0.05}
    size = ("test_vit", 2, 160) if TINY else ("vit_small_patch16_224", 256, 224)
    classification(*size, partial(torch.optim.AdamW, **options), opt="adamw", **options)


def plain_loop(loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Iterator[Round]:
    """Train as plain PyTorch loops do, with a cosine schedule; yield a round whenever one is measured."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL + 1)
    watch = Watch()
    while True:
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (measured := watch.after_step()) is not None:
            yield measured


# --- re-identification ------------------------------------------------------------------------------------------------

TRUNK = "resnet18" if TINY else "resnet50"


class ReidNet(nn.Module):
    """ResNet without the last stride, batch norm neck and classifier (Luo et al. 2019)."""

    def __init__(self, identities: int) -> None:
        super().__init__()
        self.trunk = timm.create_model(TRUNK, num_classes=0)
        for module in self.trunk.layer4[0].modules():
            if isinstance(module, nn.Conv2d):
                module.stride = (1, 1)
        self.neck = nn.BatchNorm1d(self.trunk.num_features)
        self.head = nn.Linear(self.trunk.num_features, identities, bias=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images)
        return features, self.head(self.neck(features))


def reid_loop(pixels: Tensor, identities: Tensor, options: dict[str, float]) -> Iterator[Round]:
    model = ReidNet(751).to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(model.parameters(), **options)

    def loss() -> Tensor:
        labels = identities.to(DEVICE, non_blocking=True)
        with autocast(DEVICE, PRECISION):
            features, logits = model(to_input(pixels))
        features = features.float()
        squares = features.square().sum(1)
        distances = (squares[:, None] + squares - 2 * features @ features.T).clamp_min(1e-12).sqrt()
        same = labels[:, None] == labels
        hardest = distances.where(same, 0).amax(1) - distances.where(~same, torch.inf).amin(1)
        return F.cross_entropy(logits.float(), labels, label_smoothing=0.1) + (hardest + 0.3).relu().mean()

    return plain_loop(loss, optimizer)


def reid() -> None:
    batch_size, height, width = (4, 32, 32) if TINY else (128, 256, 128)
    images, labels = noise(batch_size, 3, height, width), pinned(torch.arange(batch_size) // 2)
    options = {"lr": 3.5e-4, "weight_decay": 5e-4}
    task = {
        "name": "reid",
        "backbone": {"name": "resnet", "model": TRUNK},
        "pooling": "average",
        "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
        "metric_losses": [{"name": "triplet", "margin": 0.3}],
    }
    source = Held({"image": images, "label": labels, "id": list(names(batch_size))}, names(751))
    other, adam = reid_loop(images, labels, options), partial(torch.optim.Adam, **options)
    compare(task, source, adam, other, precision=PRECISION, channels_last=True)


# --- detection --------------------------------------------------------------------------------------------------------

OBJECTS, CLASSES = 8, 80
SAMPLED = 16 if TINY else 512
"""Regions per image that the box head is trained on."""


def detection_loop(pixels: Tensor, boxes: Tensor, labels: Tensor) -> Iterator[Round]:
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops import FrozenBatchNorm2d

    backbone = resnet_fpn_backbone(backbone_name=TRUNK, weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=3)
    height, width = pixels.shape[2:]
    options = {"min_size": height, "max_size": width, "box_batch_size_per_image": SAMPLED}
    model = FasterRCNN(backbone, num_classes=CLASSES + 1, **options).to(DEVICE)
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.SGD(params, lr=1e-4, momentum=0.9, weight_decay=1e-4)

    def loss() -> Tensor:
        images = list(pixels.to(DEVICE, non_blocking=True) / 255)
        target = {"boxes": boxes.to(DEVICE, non_blocking=True), "labels": labels.to(DEVICE, non_blocking=True) + 1}
        return torch.stack(list(model(images, [target] * len(images)).values())).sum()

    return plain_loop(loss, optimizer)


def faster_rcnn() -> None:
    """In fp32, with torchvision's model, which differs slightly: it resizes and pads again."""
    count, height, width = (2, 64, 96) if TINY else (8, 800, 1216)
    corners = torch.rand(OBJECTS, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([width, height]) / 2
    boxes = pinned(torch.cat([corners, corners + torch.tensor([width, height]) / 4], 1))
    images, labels = noise(count, 3, height, width), pinned(torch.arange(OBJECTS))
    sizes = [(height, width)] * count
    batch = {"image": images, "boxes": [boxes] * count, "labels": [labels] * count}
    batch |= {"image_sizes": sizes, "original_size": sizes, "id": list(names(count))}
    task = {
        "name": "detection",
        "backbone": {"name": "timm", "model": TRUNK},
        "detector": {"name": "faster_rcnn", "box": {"batch_size_per_image": SAMPLED}},
        "freeze_stages": 2,
        "freeze_norms": True,
        "freeze_random": True,
    }
    sgd = partial(torch.optim.SGD, lr=1e-4, momentum=0.9, weight_decay=1e-4)
    compare(task, Held(batch, names(CLASSES), boxes=True), sgd, detection_loop(images, boxes, labels))


# --- reading ----------------------------------------------------------------------------------------------------------


def jpegs(count: int, height: int = 375, width: int = 500) -> list[bytes]:
    """Return files of smooth noise, of about the size of photographs."""
    random, files = np.random.default_rng(0), []
    for _ in range(count):
        content = BytesIO()
        coarse = Image.fromarray(random.integers(0, 256, (height // 6, width // 6, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(content, "JPEG", quality=85)
        files.append(content.getvalue())
    return files


def data() -> None:
    """Train from files, with the last transforms in the workers and on the device."""
    count, batch_size, workers, steps = (8, 4, 0, 2) if TINY else (512, 256, cores(), 20)
    recipe = [
        f"data.batch_size={batch_size}",
        f"data.num_workers={workers}",
        *(
            "data.val=null",
            "train.length=10000it",
            "seed=0",
            f"train.device={DEVICE.type}",
            "train.cudnn_benchmark=true",
        ),
        *(f"task.backbone.model={'test_resnet' if TINY else 'resnet50'}", f"train.precision={PRECISION}"),
        "train.channels_last=true",
        f"data.train.transforms=[{{name: RandomResizedCrop, size: {32 if TINY else 224}}}, "
        "{name: RandomHorizontalFlip}, {name: RandAugment, num_ops: 2}, {name: random_erase}]",
        "data.mix=[{name: mixup, alpha: 0.2}]",
    ]
    rates, reading = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(jpegs(count)):
            path = Path(folder) / "train" / f"{number % 8}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for place in ("workers", "device"):
            overrides = [*recipe, f"vars.root={folder}", f"data.augment_on={place}"]
            result = benchmark("classification/image_folder", overrides, steps=steps)
            rates[place], reading[place] = result["samples_per_s"]["median"], result["read"] / batch_size
            waiting = result["step"]["data"] / result["step"]["seconds"]
            report(
                f"augment_on: {place:<8} {rates[place]:7.0f} samples/s with {workers} workers; {waiting:.0%} of a step "
                f"waits for data; reading alone {result['loader_samples_per_s']:.0f}, training alone "
                f"{result['model_samples_per_s']:.0f} samples/s; a worker's sample {reading[place] * 1e3:.2f} ms; "
                f"limited by {result['waits_for']}",
                **{place: result},
            )
    ratio = rates["device"] / rates["workers"]
    verdict = "pays" if ratio >= 1.1 else "does not pay with this many workers"
    left = reading["device"] / reading["workers"]
    report(
        f"augment_on: device {verdict}: {ratio:.2f} times the samples/s; a worker's time is {left:.2f} of what it was"
    )


def decode() -> None:
    """Decode JPEGs on the CPU and by nvJPEG, and a video on the CPU and by NVDEC."""
    contents = jpegs(4 if TINY else 256)
    with ThreadPoolExecutor(cores()) as pool:
        on_cpu = partial(lambda: list(pool.map(lambda content: decode_bytes(content, "image"), contents)))
        seconds, expected = fastest(on_cpu)
        report(f"JPEG, {cores()} threads: {len(contents) / seconds:8.0f} images/s", jpeg_cpu=len(contents) / seconds)
    try:
        from torchvision.io import decode_jpeg

        if DEVICE.type != "cuda":
            raise RuntimeError("there is no GPU")
        encoded = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
        seconds, images = fastest(lambda: decode_jpeg(encoded, device=DEVICE))
        report(f"JPEG, nvJPEG: {len(contents) / seconds:8.0f} images/s", jpeg_gpu=len(contents) / seconds)
        pairs = zip(images, expected, strict=True)
        difference = max(float((own.cpu().float() - other.float()).abs().mean()) for own, other in pairs)
        # It interpolates colors, which are stored at half the resolution, in another way.
        check(difference < 16, f"nvJPEG differs by {difference:.2f} of 255 on average at most")
    except (RuntimeError, ImportError) as error:
        skip(f"nvJPEG: {str(error).splitlines()[0]}")
    try:
        video()
    except Exception as error:  # of a library without NVDEC, of many kinds
        skip(f"NVDEC: {(str(error) or type(error).__name__).splitlines()[0]}")


def fastest(action: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Return the seconds of the fastest call after a first one, and its result."""
    result, best = action(), float("inf")
    for _ in range(times):
        synchronize(DEVICE)
        started = time.perf_counter()
        result = action()
        synchronize(DEVICE)
        best = min(best, time.perf_counter() - started)
    return best, result


def video() -> None:
    """Frames/s of H.264 at 1280 x 720, converted to RGB arrays."""
    import av
    from av.codec.hwaccel import HWAccel

    frames = 4 if TINY else 120
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "video.mp4")
        image = np.asarray(Image.open(BytesIO(jpegs(1, 720, 1280)[0])))
        with av.open(path, "w") as container:
            stream = container.add_stream("libx264", rate=30, width=1280, height=720, pix_fmt="yuv420p")
            for number in range(frames):
                shifted = np.ascontiguousarray(np.roll(image, 4 * number, axis=1))
                container.mux(stream.encode(av.VideoFrame.from_ndarray(shifted, format="rgb24")))
            container.mux(stream.encode())

        def decoded(**options: Any) -> int:
            with av.open(path, **options) as container:
                return sum(frame.to_ndarray(format="rgb24").shape[2] // 3 for frame in container.decode(video=0))

        seconds, _ = fastest(decoded, 1)
        report(f"video, CPU: {frames / seconds:8.0f} frames/s", video_cpu=frames / seconds)
        hardware = HWAccel(device_type="cuda", allow_software_fallback=False)
        seconds, count = fastest(partial(decoded, hwaccel=hardware), 1)
        report(f"video, NVDEC, to the host: {frames / seconds:8.0f} frames/s", video_gpu=frames / seconds)
        check(count == frames, f"NVDEC gives {count} of {frames} frames")


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


def graphs() -> None:
    """Steps of a small network, whose kernels take less time than launching them: as they are, compiled, and compiled
    into CUDA graphs, which ``train.compile`` does not do."""
    model, batch_size, size = ("test_resnet", 4, 32) if TINY else ("resnet18", 64, 64)
    images, labels = noise(batch_size, 3, size, size), torch.arange(batch_size)
    held = {"image": images.to(DEVICE), "label": labels.to(DEVICE), "id": list(names(batch_size))}
    info = read_dataset_info(Stream(source=Held(held, names(100))))
    make = make_task({"name": "classification", "backbone": {"name": "timm", "model": model}})
    row, seconds, losses = GlobalBatch(0, 0, 0, batch_size), {}, {}
    for mode in ("eager", "compiled", "CUDA graphs"):
        torch.manual_seed(0)
        torch.compiler.reset()
        task = make(info).to(DEVICE, memory_format=torch.channels_last).train()
        for module in task.children() if mode != "eager" and not TINY else ():
            module.compile(mode="reduce-overhead" if mode == "CUDA graphs" else None)
        optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3, fused=True)
        step = StandardStep(task, optimizer, {}, StepOptions(0, PRECISION))
        watch, rounds = Watch(), list[Round]()
        while len(rounds) < ROUNDS:
            scalars = step(held, row, Clock(total_steps=1000), lambda: None)
            if (measured := watch.after_step()) is not None:
                rounds.append(measured)
        middle = Round(*map(statistics.median, zip(*rounds, strict=True)))
        seconds[mode], losses[mode] = middle.seconds, float(scalars["loss"])
        text = f"{middle.seconds * 1e6:7.0f} us a step, host {middle.host * 1e6:.0f} us, loss {losses[mode]:.4f}"
        report(f"{mode:<12} {text}", **{mode: middle._asdict()})
    gain = min(seconds["eager"], seconds["compiled"]) / seconds["CUDA graphs"]
    report(f"CUDA graphs {'help' if gain >= 1.1 else 'do not help'}: {gain:.2f} times as fast", gain=gain)
    largest = max(losses[mode] for mode in ("compiled", "CUDA graphs"))
    check(largest < losses["eager"] + 0.1, "compiled, with and without CUDA graphs, the loss falls as without")


# --- tests ------------------------------------------------------------------------------------------------------------


def tests() -> None:
    """Run tests/gpu; the properties that tests record are results."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.xml"
        # Other versions of libraries may warn, and of pytest may have another name for the newest of its features.
        options = ["-v", "-p", "no:cacheprovider", "-W", "default", "-o", "minversion=7", "--junitxml", str(file)]
        options += ["-n", "4"] if find_spec("xdist") and not TINY else []
        words = [sys.executable, "-m", "pytest", "tests/gpu", *options, *(["--collect-only", "-q"] if TINY else [])]
        status = subprocess.run(words, cwd=ROOT, check=False, env={**os.environ, "COLUMNS": "150"}).returncode
        cases = list(ElementTree.parse(file).iter("testcase")) if file.exists() else []
        for case in cases:
            values = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
            if values:
                report(f"{case.get('name')}: {values}", **{str(case.get("name")): values})
        broken = [case.get("name") for case in cases for kind in ("failure", "error") if case.find(kind) is not None]
        passed = f"{len(cases) - len(broken)} of {len(cases)} tests pass"
        check(status == 0, "; ".join([passed, *map(str, broken)]))


SECTIONS: dict[str, Callable[[], None]] = {
    section.__name__: section for section in (tests, resnet50, vit_small, reid, faster_rcnn, data, decode, graphs)
}


def main() -> int:
    """Run the section that is named first; return the exit status."""
    try:
        SECTIONS[sys.argv[1]]()
    except Exception as error:
        traceback.print_exc()
        RESULTS.setdefault("failed", []).append(f"{type(error).__name__}: {error}".splitlines()[0])
    report("end of the section")
    return int("failed" in RESULTS)


if __name__ == "__main__":
    sys.exit(main())
