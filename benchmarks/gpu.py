"""Claim: on a GPU a ResNet-50 trains at least 1.05 times as many images a second as in timm's loop, and steps of DINO
and of Faster R-CNN take at most 1.01 times as long as in loops written by hand.

Data cost nothing: every step gets the same pinned batch. The sides of a comparison take turns in rounds; what is
compared are medians.

- ResNet-50: bf16, channels_last, compiled, cuDNN's trials on, SGD with momentum, a cosine, smoothed labels. timm's
  train.py is not among what timm installs; its loop is written here as its code and documentation describe it, with
  timm's own prefetching loader, optimizer, scheduler and loss, and the same switches (``--amp --amp-dtype bfloat16
  --channels-last --torchcompile --smoothing 0.1 --sched-on-updates``). Beside it the share of the measured peak of
  matrix products in bf16.
- DINO: ViT-S/16, two views of 224 and eight of 96 pixels, 65,536 outputs, bf16, AdamW (fused on both sides).
- Faster R-CNN: ResNet-50 with a feature pyramid and frozen norms, eight pictures of 800 x 1,216 with eight boxes each,
  fp32, SGD. The loop by hand trains torchvision's model, which is not ours to the letter: it shrinks and pads again.

Run: ``python benchmarks/gpu.py``, or with names (resnet50, dino, faster_rcnn). ``--tiny`` runs all of it on any machine
with small networks, which measures nothing, but shows that it works.
"""

from __future__ import annotations

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data.loader import PrefetchLoader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d

from opabinia.config import build
from opabinia.contracts import Batch, Hook, Indices, Run, Sample
from opabinia.data import Data, Stream
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.training.benchmark import matmul_flops
from opabinia.training.run_folder import resolve
from opabinia.training.session import Session, train
from opabinia.training.settings import Checkpointing, Evaluation, Training

TINY = "--tiny" in sys.argv[1:]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDS, WARM_UP, STEPS = (1, 1, 2) if TINY else (5, 20, 60)
LOG_EVERY = 50
PRECISION = "fp32" if TINY else "bf16"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if DEVICE.type == "cuda" else tensor


def noise(*shape: int) -> Tensor:
    return pinned(torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)))


def autocast() -> torch.autocast:
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=PRECISION == "bf16")


class Stopwatch:
    """Seconds of a step behind those to warm up; the device is waited for at both ends."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def after(self, steps: int) -> bool:
        """To be called after every step; whether it was the last."""
        if steps not in (WARM_UP, WARM_UP + STEPS):
            return False
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        if steps == WARM_UP:
            self._began = time.perf_counter()
            return False
        self.seconds = (time.perf_counter() - self._began) / STEPS
        return True


# --- our side ---------------------------------------------------------------------------------------------------------


class Over(Exception):
    """The last step is done."""


class Watch(Hook):
    """A stopwatch in a run, which it ends."""

    def __init__(self) -> None:
        self.watch = Stopwatch()

    def after_step(self, run: Run) -> None:
        if self.watch.after(run.clock.step):
            raise Over


@dataclass(frozen=True)
class Held:
    """A source that hands over the same batch again and again."""

    held: Batch
    classes: tuple[str, ...]
    has_boxes: bool = False
    channels: int = 3

    def __len__(self) -> int:
        return len(self.held["id"]) * (WARM_UP + STEPS + 1)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError("it is asked for batches only")

    def batch(self, indices: Indices) -> Batch:
        count = len(indices)
        return {
            key: tuple(one[:count] for one in value) if isinstance(value, tuple) else value[:count]
            for key, value in self.held.items()
        }


def ours(task: dict[str, Any], source: Held, optimizer: Callable[..., Any], **how: Any) -> float:
    """Seconds of a step in a whole run, its journal, its hooks and all."""
    watch = Watch()
    config = resolve("classification/digits", [f"task={task_text(task)}"]).config
    made = build(config).keywords["task"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(
                Session(Path(folder)),
                task=made,
                data=Data(train=Stream(source=source), batch_size=len(source.held["id"])),
                optimizer=optimizer,
                schedule=cosine,
                train=Training(
                    length=Duration(WARM_UP + STEPS + 1, "it"), device=DEVICE.type, log_every=LOG_EVERY, **how
                ),
                evaluate=Evaluation(every=Duration(0, "ep")),
                checkpoint=Checkpointing(every=Duration(0, "it")),
                hooks={"watch": watch},
                loggers=[],
                seed=0,
            )
        except Over:
            return watch.watch.seconds
    raise RuntimeError("the run ended before the stopwatch did")


def task_text(task: dict[str, Any]) -> str:
    """A section of a config as YAML takes it in one line."""
    import json

    return json.dumps(task)


# --- ResNet-50 --------------------------------------------------------------------------------------------------------

NET, IMAGES, SIZE = ("test_resnet", 4, 32) if TINY else ("resnet50", 256, 224)


def resnet_batch() -> tuple[Tensor, Tensor]:
    return noise(IMAGES, 3, SIZE, SIZE), pinned(torch.arange(IMAGES) % 1000)


def resnet_ours() -> float:
    images, labels = resnet_batch()
    held = {"image": images, "label": labels, "id": [str(one) for one in range(IMAGES)]}
    task = {
        "name": "classification",
        "backbone": {"name": "timm", "model": NET},
        "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
    }
    return ours(
        task,
        Held(held, tuple(map(str, range(1000)))),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=2e-5, nesterov=True),
        precision=PRECISION,
        channels_last=True,
        compile=not TINY,
        cudnn_benchmark=True,
    )


def resnet_timm() -> float:
    """The loop of timm's train.py for one GPU."""
    torch.backends.cudnn.benchmark = True
    model = timm.create_model(NET, num_classes=1000).to(DEVICE, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9, weight_decay=2e-5)
    scheduler = CosineLRScheduler(optimizer, t_initial=WARM_UP + STEPS + 1, t_in_epochs=False)
    criterion = LabelSmoothingCrossEntropy(0.1).to(DEVICE)
    compiled = model if TINY else torch.compile(model)
    loader = PrefetchLoader(Again(resnet_batch()), mean=MEAN, std=STD, device=DEVICE)
    watch = Stopwatch()
    model.train()
    for step, (images, labels) in enumerate(loader, 1):
        images = images.contiguous(memory_format=torch.channels_last)
        with autocast():
            loss = criterion(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step_update(step)
        if step % LOG_EVERY == 0:
            print(step, loss.item(), file=sys.stderr)
        if watch.after(step):
            break
    return watch.seconds


class Again:
    """A loader of the same batch; what timm's looks at beside its batches."""

    sampler = None

    def __init__(self, batch: tuple[Tensor, Tensor]) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return WARM_UP + STEPS + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(len(self)):
            yield self._batch


def resnet_flops() -> float:
    """Operations of a step: forward and backward, matrix products and convolutions."""
    model = timm.create_model(NET, num_classes=1000)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 3, SIZE, SIZE)).sum().backward()
    return counter.get_total_flops() / 2 * IMAGES


