"""Optimization and data: optimizers, schedules, averages, multigrid and augmentations."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from timm import scheduler as timm_schedulers
from timm.data.mixup import Mixup, cutmix_bbox_and_lam
from timm.optim import Lars as TimmLars
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as transforms

from opabinia.config import build
from opabinia.contracts import DatasetInfo
from opabinia.data import batch_mixing
from opabinia.data.collate import collate
from opabinia.data.decoding.images import Box
from opabinia.data.decoding.resized import ResizedCrop
from opabinia.optim import schedules
from opabinia.optim.ema import WeightAverage
from opabinia.optim.lars import Lars
from opabinia.optim.multigrid import evaluation_epochs, intervals
from opabinia.optim.optimizers import fuse
from opabinia.runtime.durations import Duration
from tests.data.decoding.test_reduced import encode, make_photo
from tests.data.transforms import test_augment
from tests.golden import test_multigrid, test_sub_batch_norm
from tests.optim import test_optimizers
from tests.optim.test_schedules import clock
from tests.parity.comparisons import compare, largest

# --- optimizers -------------------------------------------------------------------------------------------------------


def trained(net: nn.Linear, optimizer: torch.optim.Optimizer) -> Tensor:
    """Return the weights of a linear layer after six updates."""
    test_optimizers.train(net, optimizer, 6)
    return net.weight.detach()


def updated(
    start: Tensor,
    gradients: Tensor,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    prepare: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None,
) -> Tensor:
    """Return the weights after an update by each of the gradients."""
    weights = nn.Parameter(start.clone())
    optimizer = make([weights])
    prepare(optimizer)
    for gradient in gradients:
        weights.grad = gradient.clone()
        optimizer.step()
    return weights.detach()


@compare("torch, timm", "weights after six updates by each optimizer, with the default options", tolerance=0)
def optimizers() -> Iterator[float]:
    with TemporaryDirectory() as folder:
        for library, name in test_optimizers.BOTH:
            section = test_optimizers.resolve({"name": name.lower(), "lr": 0.05}, Path(folder)).config
            ours, theirs = test_optimizers.model(), test_optimizers.model()
            make = build(section, test_optimizers.CATALOG, "root")()
            expected = trained(theirs, getattr(library, name)(theirs.parameters(), lr=0.05))
            yield largest(trained(ours, make(ours.parameters())), expected)


@compare("torch", "weights after ten updates by SGD, Adam and AdamW as runs use them (fused)", tolerance=1e-6)
def fused_optimizers() -> Iterator[float]:
    for name in ("SGD", "Adam", "AdamW"):
        keys = {"lr": 0.1, "weight_decay": 0.01} | ({"momentum": 0.9, "nesterov": True} if name == "SGD" else {})
        for seed in range(5):
            draw = torch.Generator().manual_seed(seed)
            start, gradients = torch.randn(100, generator=draw), torch.randn(10, 100, generator=draw)
            make = partial(getattr(torch.optim, name), **keys)
            yield largest(updated(start, gradients, make, fuse), updated(start, gradients, make))


@compare("timm", "matrices after ten updates by LARS without weight decay", tolerance=1e-5)
def lars() -> Iterator[float]:
    """Its trust ratio leaves the weight decay out of the norm of the gradient; the original's does not."""
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        start, gradients = torch.randn(6, 5, generator=draw), torch.randn(10, 6, 5, generator=draw)
        ours = partial(Lars, lr=10.0, momentum=0.9, trust_coefficient=0.001)
        theirs = partial(TimmLars, lr=10.0, momentum=0.9, trust_coeff=0.001, always_adapt=True)
        yield largest(*(updated(start, gradients, make) for make in (ours, theirs)))


@compare("VISSL", "matrices and vectors after three updates by LARS", tolerance=1e-5, against="recorded")
def vissl_lars() -> Iterator[float]:
    for actual, expected in test_optimizers.steps_of_vissls_lars():
        yield largest(actual, expected)


# --- schedules --------------------------------------------------------------------------------------------------------

STEPS = 100
Schedule = Callable[..., float]


def at_every_step(schedule: Schedule) -> list[float]:
    return [schedule(clock(step, STEPS)) for step in range(STEPS)]


