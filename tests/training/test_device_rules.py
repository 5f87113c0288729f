"""Training steps follow the rules of devices that the tests do not run on.

GPUs of Apple (MPS) have no float64. Some operations are not deterministic on CUDA: torch refuses them with
``train.deterministic``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
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


class Forbidden(Exception):
    """The device has no such operation."""


class WithoutFloat64(TorchDispatchMode):
    """Forbids results in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
            raise Forbidden(f"{func} in float64")
        return result


NOT_DETERMINISTIC = re.compile(
    r"aten::(_?adaptive_(avg|max)_pool[23]d_backward|avg_pool3d_backward|fractional_max_pool|max_unpool|grid_sampler_"
    r"[23]d_backward|reflection_pad[123]d_backward|_upsample_\w+_aa_backward|histc|median|put|scatter_reduce)"
)
"""Names of operations without a deterministic form on CUDA (torch.use_deterministic_algorithms). Others of its list act
deterministically when it is set: ``interpolate`` without antialiasing, ``cumsum``, ``index_add`` ..."""


class Deterministic(TorchDispatchMode):
    """Forbids operations that are not deterministic on CUDA."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        sums_pixels = name == "aten::nll_loss2d_forward" and args[3] != 0
        has_weights = name == "aten::bincount" and len(args) > 1 and args[1] is not None
        if sums_pixels or has_weights or NOT_DETERMINISTIC.match(name):
            raise Forbidden(f"{func} is not deterministic")
        return func(*args, **(kwargs or {}))


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
    *("segmentation/ade20k/upernet_convnext_tiny", "segmentation/voc/deeplabv3plus_r50"),
    *("segmentation/digits_panoptic", "selfsup/digits_dino", "selfsup/digits_moco", "selfsup/digits_mae"),
    *("selfsup/digits_npid", "selfsup/digits_vicreg", "selfsup/digits_deepcluster"),
    *("video/digits", "video/kinetics/slowfast_8x8_r50"),
)


@pytest.mark.parametrize("recipe", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_steps_follow_the_rules_of_other_devices(monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    """In the first step constants are made on the host and cached."""
    call, steps = StandardStep.__call__, 0

    def with_rules(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 1:
            return call(*args)
        with WithoutFloat64(), Deterministic():
            return call(*args)

    monkeypatch.setattr(StandardStep, "__call__", with_rules)
    losses(recipe, 2)
    assert steps == 2


def test_normalizers_and_scores() -> None:
    shares = torch.tensor([1, 1, 2])
    with WithoutFloat64():
        mean = mean_over_samples(torch.tensor(5.0), 2)
        entropy = normalized_entropy(shares)
    assert float(mean) == 2.5
    assert float(entropy) == pytest.approx(0.9464, abs=1e-4)  # 1.5 bits of log2(3)


def test_forbidden_operations_raise() -> None:
    with pytest.raises(Forbidden, match="float64"), WithoutFloat64():
        torch.ones(1).double()
    maps = torch.rand(1, 2, 4, 4, requires_grad=True)
    pools = (
        partial(torch.nn.functional.adaptive_max_pool2d, output_size=1),
        partial(torch.nn.functional.adaptive_avg_pool2d, output_size=2),
    )
    for pool in pools:
        with pytest.raises(Forbidden, match="not deterministic"), Deterministic():
            pool(maps).sum().backward()
