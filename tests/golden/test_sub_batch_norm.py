"""Batch norm over parts of a batch, compared with SlowFast's SubBatchNorm3d (values in multigrid/sub_batchnorm.json).

SubBatchNorm3d has running statistics of every part; its aggregated statistics are compared. See GhostBatchNorm.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.models.norms import GhostBatchNorm, split_batch_norms

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "multigrid" / "sub_batchnorm.json").read_text())
cases = pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['n']} in {case['num_splits']}")
CHANNELS = 3


def clips(count: int) -> Tensor:
    """The inputs described in the file: sin(0.37 * flat_index), times the channel's scale, plus 0.1 * sample_index."""
    flat = torch.arange(count * CHANNELS * 8, dtype=torch.float64)
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, CHANNELS, 1, 1, 1)
    sample = torch.arange(count, dtype=torch.float64).view(-1, 1, 1, 1, 1)
    return (0.37 * flat).sin().view(count, CHANNELS, 2, 2, 2) * scale + 0.1 * sample


def norm_of(splits: int) -> GhostBatchNorm:
    model = nn.Sequential(nn.BatchNorm3d(CHANNELS)).double()
    assert split_batch_norms(model, splits) == 1
    norm = model[0]
    assert isinstance(norm, GhostBatchNorm)
    return norm


def assert_exact(actual: Tensor | None, golden: Any) -> None:
    assert actual is not None
    torch.testing.assert_close(actual, torch.tensor(golden, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@cases
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_outputs_and_statistics_of_one_step(case: dict[str, Any], layout: torch.memory_format) -> None:
    norm, input = norm_of(case["num_splits"]), clips(case["n"]).contiguous(memory_format=layout)
    output = norm(input)
    assert_exact(output.abs().sum(), case["train_out_sum_abs"])
    assert_exact(output[0, 0].flatten(), case["train_out_sample0_ch0"])
    assert_exact(norm.running_mean, case["aggregated_running_mean"])
    assert_exact(norm.running_var, case["aggregated_running_var"])
    assert_exact(norm.eval()(input).abs().sum(), case["eval_out_sum_abs"])


@cases
def test_statistics_of_each_part(case: dict[str, Any]) -> None:
    """A batch norm over part i (samples i, i + k, ...) has the statistics of that part in SubBatchNorm3d."""
    splits, input = case["num_splits"], clips(case["n"])
    assert case["split_of_sample"] == [sample % splits for sample in range(case["n"])]
    parts = [nn.BatchNorm3d(CHANNELS).double() for _ in range(splits)]
    for i, part in enumerate(parts):
        part(input[i::splits])
    assert_exact(torch.cat([part.running_mean for part in parts]), case["split_running_mean"])  # type: ignore[misc]
    assert_exact(torch.cat([part.running_var for part in parts]), case["split_running_var"])  # type: ignore[misc]


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
def test_over_many_steps_the_mean_is_exact_and_the_variance_correct_in_expectation(momentum: float | None) -> None:
    """Compare the rule of SubBatchNorm3d, a norm for each part, with a single set of statistics.

    The correction of the variance is compared as a mean over many channels: there it is accurate to a few percent,
    while that of a single channel is random.
    """
    splits, channels, generator = 4, 4000, torch.Generator().manual_seed(0)
    norm, plain = GhostBatchNorm(channels, momentum=momentum), GhostBatchNorm(channels, momentum=momentum)
    norm.splits = plain.splits = splits
    norm.spread = True
    parts = [nn.BatchNorm1d(channels, momentum=momentum) for _ in range(splits)]
    for _step in range(12):
        input = torch.randn(2 * splits, channels, generator=generator)
        norm(input), plain(input)
        for i, part in enumerate(parts):
            part(input[i::splits])
    means = torch.stack([part.running_mean for part in parts])  # type: ignore[misc]
    variances = torch.stack([part.running_var for part in parts])  # type: ignore[misc]
    torch.testing.assert_close(norm.running_mean, means.mean(0))
    torch.testing.assert_close(plain.running_var, variances.mean(0))
    between = means.var(0, correction=0).mean()
    assert norm.running_var is not None and plain.running_var is not None
    assert float((norm.running_var - plain.running_var).mean()) == pytest.approx(float(between), rel=0.05)
