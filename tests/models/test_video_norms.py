"""Sub-batch norms of whole networks; their numbers are in tests/golden/test_sub_batch_norm.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opabinia.models import norms
from opabinia.models.backbones.video import resnet3d
from opabinia.models.norms import FrozenBatchNorm, GhostBatchNorm, split_batch_norms

SIZE = (3, 4, 12, 12)


def made() -> nn.Module:
    torch.manual_seed(0)
    return resnet3d(3, widths=[4, 8], blocks=[1, 1], zero_init_last=False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_each_part_is_as_a_batch_of_its_own(layout: torch.memory_format) -> None:
    net, clips = made(), torch.rand(6, *SIZE)
    split_batch_norms(net, 3)
    found = net(clips.contiguous(memory_format=layout))
    for part in range(3):
        torch.testing.assert_close(found[part::3], made()(clips[part::3]), rtol=1e-4, atol=1e-5)


def test_a_ragged_batch_has_parts_that_differ_by_one() -> None:
    net, clips = made(), torch.rand(7, *SIZE)
    split_batch_norms(net, 3)
    found = net(clips)
    for part in range(3):
        torch.testing.assert_close(found[part::3], made()(clips[part::3]), rtol=1e-4, atol=1e-5)


def test_the_number_changes_at_any_time_and_nothing_else_does() -> None:
    """Names, shapes, and the very tensors an optimizer holds; weights go to the plain network and come back."""
    net, plain = made(), made()
    before = {name: (one.data_ptr(), one.shape) for name, one in net.state_dict(keep_vars=True).items()}
    parameters = list(net.parameters())
    count = sum(isinstance(module, nn.BatchNorm3d) for module in net.modules())
    for splits in (1, 8, 2, 1, 4):
        assert split_batch_norms(net, splits) == count
        assert {one.splits for one in net.modules() if isinstance(one, GhostBatchNorm)} == {splits}
        net(torch.rand(8, *SIZE)).sum().backward()
        assert {n: (one.data_ptr(), one.shape) for n, one in net.state_dict(keep_vars=True).items()} == before
    assert all(one is other for one, other in zip(parameters, net.parameters(), strict=True))
    plain.load_state_dict(net.state_dict())
    clips = torch.rand(3, *SIZE)
    torch.testing.assert_close(plain.eval()(clips), net.eval()(clips))
    net.load_state_dict(made().state_dict())
    torch.testing.assert_close(net.eval()(clips), made().eval()(clips))


def test_one_part_is_a_batch_norm() -> None:
    net, plain, clips = made(), made(), torch.rand(5, *SIZE)
    split_batch_norms(net, 1)
    torch.testing.assert_close(net(clips), plain(clips))
    for name, one in plain.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], one)


def test_the_variance_of_parts_counts_only_where_it_is_asked_for() -> None:
    """Two parts of means 0 and 2: by hand, one step of momentum 0.1."""
    clips = torch.tensor([0.0, 2.0, 0.0, 2.0]).view(4, 1, 1, 1, 1).expand(-1, -1, 2, 2, 2)
    for spread, expected in ((False, 0.9), (True, 0.9 + 0.1**2)):
        norm = GhostBatchNorm(1)
        norm.splits, norm.spread = 2, spread
        norm(clips)
        assert norm.running_mean is not None and norm.running_var is not None
        assert norm.running_mean.item() == pytest.approx(0.1)
        assert norm.running_var.item() == pytest.approx(expected)


def test_a_norm_whose_statistics_stand_still_keeps_them() -> None:
    """As where they are measured anew."""
    norm = GhostBatchNorm(2, momentum=0.0)
    norm.splits, norm.spread = 2, True
    norm(torch.rand(4, 2, 2, 2, 2))
    assert torch.equal(norm.running_mean, torch.zeros(2)) and torch.equal(norm.running_var, torch.ones(2))


def test_frozen_and_synchronised_norms_stay() -> None:
    net = made()
    norms.freeze_batch_norms(net)
    assert split_batch_norms(net, 4) == 0
    assert any(isinstance(module, FrozenBatchNorm) for module in net.modules())
    other = made()
    norms.convert_sync_batch_norm(other)
    assert split_batch_norms(other, 4) == 0


def test_no_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="splits: must be at least 1, not 0"):
        split_batch_norms(made(), 0)


def test_parts_over_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="splits: must be 1 when several processes share their statistics, not 2"):
        split_batch_norms(made(), 2, object())  # type: ignore[arg-type]