def by_torch(make: Callable[[torch.optim.Optimizer], Any]) -> list[float]:
    """Return the learning rates of a scheduler of torch's protocol."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def steps(text: str) -> Duration:
    return Duration.parse(f"{text}it")


MILESTONES = [steps("30"), steps("60"), steps("85")]


@compare(
    "torch",
    "learning rates of a run by its cosine, polynomial, linear, exponential, step, multi-step, restart schedulers",
    tolerance=1e-6,
)
def torch_schedules() -> Iterator[float]:
    pairs: list[tuple[Schedule, Any]] = [
        (partial(schedules.cosine, end=0.01), partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS, eta_min=0.01)),
        (schedules.polynomial, partial(lr_scheduler.PolynomialLR, total_iters=STEPS, power=0.9)),
        (
            partial(schedules.linear, start=1, end=0.2),
            partial(lr_scheduler.LinearLR, start_factor=1, end_factor=0.2, total_iters=STEPS),
        ),
        (
            partial(schedules.exponential, gamma=0.97, every=steps("1")),
            partial(lr_scheduler.ExponentialLR, gamma=0.97),
        ),
        (partial(schedules.step, every=steps("30")), partial(lr_scheduler.StepLR, step_size=30)),
        (
            partial(schedules.multi_step, milestones=MILESTONES),
            partial(lr_scheduler.MultiStepLR, milestones=[30, 60, 85]),
        ),
        (
            partial(schedules.cosine_restarts, cycle=steps("20")),
            partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=20),
        ),
    ]
    for schedule, make in pairs:
        yield largest(at_every_step(schedule), by_torch(make))


@compare(
    "timm",
    "learning rates of a run by its cosine, polynomial and step schedulers with a linear warm-up",
    tolerance=1e-6,
)
def timm_schedules() -> Iterator[float]:
    warm_up = {"warmup_t": 10, "warmup_lr_init": 0.1}
    ours = {"warmup": steps("10"), "warmup_factor": 0.1}
    curve = {**warm_up, "t_initial": STEPS - 10, "lr_min": 0.01, "warmup_prefix": True}
    pairs: list[tuple[Schedule, Callable[[torch.optim.Optimizer], Any]]] = [
        (partial(schedules.cosine, end=0.01, **ours), partial(timm_schedulers.CosineLRScheduler, **curve)),
        (
            partial(schedules.polynomial, power=1.0, end=0.01, **ours),
            partial(timm_schedulers.PolyLRScheduler, power=1.0, **curve),
        ),
        (
            partial(schedules.step, every=steps("30"), **ours),
            partial(timm_schedulers.StepLRScheduler, decay_t=30, decay_rate=0.1, warmup_prefix=False, **warm_up),
        ),
    ]
    for schedule, make in pairs:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler, expected = make(optimizer), []
        for number in range(STEPS):
            scheduler.step(number)
            expected.append(optimizer.param_groups[0]["lr"])
        yield largest(at_every_step(schedule), expected)


@compare(
    "transformers",
    "learning rates of a run by its linear, cosine and inverse square root schedulers with a linear warm-up",
    tolerance=1e-6,
    needs=["transformers"],
)
def transformers_schedules() -> Iterator[float]:
    from transformers import optimization as theirs

    warm: dict[str, Any] = {"warmup": steps("10"), "warmup_factor": 0.0}
    length = {"num_warmup_steps": 10, "num_training_steps": STEPS}
    pairs: list[tuple[Schedule, Any]] = [
        (partial(schedules.linear, end=0, **warm), partial(theirs.get_linear_schedule_with_warmup, **length)),
        (partial(schedules.cosine, **warm), partial(theirs.get_cosine_schedule_with_warmup, **length)),
        (partial(schedules.inverse_sqrt, **warm), partial(theirs.get_inverse_sqrt_schedule, num_warmup_steps=10)),
    ]
    for schedule, make in pairs:
        yield largest(at_every_step(schedule), by_torch(make))


@compare(
    "fvcore",
    "values of its cosine, multi-step and linear schedulers, and with detectron2's warm-up",
    tolerance=1e-6,
    needs=["fvcore"],
)
def fvcore_schedules() -> Iterator[float]:
    from fvcore.common import param_scheduler as theirs

    warm: dict[str, Any] = {"warmup": steps("10"), "warmup_rule": "sliced"}
    drops = theirs.MultiStepParamScheduler([1, 0.1, 0.01, 0.001], num_updates=STEPS, milestones=[30, 60, 85])
    pairs: list[tuple[Schedule, Any]] = [
        (partial(schedules.cosine, end=0.01), theirs.CosineParamScheduler(1, 0.01)),
        (partial(schedules.linear, end=0.2), theirs.LinearParamScheduler(1, 0.2)),
        (partial(schedules.multi_step, milestones=MILESTONES), drops),
        (partial(schedules.multi_step, milestones=MILESTONES, **warm), with_warm_up(theirs, drops)),
        (partial(schedules.cosine, **warm), with_warm_up(theirs, theirs.CosineParamScheduler(1, 0))),
    ]
    for schedule, expected in pairs:
        yield largest(at_every_step(schedule), [float(expected(step / STEPS)) for step in range(STEPS)])


def with_warm_up(library: Any, schedule: Any) -> Any:
    """Return a schedule behind a warm-up of a tenth of the run, composed as in detectron2's WarmupParamScheduler."""
    warm = library.LinearParamScheduler(0.001 * schedule(0.0), schedule(0.1))
    return library.CompositeParamScheduler([warm, schedule], [0.1, 0.9], ["rescaled", "fixed"])


