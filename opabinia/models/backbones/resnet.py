"""ResNets with the variations of re-identification: a finer last stage, instance norm, attention, other norms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from timm.layers.blur_pool import BlurPool2d
from timm.layers.squeeze_excite import SEModule
from timm.models.resnest import ResNestBottleneck
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count, Fraction
from opabinia.models import norms
from opabinia.models.backbones.deformable import DeformableOptions, add_deformable_convolutions
from opabinia.models.backbones.non_local import NonLocal
from opabinia.models.backbones.timm import TimmBackbone, timm


class IBN(nn.Module):
    """Instance norm on the first half of the channels, batch norm on the others (Pan et al. 2018, IBN-a). Submodules
    have the names of the authors' weights.

    Args:
        norm: the batch norm that it replaces, and whose weights and statistics it begins with.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        channels = norm.num_features
        half = channels // 2
        self._sizes = [half, channels - half]
        self.IN = nn.InstanceNorm2d(half, norm.eps, affine=True)
        self.BN = nn.BatchNorm2d(channels - half, norm.eps, norm.momentum)
        state = norm.state_dict()
        self.IN.load_state_dict({name: state[name][:half] for name in ("weight", "bias")})
        self.BN.load_state_dict({name: value[half:] if value.ndim else value for name, value in state.items()})

    def forward(self, input: Tensor) -> Tensor:
        """B x C x H x W of the same shape."""
        first, second = torch.split(input, self._sizes, dim=1)
        return torch.cat([self.IN(first), self.BN(second)], dim=1)


@register.backbone
def resnet(
    channels: int,
    /,
    *,
    model: str = "resnet50",
    pretrained: bool = False,
    last_stride: Literal[1, 2] = 1,
    last_dilation: Literal[1, 2] = 1,
    stem_stride: Literal[1, 2, 4] = 4,
    width_multiplier: Count = 1,
    stride_in_1x1: bool = False,
    ibn: bool = False,
    se: bool = False,
    non_local: bool = False,
    first_projection: bool = False,
    norm: Literal["batch", "frozen", "group", "ghost"] = "batch",
    ghost_splits: Count | None = None,
    deformable: DeformableOptions | None = None,
    drop_path: Fraction = 0.0,
    convention: Literal["timm", "fastreid"] = "timm",
    options: dict[str, Any] | None = None,
) -> Backbone:
    """ResNet of the timm library with the variations of re-identification.

    Its weights have timm's names (which are torchvision's), those of ``ibn`` its authors' names.

    Args:
        channels: channels of the images.
        model: timm's name, such as ``resnet50``, ``resnet101`` or ``resnext50_32x4d``.
        pretrained: download timm's weights. Layers added below have none; a replaced norm keeps its weights.
        last_stride: 1 removes the stride of the fourth stage (Luo et al. 2019, section 3.4). Detection needs 2.
        last_dilation: 2 dilates the fourth stage, with ``last_stride: 1`` (ResNet-DC5, detectron2's RES5_DILATION).
        stem_stride: stride of the first stage's feature maps. 2 removes the max pooling before it, 1 also the stride of
            the first convolution (Chen et al. 2020, appendix B.9): for images of 100 pixels or less.
        width_multiplier: multiplies the channels of every layer, also of the stem (SimCLR's and SwAV's 2x, 4x, 5x);
            there are no weights to download. timm's ``wide_resnet50_2`` is another model, wide inside its blocks only.
        stride_in_1x1: the first convolution of a bottleneck has the stride, not the second (He et al. 2016; Caffe2):
            detectron2's weights MSRA/R-50 and R-101, and models trained from them, need it.
        ibn: the first norm of every block is half instance norm, in the first three stages (Pan et al. 2018, IBN-a).
        se: squeeze-and-excitation in every block, without biases, with a sixteenth of the channels (Hu et al. 2018).
        non_local: non-local attention after the last half of the blocks of the second stage (one to two) and of the
            third (one to nine) (Wang et al. 2018): FastReID's 2 and 3 blocks of ResNet-50, 2 and 9 of ResNet-101.
        first_projection: the first block of ResNet-18 and 34 has a projection shortcut, too, as in RT-DETR's ResNet-D.
        norm: ``batch``; ``frozen``: fixed statistics and weights; ``group``: 32 channel groups (Wu and He 2018);
            ``ghost``: batch norm over parts of the batch (Hoffer et al. 2017). For synchronized batch norm see
            ``train.sync_batch_norm``.
        ghost_splits: number of parts of a process's batch for ``ghost``.
        deformable: deformable convolutions (Dai et al. 2017).
        drop_path: stochastic depth (Huang et al. 2016): probability to skip a residual branch.
        convention: ``fastreid`` computes the features of FastReID's networks, for its weights: the max pooling of a
            plain ResNet's stem has no padding and rounds up; non-local attention is a dot product on one channel; a
            ResNeSt with ``last_stride: 1`` dilates the fourth stage from its second block on, and keeps the average
            pooling of its first.
        options: further keyword arguments of the model in timm.

    Raises:
        ValueError: the model is not a ResNet of timm, a variation does not apply to it, or it refuses an option.
    """
    if (norm == "ghost") != (ghost_splits is not None):
        raise ValueError("ghost_splits: it belongs to norm: ghost, neither works without the other")
    backbone = _build(channels, model, pretrained, drop_path, width_multiplier, first_projection, options)
    net = backbone.model
    _change_strides(net, convention, width_multiplier, stem_stride, stride_in_1x1, last_stride, last_dilation)
    if deformable is not None:
        add_deformable_convolutions(net, deformable)
    if ibn:
        _add_instance_norms(net)
    if norm == "frozen":  # before layers are added, which must be trained
        norms.freeze_batch_norms(net)
    _add_attention(net, se, non_local, convention)
    if norm == "group":
        norms.convert_group_norm(net)
    if ghost_splits is not None:
        norms.convert_ghost_batch_norm(net, ghost_splits)
    return backbone


