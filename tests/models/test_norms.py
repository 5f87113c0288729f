"""Replacements of batch norms; test_norms_together.py tests them on several processes."""

import pickle
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.models import norms
from opabinia.models.norms import FrozenBatchNorm, GhostBatchNorm

SHAPES = {"vectors": (5,), "images": (5, 4, 3), "videos": (5, 2, 4, 3)}


def random_input(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(shape, generator=generator)


def ghost_norm(splits: int, channels: int = 5) -> GhostBatchNorm:
    norm = GhostBatchNorm(channels)
    norm.splits = splits
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, channels))
        norm.bias.copy_(torch.linspace(-1, 1, channels))
    return norm


def reference_ghost_norm(norm: GhostBatchNorm, input: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the running statistics by definition: sample i is in split i mod ``splits``."""
    output, means, variances = torch.empty_like(input), [], []
    over = [0, *range(2, input.ndim)]
    shape = (1, -1, *[1] * (input.ndim - 2))
    for part in range(splits):
        samples = input[part::splits]
        mean, variance = samples.mean(over), samples.var(over, correction=0)
        normalized = (samples - mean.view(shape)) / (variance.view(shape) + norm.eps).sqrt()
        output[part::splits] = normalized * norm.weight.view(shape) + norm.bias.view(shape)
        means.append(mean)
        variances.append(samples.var(over, correction=1))
    return output, 0.1 * torch.stack(means).mean(0), 0.9 + 0.1 * torch.stack(variances).mean(0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("count", "splits"), [(8, 2), (8, 4), (7, 2), (11, 3), (9, 1)])
def test_each_split_is_normalized_separately(shape: tuple[int, ...], count: int, splits: int) -> None:
    norm, input = ghost_norm(splits), random_input((count, *shape))
    expected, mean, variance = reference_ghost_norm(norm, input, splits)
    torch.testing.assert_close(norm(input), expected)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((1, 5, 4, 3), 1), ((2, 5, 4, 3), 2), ((3, 5), 1), ((5, 5), 2), ((7, 5, 1, 1), 3)],
    ids=str,
)
def test_small_batches_have_fewer_splits(shape: tuple[int, ...], parts: int) -> None:
    norm, input = ghost_norm(8), random_input(shape)
    torch.testing.assert_close(norm(input), reference_ghost_norm(norm, input, parts)[0])


@pytest.mark.parametrize("count", [6, 7])
def test_gradients_are_those_of_the_splits(count: int) -> None:
    norm, input = ghost_norm(3).double(), random_input((count, 5, 4)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: norm(x), (input,))
    norm(input).pow(3).sum().backward()
    grad = norm.weight.grad
    norm.weight.grad = None
    reference_ghost_norm(norm, input, 3)[0].pow(3).sum().backward()
    torch.testing.assert_close(grad, norm.weight.grad)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("count", [8, 7])
def test_the_memory_format_is_kept(layout: torch.memory_format, count: int) -> None:
    norm, input = ghost_norm(4), random_input((count, 5, 4, 3))
    output = norm(input.contiguous(memory_format=layout))
    assert output.is_contiguous(memory_format=layout)
    torch.testing.assert_close(output, reference_ghost_norm(norm, input, 4)[0])


def test_without_momentum_statistics_average_over_all_batches() -> None:
    norm = ghost_norm(2)
    norm.momentum = None
    first, second = random_input((4, 5), 1), random_input((4, 5), 2)
    norm(first), norm(second)
    torch.testing.assert_close(norm.running_mean, torch.cat([first, second]).mean(0))


# --- conversions ------------------------------------------------------------------------------------------------------

CONVERSIONS: dict[str, Any] = {
    "ghost": lambda model: norms.convert_ghost_batch_norm(model, 2),
    "freeze": norms.freeze_batch_norms,
    "group": norms.convert_group_norm,
    "synchronize": norms.convert_sync_batch_norm,
    "stream": lambda model: norms.convert_stream_batch_norm(model, ["a"], norms.CurrentStream("a")),
}
MODEL_WITH_ACTIVATIONS = "test_efficientnet"
"""A model whose batch norms include activations."""


def trained_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=0)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.05 * torch.rand_like(tensor))
    return model.eval()


@pytest.mark.parametrize("name", ["test_resnet", MODEL_WITH_ACTIVATIONS])
@pytest.mark.parametrize("kind", CONVERSIONS)
def test_conversion_keeps_names_and_values_of_weights(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "GROUPS", 4)
    model, before = trained_model(name), trained_model(name).state_dict()
    norm_names = [key for key, module in model.named_modules() if isinstance(module, _BatchNorm)]
    CONVERSIONS[kind](model)
    after = model.state_dict()
    assert norm_names
    assert not any(type(model.get_submodule(key)) is type(trained_model(name).get_submodule(key)) for key in norm_names)
    assert all(torch.equal(before[key], tensor) for key, tensor in after.items())
    removed = {key.rpartition(".")[2] for key in before.keys() - after.keys()}
    assert removed == ({"running_mean", "running_var", "num_batches_tracked"} if kind == "group" else set())
    restored, types = pickle.loads(pickle.dumps(model)), [type(module) for module in model.modules()]
    assert [type(module) for module in restored.modules()] == types


@pytest.mark.parametrize("name", ["test_resnet", MODEL_WITH_ACTIVATIONS])
@pytest.mark.parametrize("kind", ["ghost", "freeze", "synchronize"])
@torch.no_grad()
def test_conversion_does_not_change_outputs_in_evaluation(kind: str, name: str) -> None:
    model, images = trained_model(name), torch.rand(2, 3, 64, 64)
    expected = model(images)
    CONVERSIONS[kind](model)
    torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize("trained", [False, True])
def test_frozen_norms_keep_their_statistics(trained: bool) -> None:
    """Their weights are trained if asked for (MMDetection's ``norm_eval``)."""
    model, images = trained_model(MODEL_WITH_ACTIVATIONS), torch.rand(4, 3, 64, 64)
    evaluated = model(images)
    norms.freeze_batch_norms(model, trained_weights=trained)
    frozen = [module for module in model.modules() if isinstance(module, FrozenBatchNorm)]
    before = [tensor.clone() for module in frozen for tensor in module.state_dict().values()]
    output = model.train()(images)
    torch.testing.assert_close(output, evaluated)
    output.sum().backward()
    assert frozen and all((param.grad is not None) == trained for module in frozen for param in module.parameters())
    after = [tensor for module in frozen for tensor in module.state_dict().values()]
    assert all(torch.equal(value, expected_value) for value, expected_value in zip(before, after, strict=True))


def test_groups_of_a_single_value_do_not_depend_on_the_batch() -> None:
    norm = norms.GroupNorm(4, 4)
    torch.nn.init.normal_(norm.bias)
    input = torch.randn(2, 4, 1, 1)
    torch.testing.assert_close(norm(input[:1]), norm(input)[:1])
    torch.testing.assert_close(norm(input[:1]).flatten(), norm.bias)
    torch.testing.assert_close(norm(torch.ones(1, 4, 2, 3)), F.group_norm(torch.ones(1, 4, 2, 3), 4, bias=norm.bias))


def test_converted_norms_are_not_synchronized() -> None:
    for kind in ("ghost", "freeze"):
        model = trained_model("test_resnet")
        CONVERSIONS[kind](model)
        types = [type(module) for module in model.modules()]
        norms.convert_sync_batch_norm(model)
        assert [type(module) for module in model.modules()] == types
