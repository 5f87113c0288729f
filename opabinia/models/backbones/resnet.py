"""ResNets with the variations of re-identification: a finer last stage, instance norm, attention, other norms."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers.blur_pool import BlurPool2d
from timm.layers.squeeze_excite import SEModule
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Count, Fraction
from opabinia.models import norms
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


class NonLocal(nn.Module):
    """Residual self-attention over all positions (Wang et al. 2018, section 3.3, embedded Gaussian).

    Its norm has weight 0 at first, so that a pretrained model initially computes the same.

    Args:
        channels: C; queries, keys and values have half as many.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(channels, channels // 2, 1) for _ in range(3))
        self.out = nn.Conv2d(channels // 2, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, input: Tensor) -> Tensor:
        """B x C x H x W of the same shape."""
        query, key, value = (conv(input).flatten(2).transpose(1, 2) for conv in (self.theta, self.phi, self.g))
        attended = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        attended = attended.transpose(1, 2).unflatten(2, input.shape[2:])  # type: ignore[no-untyped-call]
        output: Tensor = input + self.norm(self.out(attended))
        return output


@register.backbone(renamed={"stem_reduction": "stem_stride"})
def resnet(
    channels: int,
    /,
    *,
    model: str = "resnet50",
    pretrained: bool = False,
    last_stride: Literal[1, 2] = 1,
    stem_stride: Literal[1, 2, 4] = 4,
    stride_in_1x1: bool = False,
    ibn: bool = False,
    se: bool = False,
    non_local: bool = False,
    norm: Literal["batch", "frozen", "group", "ghost"] = "batch",
    ghost_splits: Count | None = None,
    drop_path: Fraction = 0.0,
    options: dict[str, Any] | None = None,
) -> Backbone:
    """ResNet of the timm library with the variations of re-identification.

    Its weights have timm's names (which are torchvision's), those of ``ibn`` its authors' names.

    Args:
        channels: channels of the images.
        model: timm's name, such as ``resnet50``, ``resnet101`` or ``resnext50_32x4d``.
        pretrained: download timm's weights. Layers added below have none; a replaced norm keeps its weights.
        last_stride: 1 removes the stride of the fourth stage (Luo et al. 2019, section 3.4): 256 x 128 pixels give a
            feature map of 16 x 8 instead of 8 x 4. Detection needs 2.
        stem_stride: stride of the first stage's feature maps. 2 removes the max pooling before it, 1 also the stride of
            the first convolution (Chen et al. 2020, appendix B.9): for images of 100 pixels or less.
        stride_in_1x1: the first convolution of a bottleneck has the stride of its stage, not the second, as in Caffe2
            and the original paper (He et al. 2016): detectron2's weights MSRA/R-50 and R-101, and models trained from
            them, need it.
        ibn: the first norm of every block is half instance norm, in the first three stages (Pan et al. 2018, IBN-a).
        se: squeeze-and-excitation in every block, without biases, with a sixteenth of the channels (Hu et al. 2018).
        non_local: non-local attention after the last half of the blocks of the second stage (one to two) and of the
            third stage (one to nine) (Wang et al. 2018). These are FastReID's 2 and 3 blocks of ResNet-50 and 2 and 9
            of ResNet-101.
        norm: ``batch``; ``frozen``: fixed statistics and weights; ``group``: 32 channel groups (Wu and He 2018);
            ``ghost``: batch norm over parts of the batch (Hoffer et al. 2017). For synchronized batch norm see
            ``train.sync_batch_norm``.
        ghost_splits: number of parts of a process's batch for ``ghost``.
        drop_path: stochastic depth (Huang et al. 2016): probability to skip a residual branch.
        options: further keyword arguments of the model in timm.

    Raises:
        ValueError: the model is not a ResNet of timm, a variation does not apply to it, or it refuses an option.
    """
    if (norm == "ghost") != (ghost_splits is not None):
        raise ValueError("ghost_splits: it belongs to norm: ghost, neither works without the other")
    backbone = timm(channels, model=model, pretrained=pretrained, drop_path=drop_path, options=options)
    assert isinstance(backbone, TimmBackbone)
    net = backbone.model
    if not isinstance(net, ResNet):
        raise ValueError(f"model: timm's {model!r} is a {type(net).__name__}, not a ResNet; the backbone timm takes it")
    if stem_stride < 4:
        _set_stem_stride(net, stem_stride)
    if stride_in_1x1:
        _move_strides(net)
    if last_stride == 1:
        drop_last_stride(net)
        net.feature_info[4]["reduction"] = net.feature_info[3]["reduction"]
    if ibn:
        _add_instance_norms(net)
    if norm == "frozen":  # before layers are added, which must be trained
        norms.freeze_batch_norms(net)
    if se:
        _add_squeeze_excitation(net)
    if non_local:
        _add_non_local(net)
    if norm == "group":
        norms.convert_group_norm(net)
    if ghost_splits is not None:
        norms.convert_ghost_batch_norm(net, ghost_splits)
    return backbone


def drop_last_stride(net: Any) -> None:
    """Remove the stride of the fourth stage, also from its shortcut; weights stay unchanged."""
    block = net.layer4[0]
    for name, module in list(block.named_modules()):
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
        elif isinstance(module, nn.AvgPool2d | BlurPool2d) and module.stride not in (1, (1, 1)):
            block.set_submodule(name, nn.Identity())


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


def _add_squeeze_excitation(net: Any) -> None:
    for number, stage in enumerate((net.layer1, net.layer2, net.layer3, net.layer4), start=1):
        for block in stage:
            if block.se is not None:
                raise ValueError("se: the blocks of this model already have attention")
            block.se = SEModule(net.feature_info[number]["num_chs"], bias=False)


def _add_non_local(net: Any) -> None:
    for number, stage, max_blocks in ((2, net.layer2, 2), (3, net.layer3, 9)):
        count = max(1, min(max_blocks, len(stage) // 2))
        for block in stage[len(stage) - count :]:
            last = _LAST_LAYER.get(type(block))
            if last is None:
                raise ValueError(f"non_local: not for {type(block).__name__}, only for the blocks of plain ResNets")
            # Inside the block's last layer, so that no other weight changes its name.
            attention = NonLocal(net.feature_info[number]["num_chs"])
            setattr(block, last, nn.Sequential(OrderedDict(act=getattr(block, last), non_local=attention)))


_LAST_LAYER: dict[type[nn.Module], str] = {BasicBlock: "act2", Bottleneck: "act3"}
"""The last layer of a block."""
