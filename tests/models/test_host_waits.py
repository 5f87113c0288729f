"""Losses and networks on a GPU do not make the host wait for it."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from opabinia.models.backbones.video.slowfast import SlowFast
from opabinia.models.heads import sample_classes
from tests.fake_gpu import GPU, HostWait, WithoutBlockingCopies


def slowfast() -> Sequence[int]:
    with GPU:
        net = SlowFast(3)
    with WithoutBlockingCopies():
        return net(torch.empty(1, 3, 8, 32, 32, device=GPU)).shape


def sampled_classes() -> Sequence[int]:
    labels = torch.empty(8, dtype=torch.int64, device=GPU)
    with WithoutBlockingCopies():
        return sample_classes(labels, 1000, 0.1, seed=3).shape


@pytest.mark.parametrize(("compute", "shape"), [(slowfast, [1, 2304]), (sampled_classes, [100])])
def test_the_host_does_not_wait(compute: Callable[[], Sequence[int]], shape: list[int]) -> None:
    with FakeTensorMode():
        assert list(compute()) == shape


def test_waits_raise() -> None:
    with FakeTensorMode(), WithoutBlockingCopies():
        values = torch.empty(4, device=GPU)
        for wait in (lambda: torch.tensor([1.0], device=GPU), lambda: values[[0, 1]], lambda: values.cpu()):
            with pytest.raises(HostWait):
                wait()
        with pytest.raises(DynamicOutputShapeException):
            values[values > 0]
