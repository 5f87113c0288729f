"""Norms over neighbouring processes: each group is as one process with its batches."""

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
"""Samples of each of three processes; the first two are neighbours, the third is alone."""
STEPS = 2


def clips(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * rank + step)
    return 3 + 2 * torch.randn(SIZES[rank], 4, 2, 3, 3, generator=generator)


def made() -> nn.Module:
    net = nn.Sequential(nn.BatchNorm3d(4))
    split_batch_norms(net, 1)
    return net


def trained(net: nn.Module, batches: list[Tensor]) -> dict[str, list[Any]]:
    """Outputs and gradients of the last batch, the weight's gradient of all, and the running statistics."""
    found: dict[str, list[Any]] = {}
    for batch in batches:
        given = batch.clone().requires_grad_()
        output = net(given)
        output.pow(3).sum().backward()
        assert given.grad is not None
        found = {"output": output.tolist(), "gradient": given.grad.tolist()}
    (norm,) = net
    assert isinstance(norm, GhostBatchNorm)
    more = {"weight": norm.weight.grad, "mean": norm.running_mean, "variance": norm.running_var}
    return found | {name: one.tolist() for name, one in more.items() if one is not None}


def together(folder: str) -> None:
    """Fork into processes, each of which writes what it has found."""
    rank = next((number for number in range(1, len(SIZES)) if not os.fork()), 0)
    where = f"file://{folder}/here"
    dist.init_process_group("gloo", where, timedelta(seconds=60), world_size=len(SIZES), rank=rank)
    net = made()
    split_batch_norms(net, 1, neighbor_group(2))
    found = trained(net, [clips(rank, step) for step in range(STEPS)])
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    if not rank:
        for _ in SIZES[1:]:
            os.wait()


@pytest.mark.slow
def test_neighbours_are_as_one_process(tmp_path: Path) -> None:
    program = f"from tests.models.test_norms_together import together; together({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environment, timeout=300)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(SIZES))]
    for group in ([0, 1], [2]):
        batches = [torch.cat([clips(rank, step) for rank in group]) for step in range(STEPS)]
        expected = trained(made(), batches)
        for name in ("output", "gradient"):
            own = [row for rank in group for row in found[rank][name]]
            torch.testing.assert_close(torch.tensor(own), torch.tensor(expected[name]))
        weight = sum(torch.tensor(found[rank]["weight"]) for rank in group)
        torch.testing.assert_close(weight, torch.tensor(expected["weight"]))
        for name in ("mean", "variance"):
            for rank in group:
                torch.testing.assert_close(torch.tensor(found[rank][name]), torch.tensor(expected[name]))


def test_alone_there_are_no_neighbours() -> None:
    assert neighbor_group(1) is None and neighbor_group(4) is None
