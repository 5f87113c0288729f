"""Compare a self-supervised run with raw pixels and with its own network before training.

    python docs/examples/what_it_learned.py runs/selfsup/digits_simclr/default

All three are evaluated by k-nearest neighbors and a linear probe, which learn from the training set and are scored on
the validation set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import opabinia
from opabinia.contracts import Batch, DatasetInfo, Source, Task
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.representation.linear_probe import LinearProbe
from opabinia.training.run_folder import build_parts, resolve

Embed = Callable[[Batch], Tensor]


def main(run: Path, overrides: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Return the scores of pixels, the untrained and the trained network on the run's data, with its validation
    transforms."""
    parts = build_parts(resolve(run, overrides)).keywords
    validation = parts["data"].validation[0]
    train, val = parts["data"].train.source, validation.source
    dataset_info = DatasetInfo(samples=len(train), channels=train.channels, classes=train.classes)
    torch.manual_seed(0)
    untrained, trained = parts["task"](dataset_info), opabinia.load(run, overrides).task
    methods = {"pixels": pixels, "untrained": embedded_by(untrained), "trained": embedded_by(trained)}
    return {name: evaluate(embed, train, val, validation.transforms, dataset_info) for name, embed in methods.items()}


def pixels(batch: Batch) -> Tensor:
    """Return pixels in 0 to 1 (B x C * H * W)."""
    image: Tensor = batch["image"]
    return image.flatten(1) / 255


def embedded_by(task: Task) -> Embed:
    """Return a function from a batch to the task's embeddings (B x D)."""
    task.eval()
    return lambda batch: task.predict(batch)["embedding"]


@torch.inference_mode()
def evaluate(
    embed: Embed, train: Source, val: Source, transforms: Sequence[object], dataset_info: DatasetInfo
) -> dict[str, float]:
    """Return the scores of both evaluators for one kind of embedding."""
    evaluators = [Knn(dataset_info), LinearProbe(dataset_info)]
    for source in (train, val):
        requests = evaluation_requests(len(source), 256, rank=0, world=1)
        for _, batch in Loader(BatchReader(source, transforms), requests).iterate():
            predictions = {"embedding": embed(batch)}
            for evaluator in evaluators:
                (evaluator.learn if source is train else evaluator.update)(predictions, batch)
    return {name: value for evaluator in evaluators for name, value in evaluator.compute([evaluator.state()]).items()}


if __name__ == "__main__":
    for name, scores in main(Path(sys.argv[1]), sys.argv[2:]).items():
        print(f"{name:<10}", "  ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