def _build(
    channels: int,
    model: str,
    pretrained: bool,
    drop_path: float,
    width_multiplier: int,
    first_projection: bool,
    options: dict[str, Any] | None,
) -> TimmBackbone:
    """Build timm's ResNet, of a multiple of its width, with a projection shortcut in its first block."""
    if width_multiplier > 1 and pretrained:
        raise ValueError("width_multiplier: there are no pretrained weights of other widths")
    wide = {"channels": [width_multiplier * width for width in (64, 128, 256, 512)]} if width_multiplier > 1 else {}
    options = {**(options or {}), **wide} or None
    backbone = timm(channels, model=model, pretrained=pretrained, drop_path=drop_path, options=options)
    assert isinstance(backbone, TimmBackbone)
    net = backbone.model
    if not isinstance(net, ResNet):
        raise ValueError(f"model: timm's {model!r} is a {type(net).__name__}, not a ResNet; the backbone timm takes it")
    if first_projection:
        _add_first_projection(net)
    return backbone


def _add_first_projection(net: Any) -> None:
    """Add the shortcut that RT-DETR's ResNet-18 and 34 have, with the names of timm's other shortcuts; its convolution
    is the identity at first."""
    block, width = net.layer1[0], net.feature_info[1]["num_chs"]
    if block.downsample is not None:
        raise ValueError("first_projection: the first block of this model has a projection shortcut already")
    convolution = nn.Conv2d(width, width, 1, bias=False)
    nn.init.dirac_(convolution.weight)
    block.downsample = nn.Sequential(nn.Identity(), convolution, nn.BatchNorm2d(width))


def _change_strides(
    net: Any,
    convention: str,
    width_multiplier: int,
    stem_stride: int,
    stride_in_1x1: bool,
    last_stride: int,
    last_dilation: int,
) -> None:
    if convention == "fastreid":
        _set_stem_pooling(net)
    if width_multiplier > 1:
        _widen_stem(net, width_multiplier)
    if stem_stride < 4:
        _set_stem_stride(net, stem_stride)
    if stride_in_1x1:
        _move_strides(net)
    if last_stride == 1:
        drop_last_stride(net)
        net.feature_info[4]["reduction"] = net.feature_info[3]["reduction"]
    if last_dilation == 2:
        if last_stride == 2:
            raise ValueError("last_dilation: 2 takes the place of the stride of the fourth stage: set last_stride: 1")
        for module in net.layer4.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                module.dilation = module.padding = (2, 2)
    if convention == "fastreid" and last_stride == 1:
        _dilate_split_attention(net)


def _set_stem_pooling(net: Any) -> None:
    """Pool as FastReID's plain ResNets do; its ResNeXts and ResNeSts pool as timm's."""
    block = net.layer1[0]
    if isinstance(block, BasicBlock | Bottleneck) and block.conv2.groups == 1 and isinstance(net.conv1, nn.Conv2d):
        net.maxpool = nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _dilate_split_attention(net: Any) -> None:
    """Dilate the fourth stage of a ResNeSt from its second block on, and average in the first block at stride 1."""
    first, *rest = net.layer4
    if not isinstance(first, ResNestBottleneck):
        return
    first.avd_last = nn.AvgPool2d(3, stride=1, padding=1)
    for block in rest:
        block.conv2.conv.dilation = block.conv2.conv.padding = (2, 2)


