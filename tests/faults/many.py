"""A recipe whose training does not depend on the number of processes, and functions to start it."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.programs import Program, Server
from tests.faults.runs import metrics

STEPS = 20
RECIPE = """
# 65 samples in batches of 32: the last batch of an epoch has one sample, fewer than there are processes.
plugins: [tests.faults.parts]
task: {name: classification, backbone: {name: grouped}, mean: [0.3], std: [0.38]}
data:
  train:
    source: {name: some_digits, n: 65, split: train}
    transforms:
      - {name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}
  val:
    source: {name: some_digits, n: 91, split: val}
  batch_size: 32
optimizer: {name: adamw, lr: 0.01}
schedule: {name: cosine, warmup: 5it}
train: {length: 20it, log_samples: true, num_threads: 1}
evaluate: {every: 10it, batch_size: 20}
checkpoint: {every: 5it, keep: 9}
hooks: {trace: {}}
seed: 3
"""


Trained = Callable[..., Path]
"""Trains in a folder with this name, on a number of processes, and returns the run folder."""


def start(
    server: Server,
    processes: int,
    *arguments: str,
    command: str = "train",
    environment: dict[str, str] | None = None,
) -> list[Program]:
    """Start the processes of one run from the warm server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if processes > 1 else {}
    return [
        server.start(
            *(command, *arguments),
            environment={**address, "RANK": str(rank), "WORLD_SIZE": str(processes), **(environment or {})},
        )
        for rank in range(processes)
    ]


def steps(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(folder) if "train/loss" in line]


def scores(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(folder) if "val/top1" in line]
