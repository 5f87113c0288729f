"""Sub-batch norms of whole networks; golden values are in tests/golden/test_sub_batch_norm.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from opabinia.models import norms
from opabinia.models.backbones.video import resnet3d
from opabinia.models.norms import FrozenBatchNorm, GhostBatchNorm, split_batch_norms

SIZE = (3, 4, 12, 12)


def make_backbone() -> nn.Module:
    torch.manual_seed(0)
    return resnet3d(3, widths=[4, 8], blocks=[1, 1], zero_init_last=False)


@pytest.mark.parametrize("count", [6, 7])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_each_split_is_normalized_like_a_batch(layout: torch.memory_format, count: int) -> None:
    net, clips = make_backbone(), torch.rand(count, *SIZE)
    split_batch_norms(net, 3)
    output = net(clips.contiguous(memory_format=layout))
    for part in range(3):
        torch.testing.assert_close(output[part::3], make_backbone()(clips[part::3]), rtol=1e-4, atol=1e-5)


def test_changing_the_number_of_splits_changes_no_parameters() -> None:
    """Names, shapes and the tensors of an optimizer stay; weights can be loaded into the plain network and back."""
    net, plain = make_backbone(), make_backbone()
    before = {name: (value.data_ptr(), value.shape) for name, value in net.state_dict(keep_vars=True).items()}
    params = list(net.parameters())
    count = sum(isinstance(module, nn.BatchNorm3d) for module in net.modules())
    for splits in (1, 8, 2, 1, 4):
        assert split_batch_norms(net, splits) == count
        assert {module.splits for module in net.modules() if isinstance(module, GhostBatchNorm)} == {splits}
        net(torch.rand(8, *SIZE)).sum().backward()
        assert {n: (value.data_ptr(), value.shape) for n, value in net.state_dict(keep_vars=True).items()} == before
    assert all(param is expected_param for param, expected_param in zip(params, net.parameters(), strict=True))
    plain.load_state_dict(net.state_dict())
    clips = torch.rand(3, *SIZE)
    torch.testing.assert_close(plain.eval()(clips), net.eval()(clips))
    net.load_state_dict(make_backbone().state_dict())
    torch.testing.assert_close(net.eval()(clips), make_backbone().eval()(clips))


def test_the_variance_between_splits_counts_only_with_spread() -> None:
    """Two splits of means 0 and 2: by hand, one step of momentum 0.1."""
    clips = torch.tensor([0.0, 2.0, 0.0, 2.0]).view(4, 1, 1, 1, 1).expand(-1, -1, 2, 2, 2)
    for spread, expected in ((False, 0.9), (True, 0.9 + 0.1**2)):
        norm = GhostBatchNorm(1)
        norm.splits, norm.spread = 2, spread
        norm(clips)
        assert norm.running_mean is not None and norm.running_var is not None
        assert norm.running_mean.item() == pytest.approx(0.1)
        assert norm.running_var.item() == pytest.approx(expected)


def test_momentum_0_keeps_the_running_statistics() -> None:
    """Used while statistics are recomputed."""
    norm = GhostBatchNorm(2, momentum=0.0)
    norm.splits, norm.spread = 2, True
    norm(torch.rand(4, 2, 2, 2, 2))
    assert torch.equal(norm.running_mean, torch.zeros(2)) and torch.equal(norm.running_var, torch.ones(2))


def test_frozen_and_synchronized_norms_are_not_split() -> None:
    net = make_backbone()
    norms.freeze_batch_norms(net)
    assert split_batch_norms(net, 4) == 0
    assert any(isinstance(module, FrozenBatchNorm) for module in net.modules())
    synchronized = make_backbone()
    norms.convert_sync_batch_norm(synchronized)
    assert split_batch_norms(synchronized, 4) == 0


@pytest.mark.parametrize(
    ("splits", "group", "message"),
    [(0, None, "at least 1, not 0"), (2, object(), "1 when several processes share their statistics, not 2")],
)
def test_impossible_splits_are_refused(splits: int, group: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"splits: must be {message}"):
        split_batch_norms(make_backbone(), splits, group)
