"""Norms in the place of batch norms; tests/faults/test_together.py has the synchronised one on many processes."""

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.models import norms
from opabinia.models.norms import FrozenBatchNorm, GhostBatchNorm

SHAPES = {"vectors": (5,), "pictures": (5, 4, 3), "films": (5, 2, 4, 3)}


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(shape, generator=generator)


def ghost_norm(splits: int, channels: int = 5) -> GhostBatchNorm:
    norm = GhostBatchNorm(channels)
    norm.splits = splits
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, channels))
        norm.bias.copy_(torch.linspace(-1, 1, channels))
    return norm


def by_parts(norm: GhostBatchNorm, input: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output and running statistics, from the definition: sample i is in part i mod splits."""
    output, means, variances = torch.empty_like(input), [], []
    over = [0, *range(2, input.ndim)]
    shape = (1, -1, *[1] * (input.ndim - 2))
    for part in range(splits):
        own = input[part::splits]
        mean, variance = own.mean(over), own.var(over, correction=0)
        normalised = (own - mean.view(shape)) / (variance.view(shape) + norm.eps).sqrt()
        output[part::splits] = normalised * norm.weight.view(shape) + norm.bias.view(shape)
        means.append(mean)
        variances.append(own.var(over, correction=1))
    return output, 0.1 * torch.stack(means).mean(0), 0.9 + 0.1 * torch.stack(variances).mean(0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("count", "splits"), [(8, 2), (8, 4), (7, 2), (11, 3), (9, 1)])
def test_each_part_is_normalised_by_itself(shape: tuple[int, ...], count: int, splits: int) -> None:
    norm, input = ghost_norm(splits), drawn((count, *shape))
    expected, mean, variance = by_parts(norm, input, splits)
    torch.testing.assert_close(norm(input), expected)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((1, 5, 4, 3), 1), ((2, 5, 4, 3), 2), ((3, 5), 1), ((5, 5), 2), ((7, 5, 1, 1), 3)],
    ids=str,
)
def test_small_batches_have_fewer_parts(shape: tuple[int, ...], parts: int) -> None:
    norm, input = ghost_norm(8), drawn(shape)
    torch.testing.assert_close(norm(input), by_parts(norm, input, parts)[0])


@pytest.mark.parametrize("count", [6, 7])
def test_gradients_are_those_of_the_parts(count: int) -> None:
    norm, input = ghost_norm(3).double(), drawn((count, 5, 4)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: norm(given), (input,))
    norm(input).pow(3).sum().backward()
    found = norm.weight.grad
    norm.weight.grad = None
    by_parts(norm, input, 3)[0].pow(3).sum().backward()
    torch.testing.assert_close(found, norm.weight.grad)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("count", [8, 7])
def test_the_layout_in_memory_is_kept(layout: torch.memory_format, count: int) -> None:
    norm, input = ghost_norm(4), drawn((count, 5, 4, 3))
    output = norm(input.contiguous(memory_format=layout))
    assert output.is_contiguous(memory_format=layout)
    torch.testing.assert_close(output, by_parts(norm, input, 4)[0])


def test_it_evaluates_as_a_batch_norm() -> None:
    norm, plain = ghost_norm(4), nn.BatchNorm2d(5)
    norm(drawn((8, 5, 4, 3)))
    plain.load_state_dict(norm.state_dict())
    input = drawn((7, 5, 4, 3), seed=1)
    assert torch.equal(norm.eval()(input), plain.eval()(input))


def test_a_mean_over_all_batches_where_no_momentum_is_set() -> None:
    norm = ghost_norm(2)
    norm.momentum = None
    first, second = drawn((4, 5), 1), drawn((4, 5), 2)
    norm(first), norm(second)
    torch.testing.assert_close(norm.running_mean, torch.cat([first, second]).mean(0))


# --- replacing --------------------------------------------------------------------------------------------------------

REPLACED: dict[str, Any] = {
    "ghost": lambda model: norms.convert_ghost_batch_norm(model, 2),
    "freeze": norms.freeze_batch_norms,
    "group": lambda model: norms.convert_group_norm(model, 4),
    "synchronise": norms.convert_sync_batch_norm,
}
WITH_ACT = "test_efficientnet"
"""Its batch norms hold activations."""


def trained(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=0)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.05 * torch.rand_like(tensor))
    return model.eval()


@pytest.mark.parametrize("name", ["test_resnet", WITH_ACT])
@pytest.mark.parametrize("kind", REPLACED)
def test_names_and_values_of_weights_are_kept(kind: str, name: str) -> None:
    model, before = trained(name), trained(name).state_dict()
    plain = [one for one, module in model.named_modules() if isinstance(module, _BatchNorm)]
    REPLACED[kind](model)
    after = model.state_dict()
    assert plain
    assert not any(type(model.get_submodule(one)) is type(trained(name).get_submodule(one)) for one in plain)
    assert all(torch.equal(before[one], tensor) for one, tensor in after.items())
    lost = {one.rpartition(".")[2] for one in before.keys() - after.keys()}
    assert lost == ({"running_mean", "running_var", "num_batches_tracked"} if kind == "group" else set())


@pytest.mark.parametrize("name", ["test_resnet", WITH_ACT])
@pytest.mark.parametrize("kind", ["ghost", "freeze", "synchronise"])
@torch.no_grad()
def test_the_same_is_evaluated(kind: str, name: str) -> None:
    model, images = trained(name), torch.rand(2, 3, 64, 64)
    expected = model(images)
    REPLACED[kind](model)
    torch.testing.assert_close(model(images), expected)


def test_frozen_norms_learn_nothing() -> None:
    model, images = trained(WITH_ACT), torch.rand(4, 3, 64, 64)
    norms.freeze_batch_norms(model)
    frozen = [module for module in model.modules() if isinstance(module, FrozenBatchNorm)]
    before = [tensor.clone() for module in frozen for tensor in module.state_dict().values()]
    evaluated = model(images)
    output = model.train()(images)
    torch.testing.assert_close(output, evaluated)
    output.sum().backward()
    assert not any(one.requires_grad for module in frozen for one in module.parameters())
    after = [tensor for module in frozen for tensor in module.state_dict().values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_norms_with_frozen_statistics_train_their_weights() -> None:
    model, images = trained(WITH_ACT), torch.rand(4, 3, 64, 64)
    evaluated = model(images)
    norms.freeze_batch_norms(model, trained_weights=True)
    output = model.train()(images)
    torch.testing.assert_close(output, evaluated)
    output.sum().backward()
    frozen = [module for module in model.modules() if isinstance(module, FrozenBatchNorm)]
    assert frozen and all(param.grad is not None for module in frozen for param in module.parameters())


def test_a_single_value_of_a_group_is_normalised_alone_as_in_company() -> None:
    norm = norms.GroupNorm(4, 4)
    torch.nn.init.normal_(norm.bias)
    input = torch.randn(2, 4, 1, 1)
    torch.testing.assert_close(norm(input[:1]), norm(input)[:1])
    torch.testing.assert_close(norm(input[:1]).flatten(), norm.bias)
    torch.testing.assert_close(norm(torch.ones(1, 4, 2, 3)), F.group_norm(torch.ones(1, 4, 2, 3), 4, bias=norm.bias))


def test_groups() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
    norms.convert_group_norm(model, 2)
    input = drawn((3, 3, 4, 4))
    torch.testing.assert_close(model(input), F.group_norm(model[0](input), 2))
    with pytest.raises(ValueError, match="divisible"):
        norms.convert_group_norm(nn.Sequential(nn.BatchNorm2d(24)))


def test_what_has_been_replaced_on_purpose_stays() -> None:
    for kind in ("ghost", "freeze"):
        model = trained("test_resnet")
        REPLACED[kind](model)
        chosen = [type(module) for module in model.modules()]
        norms.convert_sync_batch_norm(model)
        assert [type(module) for module in model.modules()] == chosen
