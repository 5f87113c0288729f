"""The recipe of the fault tests, and the results of a run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS, STEPS_PER_EPOCH = 30, 15
EVALUATIONS = (8, 15, 23, 30)
SAVES = (5, 10, 15, 20, 25, 30)

RECIPE = """
# 30 steps of digits with all sources of randomness: order, augmentation, mixup, dropout.
plugins: [tests.faults.parts]
task: {name: classification, backbone: {name: tiny, width: 8}, dropout: 0.2, mean: [0.3], std: [0.38]}
data:
  train:
    source: {name: some_digits, n: 118, split: train}
    transforms: [RandomHorizontalFlip]
  val:
    source: {name: some_digits, n: 90, split: val}
  batch_size: 8
  mix: [{name: mixup, alpha: 0.2}]
optimizer: {name: adamw, lr: 0.01}
schedule: {name: cosine, warmup: 5it}
train: {length: 2ep, log_every: 3, deterministic: true}
evaluate: {every: 0.5ep, batch_size: 20}
checkpoint: {every: 5it}
hooks: {trace: {}}
seed: 3
"""


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` without values that depend on the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "samples_per_s" and not k.startswith(("time/", "memory/"))}
        for line in lines
    ]


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


@dataclass
class Outcome:
    """The results of a run: the bytes of the newest checkpoint, and the metrics log."""

    model: bytes
    optimizer: bytes
    metrics: list[dict[str, Any]]
    results: dict[str, float]
    best: str

    @classmethod
    def of(cls, folder: Path) -> "Outcome":
        newest = folder / "checkpoints" / (folder / "checkpoints" / "last").read_text().strip()
        return cls(
            (newest / "model.safetensors").read_bytes(),
            (newest / "optimizer.safetensors").read_bytes(),
            metrics(folder),
            json.loads((folder / "results.json").read_text()),
            (folder / "checkpoints" / "best").read_text(),
        )


def assert_same(actual: Outcome, expected: Outcome) -> None:
    assert actual.metrics == expected.metrics
    assert actual.results == expected.results
    assert actual.best == expected.best
    assert actual.model == expected.model, "the weights differ"
    assert actual.optimizer == expected.optimizer, "the optimizer's state differs"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