# --- averages and batch norm ------------------------------------------------------------------------------------------


def averages(seed: int, average_of: Callable[[nn.Module], tuple[nn.Module, Callable[[], None]]]) -> Tensor:
    """Return the averaged weights after 20 random steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    average, update = average_of(model)
    for _ in range(20):
        with torch.no_grad():
            for param in model.parameters():
                param.add_(torch.randn_like(param))
        update()
    return torch.cat([param.detach().flatten() for param in average.parameters()])


def our_average(decay: float, model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    average = copy.deepcopy(model)
    hook = WeightAverage(average, model, lambda clock: 1 - decay)
    return average, lambda: hook.update(1 - decay)


def average_of_timm(decay: float, model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    ema = ModelEmaV3(model, decay=decay)
    return ema.module, lambda: ema.update(model)


def average_of_torch(decay: float, model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    ema.update_parameters(model)  # its first update is a copy
    return ema, lambda: ema.update_parameters(model)


@compare("timm, torch", "averages of weights (EMA) after 20 updates", tolerance=1e-5)
def ema() -> Iterator[float]:
    for theirs in (average_of_timm, average_of_torch):
        for seed, decay in enumerate((0.5, 0.9, 0.99, 0.999)):
            ours = averages(seed, partial(our_average, decay))
            yield largest(ours, averages(seed, partial(theirs, decay)))


@compare(
    "PySlowFast",
    "batch norm over parts of a batch: outputs and aggregated statistics",
    tolerance=1e-9,
    against="recorded",
)
def sub_batch_norm() -> Iterator[float]:
    for case in test_sub_batch_norm.GOLDEN["cases"]:
        norm, clips = test_sub_batch_norm.norm_of(case["num_splits"]), test_sub_batch_norm.clips(case["n"])
        output = norm(clips)
        yield largest(output[0, 0].flatten(), case["train_out_sample0_ch0"])
        yield largest(norm.running_mean, case["aggregated_running_mean"])
        yield largest(norm.running_var, case["aggregated_running_var"])
        yield largest(norm.eval()(clips).abs().sum(), case["eval_out_sum_abs"])


# --- multigrid --------------------------------------------------------------------------------------------------------


@compare(
    "PySlowFast, PaddleVideo",
    "multigrid: shapes, epochs and learning rate factors of long cycles; epochs of evaluations",
    tolerance=0,
    against="recorded",
)
def multigrid_schedules() -> Iterator[float]:
    for name in test_multigrid.LONG:
        case = test_multigrid.CASES[name]
        grid = test_multigrid.grid_of(case)
        starts, factors = zip(*test_multigrid.learning_rates(grid), strict=True)
        actual = [test_multigrid.plain(grid), list(starts), list(factors), intervals(grid)[-1].end]
        expected = [case["schedule"], case["lr_steps"], case["relative_lrs"], case["max_epoch"]]
        yield largest(actual, expected)
    grid = test_multigrid.grid_of(test_multigrid.CASES["sf_kinetics_8x8_R50_stepwise_multigrid"])
    yield largest([epoch - 1 for epoch in evaluation_epochs(grid, 3)], test_multigrid.EVALUATIONS)


@compare(
    "PySlowFast", "multigrid: learning rate at the start of each epoch of a run", tolerance=1e-9, against="recorded"
)
def multigrid_learning_rates() -> Iterator[float]:
    for case in test_multigrid.CASES.values():
        if "lr_at_epoch_start" in case:
            yield largest(test_multigrid.learning_rates_of_a_run(case), case["lr_at_epoch_start"])


@compare("PySlowFast", "multigrid: samples and shape of each batch of an epoch", tolerance=0, against="recorded")
def multigrid_batches() -> Iterator[float]:
    for case in test_multigrid.SAMPLERS:
        if case["source"] == "SlowFast":
            yield largest(*test_multigrid.batches_of_slowfast(case))


# --- mixing and transforms --------------------------------------------------------------------------------------------

MIXED = DatasetInfo(samples=8, classes=tuple("abcdefgh"))


def batch_of(seed: int) -> tuple[Tensor, Tensor]:
    return torch.rand(8, 3, 16, 24, generator=torch.Generator().manual_seed(seed)), torch.arange(8)


def blended(images: Tensor, labels: Tensor, partners: Tensor, weight: float) -> list[Tensor]:
    weights = [weight] * len(images)
    soft = batch_mixing.soft_labels(labels, 8)
    return [batch_mixing.blend(values, partners, weights) for values in (images, soft)]


@compare("timm, torchvision", "mixup: images and soft labels at the same weight and partners", tolerance=1e-6)
def mixup() -> Iterator[float]:
    for seed in range(10):
        images, labels = batch_of(seed)
        np.random.seed(seed)
        mixed, soft = Mixup(mixup_alpha=0.8, cutmix_alpha=0, label_smoothing=0, num_classes=8)(images.clone(), labels)
        yield largest(blended(images, labels, torch.arange(7, -1, -1), float(soft[0, 0])), [mixed, soft])
        torch.manual_seed(seed)
        mixed, soft = v2.MixUp(alpha=0.8, num_classes=8)(images, labels)
        yield largest(blended(images, labels, torch.arange(8).roll(1), float(soft[0, 0])), [mixed, soft])


def pasted(images: Tensor, labels: Tensor, partners: Tensor, box: Sequence[int]) -> list[Tensor]:
    """Return images and labels by our CutMix with this rectangle (top, left, bottom, right)."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        boxes = np.repeat(np.array(box)[:, None], len(images), 1)
        monkeypatch.setattr(batch_mixing, "_draw_boxes", lambda *args: boxes)
        monkeypatch.setattr(batch_mixing, "_draw_partners", lambda *args: partners)
        mixed = batch_mixing.cutmix({"image": images, "label": labels}, MIXED)
    return [mixed["image"], mixed["label"]]