# --- DINO -------------------------------------------------------------------------------------------------------------

VIT, DINO_IMAGES, LARGE, SMALL, OUTPUTS = (
    ("test_vit", 2, 32, 16, 64) if TINY else ("vit_small_patch16_224", 64, 224, 96, 65536)
)
WIDE = 64 if TINY else 2048


def dino_views() -> tuple[Tensor, ...]:
    return tuple(noise(DINO_IMAGES, 3, size, size) for size in [LARGE] * 2 + [SMALL] * 8)


def dino_ours() -> float:
    task = {
        "name": "dino",
        "backbone": {"name": "timm", "model": VIT, "options": {"img_size": LARGE, "dynamic_img_size": True}},
        "outputs": OUTPUTS,
        "hidden": WIDE,
        "freeze_last_layer": "0it",
    }
    held = {"views": dino_views(), "id": [str(one) for one in range(DINO_IMAGES)]}
    adamw = partial(torch.optim.AdamW, lr=5e-4, weight_decay=0.04, fused=True)
    return ours(task, Held(held, ()), adamw, precision=PRECISION, cudnn_benchmark=True)


class DinoNet(nn.Module):
    """A vision transformer and DINO's head, as the paper has them."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = timm.create_model(VIT, num_classes=0, img_size=LARGE, dynamic_img_size=True)
        width = self.trunk.num_features
        self.mlp = nn.Sequential(
            nn.Linear(width, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, 256)
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(256, OUTPUTS, bias=False))
        self.last.parametrizations.weight.original0.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = self.last(F.normalize(self.mlp(self.trunk(images)), dim=-1))
        return answer


def dino_by_hand() -> float:
    torch.backends.cudnn.benchmark = True
    student = DinoNet().to(DEVICE)
    teacher = copy.deepcopy(student).requires_grad_(False)
    learning = [one for one in student.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=5e-4, weight_decay=0.04, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, WARM_UP + STEPS + 1)
    centre = torch.zeros(OUTPUTS, device=DEVICE)
    mean, std = (torch.tensor(one, device=DEVICE).view(3, 1, 1) for one in (MEAN, STD))
    of_student, of_teacher = list(student.parameters()), list(teacher.parameters())
    views, watch, step = dino_views(), Stopwatch(), 0
    while True:
        given = [(view.to(DEVICE, non_blocking=True) / 255 - mean) / std for view in views]
        with autocast():
            with torch.no_grad():
                said = teacher(torch.cat(given[:2])).float()
            large, small = student(torch.cat(given[:2])), student(torch.cat(given[2:]))
        targets = ((said - centre) / 0.04).softmax(-1).chunk(2)
        answers = [one.float() / 0.1 for one in (*large.chunk(2), *small.chunk(8))]
        pairs = [(t, s) for t in range(2) for s in range(10) if t != s]
        loss = torch.stack([F.cross_entropy(answers[s], targets[t]) for t, s in pairs]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_lerp_(of_teacher, of_student, 0.004)
            centre.lerp_(said.mean(0), 0.1)
        step += 1
        if step % LOG_EVERY == 0:
            print(step, loss.item(), file=sys.stderr)
        if watch.after(step):
            return watch.seconds


# --- Faster R-CNN -----------------------------------------------------------------------------------------------------

TRUNK, PICTURES, HEIGHT, WIDTH = ("resnet18", 2, 96, 128) if TINY else ("resnet50", 8, 800, 1216)
THINGS, KINDS = 8, 80


def boxes() -> list[Tensor]:
    """Of each picture the same: left, top, right, bottom."""
    corners = torch.rand(THINGS, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([WIDTH, HEIGHT]) / 2
    return [torch.cat([corners, corners + torch.tensor([WIDTH, HEIGHT]) / 4], 1)] * PICTURES


def faster_rcnn_ours() -> float:
    held = {
        "image": noise(PICTURES, 3, HEIGHT, WIDTH),
        "boxes": [pinned(one) for one in boxes()],
        "labels": [pinned(torch.arange(THINGS))] * PICTURES,
        "image_sizes": [(HEIGHT, WIDTH)] * PICTURES,
        "original_size": [(HEIGHT, WIDTH)] * PICTURES,
        "id": [str(one) for one in range(PICTURES)],
    }
    task = {
        "name": "detection",
        "backbone": {"name": "timm", "model": TRUNK},
        "detector": "faster_rcnn",
        "freeze_stages": 2,
        "freeze_norms": True,
    }
    sgd = partial(torch.optim.SGD, lr=1e-4, momentum=0.9, weight_decay=1e-4)
    return ours(task, Held(held, tuple(map(str, range(KINDS))), has_boxes=True), sgd, cudnn_benchmark=True)


def faster_rcnn_by_hand() -> float:
    torch.backends.cudnn.benchmark = True
    backbone = resnet_fpn_backbone(backbone_name=TRUNK, weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=3)
    model = FasterRCNN(backbone, num_classes=KINDS + 1, min_size=HEIGHT, max_size=WIDTH).to(DEVICE)
    learning = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=1e-4, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, WARM_UP + STEPS + 1)
    pictures, places, labels = noise(PICTURES, 3, HEIGHT, WIDTH), [pinned(one) for one in boxes()], torch.arange(THINGS)
    watch, step = Stopwatch(), 0
    while True:
        images = list(pictures.to(DEVICE, non_blocking=True) / 255)
        targets = [{"boxes": one.to(DEVICE, non_blocking=True), "labels": labels.to(DEVICE) + 1} for one in places]
        loss = torch.stack(list(model(images, targets).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        if step % LOG_EVERY == 0:
            print(step, loss.item(), file=sys.stderr)
        if watch.after(step):
            return watch.seconds


# --- turns ------------------------------------------------------------------------------------------------------------

COMPARISONS: dict[str, tuple[int, str, Callable[[], float], Callable[[], float]]] = {
    "resnet50": (IMAGES, "timm's loop", resnet_ours, resnet_timm),
    "dino": (DINO_IMAGES, "by hand", dino_ours, dino_by_hand),
    "faster_rcnn": (PICTURES, "by hand", faster_rcnn_ours, faster_rcnn_by_hand),
}
"""Images in a step, the other side's name, ours, the other."""


