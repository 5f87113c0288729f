"""Norms over parts of a batch against SlowFast's SubBatchNorm3d, whose numbers stand in multigrid/sub_batchnorm.json.

The originals keep statistics of every part. What they are joined to is compared with here; see GhostBatchNorm.
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
    """As the file says: sin(0.37 * flat_index), times the channel's scale, plus 0.1 * sample_index."""
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


def exact(found: Tensor | None, golden: Any) -> None:
    assert found is not None
    torch.testing.assert_close(found, torch.tensor(golden, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@cases
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_outputs_and_statistics_of_one_step(case: dict[str, Any], layout: torch.memory_format) -> None:
    norm, input = norm_of(case["num_splits"]), clips(case["n"]).contiguous(memory_format=layout)
    output = norm(input)
    exact(output.abs().sum(), case["train_out_sum_abs"])
    exact(output[0, 0].flatten(), case["train_out_sample0_ch0"])
    exact(norm.running_mean, case["aggregated_running_mean"])
    exact(norm.running_var, case["aggregated_running_var"])
    exact(norm.eval()(input).abs().sum(), case["eval_out_sum_abs"])


@cases
def test_the_statistics_of_each_part(case: dict[str, Any]) -> None:
    """A batch norm that sees part i, the samples i, i + k ..., has what the originals keep of it."""
    splits, input = case["num_splits"], clips(case["n"])
    assert case["split_of_sample"] == [sample % splits for sample in range(case["n"])]
    parts = [nn.BatchNorm3d(CHANNELS).double() for _ in range(splits)]
    for i, part in enumerate(parts):
        part(input[i::splits])
    exact(torch.cat([part.running_mean for part in parts]), case["split_running_mean"])  # type: ignore[misc]
    exact(torch.cat([part.running_var for part in parts]), case["split_running_var"])  # type: ignore[misc]


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
def test_over_many_steps_the_mean_is_exact_and_the_variance_is_so_in_expectation(momentum: float | None) -> None:
    """The originals' own rule, a norm for each part, beside one set of statistics.

    The variance is compared over many channels: the originals' differs from the mean of the parts' variances by what is
    right for all of them together to a few percent, while each channel alone has it by chance.
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
