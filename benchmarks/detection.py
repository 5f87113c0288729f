"""Claim: a step and an evaluation of a detector take at most 1.03 times what a torchvision loop written by hand takes.

FCOS on timm's resnet10t with FPN, 256 channels, learns the embedded scenes of digits, 128 x 128 pixels, 16 in a batch,
on one thread. By hand it is torchvision's FCOS, with the same backbone, neck and weights, in the loop of its
references: lists of images and targets in, losses summed, backward, step; then the twelve numbers of COCO by
faster-coco-eval. On our side the same batches go through the task and the step as the trainer calls them, and through
the evaluation of runs. Images are in memory on both sides, and torchvision's resizing is disabled, because there is
nothing to resize.

Both take turns, in many short rounds, and a first round does not count. Run: ``python benchmarks/detection.py``.
"""

from __future__ import annotations

import contextlib
import copy
import io
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS

from opabinia.contracts import Batch, Clock, Detector, GlobalBatch, StepOptions
from opabinia.data import Stream
from opabinia.data.collate import collate
from opabinia.data.sources import DigitScenes
from opabinia.engine.loop.evaluate import ValidationSet, evaluate
from opabinia.engine.loop.step import StandardStep
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.fcos import Fcos
from opabinia.optim.schedules import constant
from opabinia.tasks.detection import Detection
from opabinia.training.samples import read_dataset_info

BATCH, STEPS, ROUNDS, IMAGES = 16, 2, 9, 32
LEARNED = 24
MEAN, STD = [0.5], [0.25]
CPU = torch.device("cpu")


class Maps(nn.Module):
    """Our backbone and neck with the interface of a torchvision backbone."""

    def __init__(self, task: Detection) -> None:
        super().__init__()
        self.task, self.out_channels = task, 256

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        detector: Any = self.task.detector
        return OrderedDict(enumerate(detector.pyramid(self.task.backbone.pyramid_features(images))))


class InMemory:
    """Batches in memory, with the interface of a loader."""

    num_skipped, seconds = 0, 0.0

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def iterate(self, start: int = 0) -> Iterator[tuple[GlobalBatch, Batch]]:
        for number, batch in enumerate(self.batches):
            yield GlobalBatch(number, 0, number * BATCH, len(batch["id"])), batch

    def close(self) -> None: ...


def batches_of(split: str, count: int) -> list[Batch]:
    source = DigitScenes(split=split)
    return [collate([source[index] for index in range(start, start + BATCH)], 32) for start in range(0, count, BATCH)]


def by_hand(task: Detection) -> nn.Module:
    """Return torchvision's FCOS with our weights."""
    ours: Any = copy.deepcopy(task)
    model = FCOS(
        Maps(ours), num_classes=10, min_size=128, max_size=128, image_mean=MEAN, image_std=STD, score_thresh=0.05,
        anchor_generator=None, _skip_resize=True,
    )  # fmt: skip
    model.head.load_state_dict(ours.detector.head.state_dict())
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-3, fused=True)


def as_lists(batch: Batch) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    targets = zip(batch["boxes"], batch["labels"], strict=True)
    return list(batch["image"] / 255), [{"boxes": boxes, "labels": labels} for boxes, labels in targets]


def loop_by_hand(model: nn.Module, batches: list[Batch]) -> Callable[[], None]:
    optimizer = optimizer_of(model.train())
    lists = [as_lists(batch) for batch in batches]

    def steps() -> None:
        model.train()
        for images, targets in lists:
            losses = model(images, targets)
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            float(loss.detach())  # references log it periodically, and check that it is finite

    return steps


def loop_of_ours(task: Detection, batches: list[Batch]) -> Callable[[], None]:
    step = StandardStep(task, optimizer_of(task), {"lr": constant}, StepOptions(0))
    clock = Clock(total_steps=10_000)

    def steps() -> None:
        task.train()
        for number, batch in enumerate(batches):
            step(batch, GlobalBatch(number, 0, 0, BATCH), clock, lambda: None)

    return steps