def compare(name: str) -> None:
    images, other_name, our_side, other_side = COMPARISONS[name]
    seconds: dict[str, list[float]] = {"opabinia": [], other_name: []}
    for _ in range(ROUNDS):
        for side, measure in (("opabinia", our_side), (other_name, other_side)):
            seconds[side].append(measure())
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    print(f"{name}, {images} images a step, median of {ROUNDS} rounds of {STEPS} steps")
    for side, values in seconds.items():
        middle, span = medians[side], f"({min(values) * 1e3:.2f} to {max(values) * 1e3:.2f})"
        print(f"  {side:<12} {middle * 1e3:8.2f} ms {span:<20} {images / middle:9.1f} images/s")
    ratio = medians["opabinia"] / medians[other_name]
    print(f"  our step takes {ratio:.3f} times as long: {1 / ratio:.3f} times as many images/s")
    if name == "resnet50":
        peak = matmul_flops(DEVICE, PRECISION)
        reached = resnet_flops() / medians["opabinia"]
        print(f"  {reached / 1e12:.4g} of {peak / 1e12:.4g} TFLOP/s measured in {PRECISION}: {reached / peak:.1%}")


def main() -> None:
    if DEVICE.type != "cuda" and not TINY:
        print("no GPU: nothing is measured (--tiny shows that it works)")
        return
    print(torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU", end="")
    print(": small networks, which measure nothing" if TINY else "")
    names = [one for one in sys.argv[1:] if one != "--tiny"] or list(COMPARISONS)
    for name in names:
        compare(name)


if __name__ == "__main__":
    main()
