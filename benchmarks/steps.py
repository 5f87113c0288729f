"""Claim: a training step of every task takes at most 1.05 times as long as a plain PyTorch loop.

By hand each loop is what its field's reference code does: the network's modules in a row, the loss in a line of torch
(of the detector torchvision's FCOS), backward, the optimizer, and the loss read as a number. Ours is the step that the
trainer calls, with all that a task logs: accuracies, the norm of the gradients. The networks are those of the packaged
recipes for handwritten digits; both sides have the same weights, the same batches in memory, and AdamW. The losses of
the first steps are compared before anything is measured. What the trainer adds to a step is in ``overhead.py``, GPUs
are in ``gpu.py``.

One thread, CPU time; both sides take turns, and a first round does not count. ``--quick`` runs few steps, to see that
it works. Run: ``python benchmarks/steps.py``, or with names of tasks.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from detection import as_lists
from detection import by_hand as fcos_by_hand
from multitask import multi_config
from torch import Tensor, nn

from opabinia.config import build
from opabinia.contracts import Batch, Clock, GlobalBatch, StepOptions
from opabinia.engine.loop.step import StandardStep
from opabinia.optim.schedules import constant
from opabinia.runtime.durations import Duration
from opabinia.training.model import make_task
from opabinia.training.planning import plan_training
from opabinia.training.run_folder import resolve

QUICK = "--quick" in sys.argv
ROUNDS, SECONDS = (1, 0.0) if QUICK else (9, 0.6)
"""Number of rounds, and about how many seconds a round of a side takes."""
BATCHES = 2
CPU = torch.device("cpu")
Loss = Callable[[Batch], Tensor]


# --- the losses by hand, from a copy of our task's modules ------------------------------------------------------------


def classification(net: Any) -> Loss:
    def loss(batch: Batch) -> Tensor:
        logits = net.head(net.backbone(net.normalize(batch["image"])))
        return F.cross_entropy(logits, batch["label"], label_smoothing=net.loss.keywords.get("label_smoothing", 0.0))

    return loss


def video(net: Any) -> Loss:
    def loss(batch: Batch) -> Tensor:
        clips = batch["image"]
        frames = net.normalize(clips.flatten(0, 1)).unflatten(0, clips.shape[:2]).transpose(1, 2)
        return F.cross_entropy(net.head(net.backbone(frames)), batch["label"])

    return loss


def detection(net: Any) -> Loss:
    def loss(batch: Batch) -> Tensor:
        total: Tensor = sum(net(*as_lists(batch)).values())
        return total

    return loss


def pixel_loss(trunk: Any, decoder: nn.Module, batch: Batch) -> Tensor:
    logits = decoder(trunk.backbone.pyramid_features(trunk.normalize(batch["image"])))
    logits = F.interpolate(logits, size=batch["mask"].shape[-2:], mode="bilinear")
    return F.cross_entropy(logits, batch["mask"].long(), ignore_index=255)


def segmentation(net: Any) -> Loss:
    return lambda batch: pixel_loss(net, net.decoder, batch)


def selfsup(net: Any, temperature: float = 0.1) -> Loss:
    def loss(batch: Batch) -> Tensor:
        images = torch.cat([net.normalize(view) for view in batch["views"]])
        vectors = F.normalize(net.projector(net.backbone(images)), dim=1)
        cosines = (vectors @ vectors.T / temperature).fill_diagonal_(-torch.inf)
        return F.cross_entropy(cosines, torch.arange(len(vectors)).roll(len(vectors) // 2))

    return loss


def identity_loss(trunk: Any, net: Any, batch: Batch, temperature: float = 0.1) -> Tensor:
    labels, before = (
        batch["label"],
        net.pooling(trunk.backbone.feature_maps(trunk.normalize(batch["image"]))).flatten(1),
    )
    classified = F.cross_entropy(net.head(net.neck(before)), labels, label_smoothing=0.1)
    vectors = F.normalize(before, dim=1)
    others = ~torch.eye(len(vectors), dtype=torch.bool)
    positive = (labels[:, None] == labels) & others
    cosines = vectors @ vectors.T / temperature
    logs = cosines - cosines.masked_fill(~others, -torch.inf).logsumexp(1, keepdim=True)
    return classified - ((logs * positive).sum(1) / positive.sum(1)).mean()


def reid(net: Any) -> Loss:
    return lambda batch: identity_loss(net, net, batch)


WEIGHTS = {"maps": 4.0, "identities": 1.1}
"""Weights of the losses of ``multitask``."""


def multitask(net: Any) -> Loss:
    def loss(batch: Batch) -> Tensor:
        scenes, identities = batch["streams"]["maps"], batch["streams"]["identities"]
        pixels = pixel_loss(net, net.tasks["maps"].decoder, scenes)
        identity = identity_loss(net, net.tasks["identities"], identities)
        return WEIGHTS["maps"] * pixels + WEIGHTS["identities"] * identity

    return loss


# --- both sides -------------------------------------------------------------------------------------------------------


def config_of(recipe: str, *overrides: str) -> dict[str, Any]:
    return resolve(recipe, overrides).config


def detection_config() -> dict[str, Any]:
    """FCOS of torchvision."""
    config = config_of("detection/digits", "data.batch_size=4")
    config["task"] |= {"detector": {"name": "fcos", "offset": 0.0}, "mean": [0.5], "std": [0.25]}
    return config


def multitask_config() -> dict[str, Any]:
    """Segmentation and re-identification on one backbone, with its batch norms."""
    config = multi_config((), ("boxes", "maps", "identities"))
    tasks = config["task"]["tasks"]
    tasks["maps"] |= {"data": tasks.pop("boxes")["data"], "stream": None}
    config["task"] |= {"norms": "shared"}
    for name, weight in WEIGHTS.items():
        tasks[name]["weight"] = weight
    maps = tasks["maps"]["task"]
    maps["losses"], maps["decoder"]["dropout"] = ["cross_entropy"], 0.0
    config["data"]["batch_size"] = 40
    for name, share in {"maps": 0.2, "identities": 0.8}.items():
        tasks[name]["batch_share"] = share
    return config


TASKS: dict[str, tuple[Callable[[Any], Loss], Callable[[], dict[str, Any]]]] = {
    "classification": (classification, partial(config_of, "classification/digits")),
    "detection": (detection, detection_config),
    "segmentation": (segmentation, partial(config_of, "segmentation/digits", "task.losses=[cross_entropy]")),
    "selfsup": (selfsup, partial(config_of, "selfsup/digits_simclr")),
    "reid": (reid, partial(config_of, "reid/digits", "data.batch_size=64")),
    "video": (video, partial(config_of, "video/digits", "data.batch_size=8")),
    "multitask": (multitask, multitask_config),
}
"""The loss by hand, and the config of our side, by task."""


def optimizer_of(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3, fused=True)


def loop_by_hand(loss_of: Loss, params: list[nn.Parameter], batches: list[Batch]) -> Callable[[], list[float]]:
    optimizer = optimizer_of(params)

    def steps() -> list[float]:
        losses = []
        for batch in batches:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return steps


def loop_of_ours(task: Any, batches: list[tuple[GlobalBatch, Batch]]) -> Callable[[], list[float]]:
    step = StandardStep(task, optimizer_of(task.parameters()), {"lr": constant}, StepOptions(0))
    clock = Clock(total_steps=10_000)

    def steps() -> list[float]:
        return [float(step(batch, global_batch, clock, lambda: None)["loss"]) for global_batch, batch in batches]

    return steps


def compare(name: str) -> None:
    """Train both sides in turn, and print the times of their steps."""
    by_hand, config = TASKS[name]
    parts = build(config()).keywords
    plan = plan_training(parts["task"], replace(parts["data"], num_workers=0), Duration(BATCHES, "it"), None, 0)
    task = make_task(parts["task"], plan.dataset_info, 0).train()
    net = fcos_by_hand(task).train() if name == "detection" else copy.deepcopy(task)
    batches = list(plan.loader(CPU, task.size_multiple_of).iterate(0))
    by_hand_loop = loop_by_hand(by_hand(net), list(net.parameters()), [batch for _, batch in batches])
    sides = loop_of_ours(task, batches), by_hand_loop
    first = [steps() for steps in sides]
    assert all(abs(a - b) < 2e-3 * abs(b) for a, b in zip(*first, strict=True)), first
    began = time.process_time()
    sides[1]()
    repeats = max(1, round(SECONDS / (time.process_time() - began)))
    times: list[list[float]] = [[], []]
    for number in range(ROUNDS + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            for _ in range(repeats):
                sides[side]()
            if number:
                times[side].append((time.process_time() - began) / repeats / BATCHES * 1e3)
    ratios = [ours / other for ours, other in zip(*times, strict=True)]
    spread = f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    ours, other = map(statistics.median, times)
    print(f"  {name:<15} opabinia {ours:8.2f} ms   by hand {other:8.2f} ms   {spread}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    print(f"CPU time of a step, median of {ROUNDS} rounds in turn")
    for name in [word for word in sys.argv[1:] if word != "--quick"] or TASKS:
        compare(name)


if __name__ == "__main__":
    main()
