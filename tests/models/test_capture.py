"""Capturing outputs and gradients of layers: they match autograd, and the model is left unchanged."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from opabinia.models.capture import capture, grad_cam, kernel_grid
from opabinia.visualization.drawing import to_pil


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.neck = nn.Linear(4, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.neck(self.body(images).mean((2, 3))))
        return logits


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._backward_hooks) for module in model.modules())


def test_outputs_and_gradients_match_autograd(net: Net) -> None:
    maps = net.body(IMAGES)
    neck = net.neck(maps.mean((2, 3)))
    loss = net.head(neck).square().sum()
    expected = torch.autograd.grad(loss, [maps, neck])
    with capture(net, ["body", "neck"]) as captured:
        net(IMAGES).square().sum().backward()
    assert list(captured) == ["body", "neck"] and len(captured) == 2
    torch.testing.assert_close(captured["body"].output, maps.detach())
    torch.testing.assert_close(captured["neck"].output, neck.detach())
    torch.testing.assert_close([captured["body"].gradient, captured["neck"].gradient], list(expected))
    assert not captured["neck"].output.requires_grad
    assert count_hooks(net) == 0


def test_calls_are_in_order(net: Net) -> None:
    first, second = torch.ones(1, 4), torch.full((1, 4), 2.0)
    with capture(net, ["neck"]) as captured:
        (3 * net.neck(first) + 5 * net.neck(second)).sum().backward()
    calls = captured["neck"].calls
    assert [call.gradient[0, 0].item() for call in calls] == [3, 5]
    assert torch.equal(calls[0].output, net.neck(first)) and torch.equal(calls[1].output, net.neck(second))
    assert torch.equal(captured["neck"].output, calls[1].output) and torch.equal(
        captured["neck"].gradient, calls[1].gradient
    )


Pair = namedtuple("Pair", "left right")
STRUCTURES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, "b": b},
    "named tuple": Pair,
    "nested": lambda a, b: {"both": (a, [b, None]), "scale": 2},
}


class ReturnsStructure(nn.Module):
    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(x * 2, x * 3)


@pytest.mark.parametrize("form", STRUCTURES.values(), ids=STRUCTURES)
def test_output_structures_are_preserved(form: Callable[[Tensor, Tensor], Any]) -> None:
    model = nn.ModuleDict({"part": ReturnsStructure(form)})
    x = torch.ones(2, requires_grad=True)

    def tensors(value: Any) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value]
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
        return [tensor for item in inner for tensor in tensors(item)]

    with capture(model, ["part"]) as captured:
        a, b = tensors(model["part"](x))
        (a * 10 + b * 20).sum().backward()
    output, gradient = captured["part"].output, captured["part"].gradient
    assert type(output) is type(gradient) is type(form(x, x))
    assert [tensor.tolist() for tensor in tensors(output)] == [[2, 2], [3, 3]]
    assert [tensor.tolist() for tensor in tensors(gradient)] == [[10, 10], [20, 20]]


def test_an_edited_output_is_passed_on_and_captured(net: Net) -> None:
    def zero_first_feature(name: str, output: Tensor) -> Tensor:
        return output * torch.tensor([0.0, 1, 1, 1, 1])

    with capture(net, ["neck"], edit=zero_first_feature) as captured:
        logits = net(IMAGES)
        logits.sum().backward()
    assert torch.equal(captured["neck"].output[:, 0], torch.zeros(6))
    assert torch.equal(logits.detach(), net.head(captured["neck"].output).detach())
    assert net.neck.bias.grad is not None and net.neck.bias.grad[0] == 0 and net.neck.bias.grad[1] != 0


def test_an_edit_that_returns_none_raises(net: Net) -> None:
    with (
        pytest.raises(TypeError, match="edit returned None for 'neck'"),
        capture(net, ["neck"], edit=lambda name, output: None),
    ):
        net(IMAGES)
    assert count_hooks(net) == 0


def test_hooks_are_removed_after_an_error(net: Net) -> None:
    with pytest.raises(ZeroDivisionError), capture(net, ["neck"]) as captured:
        logits = net(IMAGES)
        raise ZeroDivisionError
    assert count_hooks(net) == 0
    logits.sum().backward()
    assert captured["neck"].gradient is None, "its tensor hook is removed, too"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_without_gradients_there_are_outputs(net: Net, mode: Callable[[], Any]) -> None:
    with mode(), capture(net, ["neck"]) as captured:
        net(IMAGES)
    assert captured["neck"].output.shape == (6, 5) and captured["neck"].gradient is None


def test_reading_an_output_that_was_changed_in_place_raises(net: Net) -> None:
    with capture(net, ["body.1"]) as captured:
        net(IMAGES).sum().backward()
    with pytest.raises(RuntimeError, match=r"changed this output in place .* copy=True"):
        captured["body.1"].output  # noqa: B018
    with capture(net, ["body.1"], copy=True) as copied:
        net(IMAGES).sum().backward()
    assert copied["body.1"].output.min() < 0, "before the activation"
    # The gradient is that of the norm's output: 0 where the activation is 0.
    assert not copied["body.1"].gradient[copied["body.1"].output < 0].any()
    torch.testing.assert_close(captured["body.1"].gradient, copied["body.1"].gradient)


def test_a_recomputed_layer_is_captured_once(net: Net) -> None:
    with capture(net, ["neck"]) as captured:
        checkpoint(net, IMAGES, use_reentrant=False).sum().backward()
    assert len(captured["neck"].calls) == 1
    assert torch.equal(captured["neck"].gradient, net.head.weight.detach().sum(0).expand(6, 5))


def test_unknown_names_are_reported_with_similar_names(net: Net) -> None:
    with (
        pytest.raises(ValueError, match=r"no layer 'nekc'; near: neck; .*'0'; near: body.0; .*'zzz'; near: none"),
        capture(net, ["nekc", "0", "head", "zzz"]),
    ):
        pass
    assert count_hooks(net) == 0


def test_reading_a_layer_that_was_not_called_raises(net: Net) -> None:
    with capture(net, ["head"]) as captured:
        net.neck(torch.ones(1, 4))
    with pytest.raises(LookupError, match="'head' was not called"):
        captured["head"].output  # noqa: B018


def test_wrappers_are_unwrapped(net: Net) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Any:
            return self.module(x)

    class Spread:
        sharded, module = False, net

    for model in (Wrapper(net), Wrapper(Wrapper(net)), Spread()):
        with capture(model, ["neck"]) as captured:  # type: ignore[arg-type]
            net(IMAGES)
        assert len(captured["neck"].calls) == 1


# --- images -----------------------------------------------------------------------------------------------------------


def test_kernels_in_colour_and_in_grey(net: Net) -> None:
    image = kernel_grid(net, zoom=2, columns=3)
    assert image.shape == (3, 2 * (3 * 2 + 2) + 2, 3 * (3 * 2 + 2) + 2)
    to_pil(image)
    first = image[:, 2:8, 2:8]
    weight = net.body[0].weight[0].detach()  # type: ignore[index]
    expected = (weight - weight.min()) / (weight.max() - weight.min())
    torch.testing.assert_close(first, expected.repeat_interleave(2, 1).repeat_interleave(2, 2))
    assert torch.equal(image[:, 0], torch.full_like(image[:, 0], 0.5))


def test_kernels_of_many_channels_have_a_row_each(net: Net) -> None:
    for model, name, message in (
        (net, "neck", "'neck' is not a convolution"),
        (net, "bodi", "near: body"),
        (net.head, None, "this model has no convolution"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel_grid(model, name)
    layer = nn.Conv2d(5, 2, 3)
    image = kernel_grid(nn.Sequential(nn.Conv2d(1, 5, 3), layer), "1", zoom=1)
    assert image.shape == (3, 2 * 4 + 1, 5 * 4 + 1)
    tile, weight = image[0, 1:4, 5:8], layer.weight[0, 1].detach()
    torch.testing.assert_close(tile, (weight - weight.min()) / (weight.max() - weight.min()))


def test_grad_cam_by_hand() -> None:
    activations = torch.zeros(3, 2, 2, 2)
    activations[0, 0, 0, 0], activations[0, 1, 1, 1] = 4.0, 4.0
    activations[1:] = activations[0]
    gradients = torch.zeros_like(activations)
    gradients[0, 0], gradients[0, 1] = 1.0, -1.0  # the first channel supports the class, the second opposes it
    gradients[1, 0], gradients[1, 1] = 1.0, 0.5
    gradients[2] = -1.0
    cam = grad_cam(activations, gradients, (2, 2))
    assert cam.tolist() == [[[1, 0], [0, 0]], [[1, 0], [0, 0.5]], [[0, 0], [0, 0]]]
    large = grad_cam(activations, gradients, (6, 4))
    assert large.shape == (3, 6, 4) and large[0, 0, 0] == 1 and large.min() == 0


def test_grad_cam_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"not \(2, 3\) and \(2, 3, 4, 4\)"):
        grad_cam(torch.zeros(2, 3), torch.zeros(2, 3, 4, 4), (4, 4))