def evaluation_by_hand(model: nn.Module, batches: list[Batch]) -> float:
    from faster_coco_eval import COCO, COCOeval_faster

    model.eval()
    images, annotations, results = [], [], []
    with torch.no_grad():
        for batch in batches:
            outputs = model(as_lists(batch)[0])
            for ground_truth, detections in zip(batch["ground_truth"], outputs, strict=True):
                images.append(
                    {"id": ground_truth.image_id, "height": ground_truth.size[0], "width": ground_truth.size[1]}
                )
                rows = zip(
                    ground_truth.boxes.tolist(), ground_truth.labels.tolist(), ground_truth.areas.tolist(), strict=True
                )
                shared = {"image_id": ground_truth.image_id, "iscrowd": 0}
                annotations += [
                    {**shared, "id": len(annotations) + n, "bbox": b, "category_id": c, "area": a}
                    for n, (b, c, a) in enumerate(rows, 1)
                ]
                boxes = detections["boxes"]
                boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()
                rows = zip(boxes, detections["labels"].tolist(), detections["scores"].tolist(), strict=True)
                results += [
                    {"image_id": ground_truth.image_id, "bbox": b, "category_id": c, "score": s} for b, c, s in rows
                ]
    categories = [{"id": number, "name": str(number)} for number in range(10)]
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truths = COCO({"images": images, "annotations": annotations, "categories": categories})
        evaluation = COCOeval_faster(ground_truths, ground_truths.loadRes(results), "bbox")
        evaluation.run()
    return float(evaluation.stats[0])


def evaluation_of_ours(task: Detection, batches: list[Batch], dataset_info: Any) -> float:
    validation = ValidationSet("val", InMemory(batches), dataset_info)
    return evaluate(task, validation, CPU).scores["val/AP"]


def in_turn(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Return the seconds of each round of both sides."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 1):
        sides = [(ours, times[0]), (theirs, times[1])]
        for action, seconds in sides if number % 2 else reversed(sides):
            began = time.process_time()
            action()
            if number:
                seconds.append(time.process_time() - began)
    return times


def report(label: str, times: tuple[list[float], list[float]], unit: float) -> None:
    ours, theirs = (statistics.median(side) / unit * 1e3 for side in times)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    print(f"  {label:32} opabinia {ours:7.1f} ms   by hand {theirs:7.1f} ms   ratio {ratio:5.3f}")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset_info = read_dataset_info(Stream(source=DigitScenes(split="train")))
    make: Callable[..., Detector] = partial(Fcos, offset=0.0)
    backbone = partial(timm, model="resnet10t", options={"stem_width": 16, "channels": [32, 64, 128, 256]})
    task = Detection(dataset_info, backbone=backbone, detector=make, mean=MEAN, std=STD, validation_loss=False)
    training, validation = batches_of("train", STEPS * BATCH), batches_of("val", IMAGES)
    ours = loop_of_ours(task, training)
    for _ in range(LEARNED // STEPS):  # an untrained detector returns a hundred detections per image
        ours()
    model = by_hand(task)
    print(f"CPU time, median of {ROUNDS} rounds in turn, one thread, {BATCH} images of 128 x 128 in a batch")
    evaluated = (evaluation_of_ours(task, validation, dataset_info), evaluation_by_hand(model, validation))
    print(f"  AP after {LEARNED} steps                opabinia {evaluated[0]:.6f}      by hand {evaluated[1]:.6f}")
    both = in_turn(
        lambda: evaluation_of_ours(task, validation, dataset_info), lambda: evaluation_by_hand(model, validation)
    )
    report(f"evaluation of {IMAGES} images", both, 1)
    task_with_loss = Detection(dataset_info, backbone=backbone, detector=make, mean=MEAN, std=STD)
    task_with_loss.load_state_dict(task.state_dict())
    with_loss = in_turn(
        lambda: evaluation_of_ours(task_with_loss, validation, dataset_info),
        lambda: evaluation_by_hand(model, validation),
    )
    report("the same with our validation loss", with_loss, 1)
    steps = in_turn(ours, loop_by_hand(model, training))
    report("a training step", steps, STEPS)
    per_image = statistics.median(with_loss[0]) / IMAGES, statistics.median(steps[0]) / STEPS / BATCH
    print(
        f"  evaluating an image, with the loss, takes {per_image[0] / per_image[1]:.2f} of the time of training on it"
    )


if __name__ == "__main__":
    main()
