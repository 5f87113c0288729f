"""Losses and networks on a GPU do not make the host wait for it."""

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from tests.fake_gpu import GPU, HostWait, WithoutBlockingCopies


def test_waits_raise() -> None:
    with FakeTensorMode(), WithoutBlockingCopies():
        values = torch.empty(4, device=GPU)
        for wait in (lambda: torch.tensor([1.0], device=GPU), lambda: values[[0, 1]], lambda: values.cpu()):
            with pytest.raises(HostWait):
                wait()
        with pytest.raises(DynamicOutputShapeException):
            values[values > 0]
