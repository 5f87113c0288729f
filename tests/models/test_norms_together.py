"""Norms synchronized over processes: each group of processes equals one process with all its samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from opabinia.models.norms import SyncBatchNorm, convert_sync_batch_norm, split_batch_norms
from opabinia.runtime.processes import neighbor_group
from tests.faults.programs import Server

SIZES = [3, 2, 2]
"""Samples of each of three processes."""
STEPS = 2
"""Operations whose result the host must know."""

Net = Callable[[], nn.Module]


def make_clips(shape: tuple[int, ...], rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * rank + step)
    return 3 + 2 * torch.randn(SIZES[rank], *shape, generator=generator)


def make_norm(channels: int = 4, affine: bool = True) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm3d(channels, affine=affine)
    if affine:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    return nn.Sequential(norm)


def sub_batch_norm() -> nn.Module:
    net = make_norm()
    split_batch_norms(net, 1, neighbor_group(2))
    return net


def synchronized(affine: bool = True) -> nn.Module:
    net = make_norm(affine=affine)
    convert_sync_batch_norm(net)
    assert type(net[0]) is SyncBatchNorm  # type: ignore[index]
    return net


CLIPS = (4, 2, 3, 3)
CASES: dict[str, tuple[Net, tuple[int, ...], torch.dtype, bool]] = {
    "group of neighbors": (sub_batch_norm, CLIPS, torch.float32, False),
    "all": (synchronized, CLIPS, torch.float32, False),
    "double precision": (synchronized, CLIPS, torch.float64, False),
    "half precision": (synchronized, CLIPS, torch.bfloat16, False),
    "channels last": (synchronized, CLIPS, torch.float32, True),
    "without parameters": (partial(synchronized, False), CLIPS, torch.float32, False),
    "vectors": (synchronized, (4,), torch.float32, False),
}


def train(net: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """Return outputs and gradients of the last batch, accumulated gradients of parameters, and running statistics."""
    outputs: dict[str, Tensor] = {}
    for batch in batches:
        inputs = batch.clone().requires_grad_()
        output = net(inputs)
        output.float().pow(3).sum().backward()
        assert inputs.grad is not None
        outputs = {"output": output.detach(), "gradient": inputs.grad}
    gradients = {name: param.grad for name, param in net.named_parameters() if param.grad is not None}
    return {**outputs, **gradients, **dict(net.named_buffers())}


def batches_of(case: str, rank: int) -> list[Tensor]:
    _, shape, dtype, channels_last = CASES[case]
    clips = [make_clips(shape, rank, step).to(dtype) for step in range(STEPS)]
    return [clip.to(memory_format=torch.channels_last_3d) for clip in clips] if channels_last else clips


def run_processes(folder: str) -> None:
    """Fork processes that each write their results to the folder."""
    rank = next((number for number in range(1, len(SIZES)) if not os.fork()), 0)
    torch.set_num_threads(1)
    address = f"file://{folder}/here"
    dist.init_process_group("gloo", address, timedelta(seconds=60), world_size=len(SIZES), rank=rank)
    results: dict[str, Any] = {}
    for case, (make, _, dtype, _) in CASES.items():
        net = make().to(torch.float64) if dtype == torch.float64 else make()
        results[case] = train(net, batches_of(case, rank))
    results["no values on one rank"] = train(synchronized(), [torch.zeros(2 * (rank > 0), 4, 1, 2, 2)])
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        os._exit(0)
    assert not any(os.wait()[1] for _ in SIZES[1:])


@pytest.fixture(scope="module")
def results(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each process."""
    folder = tmp_path_factory.mktemp("processes")
    warm_server.run(code=f"from {__name__} import run_processes; run_processes({str(folder)!r})", seconds=200)
    return [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(len(SIZES))]


@pytest.mark.parametrize("case", CASES)
def test_a_group_equals_one_process(results: list[dict[str, Any]], case: str) -> None:
    """Gradients of parameters are those of each process: DDP adds them."""
    make, _, dtype, channels_last = CASES[case]
    tolerance: dict[str, float] = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {}
    for group in ([0, 1], [2]) if make is sub_batch_norm else ([0, 1, 2],):
        net = make().to(torch.float64) if dtype == torch.float64 else make()
        parts = zip(*(batches_of(case, rank) for rank in group), strict=True)
        expected = train(net, [torch.cat(part) for part in parts])
        ranks = [results[rank][case] for rank in group]
        for name, value in expected.items():
            if name in ("output", "gradient"):
                actual = torch.cat([rank[name] for rank in ranks])
                assert actual.dtype == dtype
            elif "running" in name:
                actual = ranks[0][name]
                assert all(torch.equal(actual, rank[name]) for rank in ranks)
            else:
                actual = ranks[0][name] if "tracked" in name else sum(rank[name] for rank in ranks)
            torch.testing.assert_close(actual, value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
        if channels_last:
            assert ranks[0]["output"].is_contiguous(memory_format=torch.channels_last_3d)


def test_a_process_without_values_counts_nothing(results: list[dict[str, Any]]) -> None:
    for rank in results:
        case = rank["no values on one rank"]
        assert case["output"].isfinite().all() and case["gradient"].isfinite().all()
        assert case["0.running_mean"].tolist() == [0] * 4


def test_a_single_process_has_no_neighbour_group() -> None:
    assert neighbor_group(1) is None and neighbor_group(4) is None
