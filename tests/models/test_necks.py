"""Necks: comparison with torchvision's FPN, detectron2's shapes and the formulas of the papers."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import LastLevelMaxPool
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from opabinia.contracts import Level
from opabinia.models.necks import SimplePyramid, fpn, fpn_p3_p7, fpn_p3_p7_from_p5

LEVELS = [Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32)]
VIT_LEVELS = [Level(12, 16)]


def make_maps(levels: Sequence[Level], height: int, width: int) -> list[Tensor]:
    """Return random feature maps; sides are rounded up, as with padded convolutions."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, channels, -(-height // stride), -(-width // stride), generator=generator)
        for channels, stride in levels
    ]


def randomize(module: nn.Module) -> nn.Module:
    """Draw random parameters, so that none is 0 or 1."""
    torch.manual_seed(1)
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(torch.randn(param.shape) / 4)
    return module


@pytest.mark.parametrize("size", [(128, 192), (104, 56)], ids=["even", "odd"])  # 13 x 7 at stride 8
@torch.no_grad()
def test_fpn_matches_torchvision(size: tuple[int, int]) -> None:
    reference = randomize(FeaturePyramidNetwork([6, 8, 12, 16], 32, LastLevelMaxPool()))
    neck = fpn(LEVELS, channels=32)
    report = neck.load_state_dict({f"fpn.{name}": value for name, value in reference.state_dict().items()})
    assert not report.missing_keys and not report.unexpected_keys
    maps = make_maps(LEVELS, *size)
    expected = reference(OrderedDict((str(number), level) for number, level in enumerate(maps)))
    levels = neck(maps)
    assert len(levels) == len(expected) == 5
    for level, expected_level in zip(levels, expected.values(), strict=True):
        torch.testing.assert_close(level, expected_level, rtol=0, atol=0)


def test_initial_weights_match_detectron2() -> None:
    """Uniform weights of variance 1 / fan_in (c2_xavier_fill), biases of 0."""
    for neck in (fpn(LEVELS), fpn_p3_p7(LEVELS)):
        for name, param in neck.named_parameters():
            if name.endswith("bias"):
                assert not param.any()
            else:
                bound = (3 / param[0].numel()) ** 0.5
                assert 0.95 * bound < float(param.detach().abs().max()) <= bound, name


def test_with_a_norm_there_are_no_biases() -> None:
    plain, batch, group = (fpn(LEVELS, channels=32, norm=norm) for norm in ("none", "batch", "group"))
    counts = [sum(param.numel() for param in neck.parameters()) for neck in (plain, batch)]
    assert counts[1] == counts[0] + 8 * 32
    assert sum(isinstance(module, nn.BatchNorm2d) for module in batch.modules()) == 8
    group_norms = [module for module in group.modules() if isinstance(module, nn.GroupNorm)]
    assert [module.num_groups for module in group_norms] == [32] * 8
    with pytest.raises(ValueError, match=r"^norm: group has 32 groups, which do not divide the 48 channels"):
        fpn(LEVELS, channels=48, norm="group")


# --- P3 to P7 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(256, 128), (104, 56)], ids=["even", "odd"])
@pytest.mark.parametrize("neck", [fpn_p3_p7, fpn_p3_p7_from_p5], ids=["c5", "p5"])
@torch.no_grad()
def test_p6_and_p7(neck: Any, size: tuple[int, int]) -> None:
    """The backbone's last map has as many channels as the pyramid, so the source cannot be inferred from channels."""
    levels = [*LEVELS[:3], Level(32, 32)]
    own: Any = randomize(neck(levels, channels=32))
    maps = make_maps(levels, *size)
    pyramid = own(maps)
    p6, p7 = own.fpn.extra_blocks.p6, own.fpn.extra_blocks.p7
    source = maps[-1] if neck is fpn_p3_p7 else pyramid[2]
    torch.testing.assert_close(pyramid[3], p6(source))
    torch.testing.assert_close(pyramid[4], p7(pyramid[3].clamp(min=0)))
    reference = FeaturePyramidNetwork([8, 12, 32], 32, LastLevelP6P7(32, 32))
    reference.load_state_dict({name.removeprefix("fpn."): value for name, value in own.state_dict().items()})
    expected = list(reference(OrderedDict((str(number), level) for number, level in enumerate(maps[1:]))).values())
    count = 5 if neck is fpn_p3_p7_from_p5 else 3  # torchvision takes P5 here
    for level, expected_level in zip(pyramid[:count], expected[:count], strict=True):
        torch.testing.assert_close(level, expected_level, rtol=0, atol=0)


