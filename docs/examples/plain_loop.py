"""A hand-written training loop over Opabinia's parts: no config, no trainer, no hooks.

    python docs/examples/plain_loop.py

Data order, augmentation and everything random in the model follow from the seed, so every run gives the same result.
"""

from __future__ import annotations

from functools import partial

import torch
from torchvision.transforms import v2

from opabinia.contracts import Clock, DatasetInfo
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import EpochSampler
from opabinia.data.sampling.requests import evaluation_requests, training_requests
from opabinia.data.sources import Digits
from opabinia.engine.loop.step import total_loss
from opabinia.models.backbones.timm import timm
from opabinia.optim.groups import ParamGroups, Rule, parameter_groups
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.classification import Classification


def main(epochs: int = 4, seed: int = 0) -> dict[str, float]:
    """Train on handwritten digits and return the scores on the validation digits."""
    train, val = Digits(split="train"), Digits(split="val")
    dataset_info = DatasetInfo(samples=len(train), channels=train.channels, classes=train.classes)
    augment = [v2.Resize(32), v2.RandomAffine(degrees=10, translate=(0.1, 0.1))]

    torch.manual_seed(seed)
    task = Classification(dataset_info, backbone=partial(timm, model="test_resnet"))
    groups = parameter_groups(task, ParamGroups(rules=[Rule(kind="1d", weight_decay=0.0)]))
    optimizer = torch.optim.AdamW(groups, lr=0.004, weight_decay=0.05)
    schedule = partial(cosine, warmup=Duration(1, "ep"))

    plan = ConstantPlan(len(train), 64, Duration(epochs, "ep"))
    requests = training_requests(plan, EpochSampler(len(train), seed).order, rank=0, world=1)
    for global_batch, batch in Loader(BatchReader(train, augment, seed=seed), requests).iterate():
        clock = Clock.at(plan, global_batch.step)
        for group in optimizer.param_groups:
            group["lr"] = 0.004 * schedule(clock)
        loss, scalars = total_loss(task(batch, clock))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.step % 20 == 0:
            print(f"step {clock.step}/{plan.total_steps}  loss {loss.item():.3f}  top1 {scalars['top1'].item():.3f}")

    task.eval()
    evaluators = task.evaluators(dataset_info)
    requests = evaluation_requests(len(val), 64, rank=0, world=1)
    with torch.no_grad():
        for _, batch in Loader(BatchReader(val, augment[:1]), requests).iterate():
            predictions = task.predict(batch)
            for evaluator in evaluators:
                evaluator.update(predictions, batch)
    return {name: score for evaluator in evaluators for name, score in evaluator.compute([evaluator.state()]).items()}


if __name__ == "__main__":
    print(main())