def drop_last_stride(net: Any) -> None:
    """Remove the stride of the fourth stage, also from its shortcut; weights stay unchanged."""
    block = net.layer4[0]
    for name, module in list(block.named_modules()):
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
        elif isinstance(module, nn.AvgPool2d | BlurPool2d) and module.stride not in (1, (1, 1)):
            block.set_submodule(name, nn.Identity())


def _widen_stem(net: Any, multiplier: int) -> None:
    """Replace the stem, which has 64 channels in timm whatever the width of the stages."""
    if not isinstance(net.conv1, nn.Conv2d):
        raise ValueError("width_multiplier: not for models with a stem of several convolutions")
    width = multiplier * net.conv1.out_channels
    net.conv1 = _with_channels(net.conv1, net.conv1.in_channels, width)
    net.bn1 = type(net.bn1)(width)
    first = net.layer1[0]
    first.conv1 = _with_channels(first.conv1, width, first.conv1.out_channels)
    if width == net.feature_info[1]["num_chs"]:
        first.downsample = None  # of basic blocks, as the stage has the width of the stem
    else:
        first.downsample[0] = _with_channels(first.downsample[0], width, first.downsample[0].out_channels)
    net.feature_info[0]["num_chs"] = width


def _with_channels(conv: nn.Conv2d, in_channels: int, out_channels: int) -> nn.Conv2d:
    """Return a new convolution like this one, of other widths, with timm's initialization."""
    options = {"stride": conv.stride, "padding": conv.padding, "bias": False}
    layer = nn.Conv2d(in_channels, out_channels, conv.kernel_size, **options)  # type: ignore[arg-type]
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _set_stem_stride(net: Any, stride: int) -> None:
    """Remove the max pooling of the stem, and for 1 the stride of its first convolution."""
    net.maxpool = nn.Identity()
    if stride == 1:
        first = net.conv1 if isinstance(net.conv1, nn.Conv2d) else net.conv1[0]
        first.stride = (1, 1)
    stem, *stages = net.feature_info
    stem["reduction"] = stride
    for stage in stages:
        stage["reduction"] //= 4 // stride


def _move_strides(net: Any) -> None:
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        block = stage[0]
        if not isinstance(block, Bottleneck) or not isinstance(block.aa, nn.Identity):
            raise ValueError("stride_in_1x1: this model has no bottlenecks whose second convolution has the stride")
        block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)


def _add_instance_norms(net: Any) -> None:
    for block in (*net.layer1, *net.layer2, *net.layer3):
        norm = getattr(block, "bn1", None)
        if type(norm) is not nn.BatchNorm2d:
            raise ValueError(f"ibn: {type(block).__name__} of this model has no batch norm that could be split")
        block.bn1 = IBN(norm)


def _add_attention(net: Any, se: bool, non_local: bool, convention: str) -> None:
    if se:
        _add_squeeze_excitation(net)
    if non_local:
        _add_non_local(net, NonLocal if convention == "timm" else partial(NonLocal, kind="dot_product", inner=1))


def _add_squeeze_excitation(net: Any) -> None:
    for number, stage in enumerate((net.layer1, net.layer2, net.layer3, net.layer4), start=1):
        for block in stage:
            if block.se is not None:
                raise ValueError("se: the blocks of this model already have attention")
            block.se = SEModule(net.feature_info[number]["num_chs"], bias=False)


def _add_non_local(net: Any, layer: Callable[[int], nn.Module]) -> None:
    for number, stage, max_blocks in ((2, net.layer2, 2), (3, net.layer3, 9)):
        count = max(1, min(max_blocks, len(stage) // 2))
        for block in stage[len(stage) - count :]:
            last = _LAST_LAYER.get(type(block))
            if last is None:
                raise ValueError(f"non_local: not for {type(block).__name__}, only for the blocks of plain ResNets")
            # Inside the block's last layer, so that no other weight changes its name.
            attention = layer(net.feature_info[number]["num_chs"])
            setattr(block, last, nn.Sequential(OrderedDict(act=getattr(block, last), non_local=attention)))


_LAST_LAYER: dict[type[nn.Module], str] = {BasicBlock: "act2", Bottleneck: "act3"}
"""The last layer of a block."""
