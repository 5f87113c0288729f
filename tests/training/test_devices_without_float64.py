"""Training steps compute nothing in float64, which GPUs of Apple (MPS) do not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from opabinia.engine.loop.step import StandardStep
from opabinia.models.losses.clustering import normalized_entropy
from opabinia.runtime.collectives import mean_over_samples
from scripts.update_golden import losses


class WithoutFloat64(TorchDispatchMode):
    """Raises for operations with a result in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
            raise TypeError(f"{func} in float64, which this device does not have")
        return result


@pytest.fixture(autouse=True)
def restore_torch_settings() -> Iterator[None]:
    """Restore the settings that a run changes for the process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


FAST = ("detection/digits", "segmentation/digits", "selfsup/digits_swav")
OTHERS = (
    *("classification/digits", "detection/digits_mask", "detection/digits_oriented", "multitask/digits", "reid/digits"),
    *("segmentation/digits_panoptic", "selfsup/digits_dino", "selfsup/digits_moco", "selfsup/digits_mae"),
    *("selfsup/digits_npid", "selfsup/digits_vicreg", "selfsup/digits_deepcluster", "video/digits"),
)


@pytest.mark.parametrize("recipe", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_step_computes_nothing_in_float64(monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    """In the first step constants are made on the host and cached."""
    call, steps = StandardStep.__call__, 0

    def without_float64(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 1:
            return call(*args)
        with WithoutFloat64():
            return call(*args)

    monkeypatch.setattr(StandardStep, "__call__", without_float64)
    losses(recipe, 2)
    assert steps == 2


def test_normalizers_and_scores() -> None:
    shares = torch.tensor([1, 1, 2])
    with WithoutFloat64():
        mean = mean_over_samples(torch.tensor(5.0), 2)
        entropy = normalized_entropy(shares)
    assert float(mean) == 2.5
    assert float(entropy) == pytest.approx(0.9464, abs=1e-4)  # 1.5 bits of log2(3)


def test_the_mode_raises() -> None:
    with pytest.raises(TypeError, match="float64"), WithoutFloat64():
        torch.ones(1).double()