# --- simple pyramid ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_simple_pyramid() -> None:
    neck = SimplePyramid(VIT_LEVELS, channels=8)
    assert neck.out_levels == tuple(Level(8, stride) for stride in (4, 8, 16, 32, 64))
    (backbone_map,) = maps = make_maps(VIT_LEVELS, 128, 96)
    pyramid = neck(maps)
    assert [tuple(level.shape) for level in pyramid] == [
        (2, 8, 32, 24), (2, 8, 16, 12), (2, 8, 8, 6), (2, 8, 4, 3), (2, 8, 2, 2)
    ]  # fmt: skip
    torch.testing.assert_close(pyramid[4], pyramid[3][:, :, ::2, ::2])
    for level in pyramid:  # each ends in a layer norm
        torch.testing.assert_close(level.mean(1), torch.zeros_like(level[:, 0]), atol=1e-5, rtol=0)
    half = nn.functional.max_pool2d(backbone_map, 2)
    weights = {name.removeprefix("stages.3."): value for name, value in neck.state_dict().items() if ".3." in name}
    lateral = nn.functional.conv2d(half, weights["1.0.weight"]).movedim(1, 3)
    lateral = nn.functional.layer_norm(lateral, (8,), weights["1.1.weight"], weights["1.1.bias"], 1e-6).movedim(3, 1)
    output = nn.functional.conv2d(lateral, weights["2.0.weight"], padding=1).movedim(1, 3)
    output = nn.functional.layer_norm(output, (8,), weights["2.1.weight"], weights["2.1.bias"], 1e-6).movedim(3, 1)
    torch.testing.assert_close(pyramid[3], output)


def test_the_finest_levels_match_detectron2() -> None:
    """The transposed convolutions output a half and a quarter of the channels, with a norm and GELU between them.
    Parameter counts for ViT-B from its formulas: only the transposed convolutions have biases."""

    def convolutions(width: int) -> int:
        return width * 256 + 9 * 256 * 256 + 4 * 256

    with torch.device("meta"):
        neck = SimplePyramid([Level(768, 16)])
    counts = [sum(param.numel() for param in stage.parameters()) for stage in neck.get_submodule("stages").children()]
    first = 768 * 384 * 4 + 384
    assert counts == [
        first + 2 * 384 + 384 * 192 * 4 + 192 + convolutions(192),
        first + convolutions(384),
        convolutions(768),
        convolutions(768),
    ]
    layer_types = [type(module).__name__ for module in neck.get_submodule("stages.0").children()]
    assert layer_types == ["ConvTranspose2d", "LayerNorm2d", "GELU", "ConvTranspose2d", "Sequential", "Sequential"]


@pytest.mark.parametrize("strides", [(), (4,), (4, 8), (32, 64), (4, 16, 32), (16, 8, 32)], ids=str)
def test_strides_that_do_not_double_raise(strides: Any) -> None:
    with pytest.raises(ValueError, match=r"^strides: each is twice the one before, from 4, 8 or 16"):
        SimplePyramid(VIT_LEVELS, strides=strides)


# --- invalid backbones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("neck", "strides", "message"),
    [
        (fpn, [16], r"strides 4, 8, 16, 32, and the backbone gives 16; the neck simple_pyramid makes them from one"),
        (fpn_p3_p7, [16], r"strides 8, 16, 32, and .* gives 16; the neck simple_pyramid"),
        (fpn, [4, 8, 16, 16], r"gives 4, 8, 16, 16; a ResNet gives them with last_stride: 2; the neck simple_pyramid"),
        (fpn, [8, 16, 32], r"gives 8, 16, 32; use a backbone that has them \(ResNet"),
        (fpn_p3_p7, [4, 8, 16, 32, 64], r"strides 8, 16, 32, and the backbone gives 4, 8, 16, 32, 64"),
        (
            SimplePyramid,
            [4, 8, 16, 32],
            r"last feature map of stride 16, and .* 4, 8, 16, 32; for strides 4 to 32 .* neck fpn",
        ),
        (SimplePyramid, [14], r"the backbone gives 14; .* patches of 16 \(options: \{patch_size: 16\}\)"),
    ],
)
def test_a_backbone_without_the_maps_is_refused(neck: Any, strides: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neck([Level(8, stride) for stride in strides])