@compare("timm, torchvision", "CutMix: images and soft labels with the same rectangle and partners", tolerance=1e-6)
def cutmix() -> Iterator[float]:
    for seed in range(10):
        images, labels = batch_of(seed)
        np.random.seed(seed)
        mixed, soft = Mixup(mixup_alpha=0, cutmix_alpha=1, label_smoothing=0, num_classes=8)(images.clone(), labels)
        np.random.seed(seed)
        np.random.rand()  # whether to mix at all
        (top, bottom, left, right), _ = cutmix_bbox_and_lam(images.shape, np.random.beta(1, 1))
        yield largest(pasted(images, labels, torch.arange(7, -1, -1), [top, left, bottom, right]), [mixed, soft])
        transform = v2.CutMix(alpha=1.0, num_classes=8)
        torch.manual_seed(seed)
        left, top, right, bottom = transform.make_params([images])["box"]
        torch.manual_seed(seed)
        mixed, soft = transform(images, labels)
        yield largest(pasted(images, labels, torch.arange(8).roll(1), [top, left, bottom, right]), [mixed, soft])


@compare("torchvision", "Gaussian blur of integer images, which rounds once more", unit="levels of 255", tolerance=1)
def blur() -> Iterator[float]:
    for sigma in (0.1, 0.7, 1.0, 2.0):
        for shape in ((3, 20, 31), (1, 40, 40), (2, 3, 16, 9)):
            image = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
            expected = transforms.gaussian_blur(image, [2 * math.ceil(3 * sigma) + 1] * 2, [sigma] * 2)
            yield largest(test_augment.blurred(image, sigma), expected)


@compare("torchvision", "crops of JPEGs, decoded and resized as a batch", unit="levels of 255", tolerance=0)
def resized_crops() -> Iterator[float]:
    image = encode(make_photo())
    for box in (Box(5, 7, 90, 110), Box(0, 0, 80, 80), Box(20, 30, 64, 60)):
        for size in ((64, 60), (80, 100), (90, 70)):
            batch = collate([{"image": ResizedCrop(image, box, size, "bilinear")}])["image"]
            region = image.decode()[:, box.top : box.top + box.height, box.left : box.left + box.width]
            yield largest(batch[0], transforms.resize(region, list(size), antialias=True))
