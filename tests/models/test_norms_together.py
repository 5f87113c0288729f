"""Norms synchronized over neighbouring processes: each group equals one process with all its samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from opabinia.models import norms
from opabinia.models.norms import GhostBatchNorm, split_batch_norms
from opabinia.runtime.processes import neighbor_group

ROOT = Path(norms.__file__).parents[2]
SIZES = [3, 2, 2]
"""Samples of each of three processes; the first two form a group, the third is alone."""
STEPS = 2


def make_clips(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * rank + step)
    return 3 + 2 * torch.randn(SIZES[rank], 4, 2, 3, 3, generator=generator)


def make_norm() -> nn.Module:
    net = nn.Sequential(nn.BatchNorm3d(4))
    split_batch_norms(net, 1)
    return net


def train(net: nn.Module, batches: list[Tensor]) -> dict[str, list[Any]]:
    """Return outputs and gradients of the last batch, the weight's accumulated gradient, and the running statistics."""
    results: dict[str, list[Any]] = {}
    for batch in batches:
        inputs = batch.clone().requires_grad_()
        output = net(inputs)
        output.pow(3).sum().backward()
        assert inputs.grad is not None
        results = {"output": output.tolist(), "gradient": inputs.grad.tolist()}
    (norm,) = net
    assert isinstance(norm, GhostBatchNorm)
    statistics = {"weight": norm.weight.grad, "mean": norm.running_mean, "variance": norm.running_var}
    return results | {name: value.tolist() for name, value in statistics.items() if value is not None}


def run_processes(folder: str) -> None:
    """Fork processes that each write their results to the folder."""
    rank = next((number for number in range(1, len(SIZES)) if not os.fork()), 0)
    address = f"file://{folder}/here"
    dist.init_process_group("gloo", address, timedelta(seconds=60), world_size=len(SIZES), rank=rank)
    net = make_norm()
    split_batch_norms(net, 1, neighbor_group(2))
    results = train(net, [make_clips(rank, step) for step in range(STEPS)])
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    if not rank:
        for _ in SIZES[1:]:
            os.wait()


@pytest.mark.slow
def test_a_group_of_neighbours_equals_one_process(tmp_path: Path) -> None:
    program = f"from tests.models.test_norms_together import run_processes; run_processes({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environment, timeout=300)
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(SIZES))]
    for group in ([0, 1], [2]):
        batches = [torch.cat([make_clips(rank, step) for rank in group]) for step in range(STEPS)]
        expected = train(make_norm(), batches)
        for name in ("output", "gradient"):
            rows = [sample for rank in group for sample in results[rank][name]]
            torch.testing.assert_close(torch.tensor(rows), torch.tensor(expected[name]))
        weight = sum(torch.tensor(results[rank]["weight"]) for rank in group)
        torch.testing.assert_close(weight, torch.tensor(expected["weight"]))
        for name in ("mean", "variance"):
            for rank in group:
                torch.testing.assert_close(torch.tensor(results[rank][name]), torch.tensor(expected[name]))


def test_a_single_process_has_no_neighbour_group() -> None:
    assert neighbor_group(1) is None and neighbor_group(4) is None
