"""ResNets as re-identification changes them: a finer last stage, instance norms, attention, other norms."""

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
    """Instance norm of the first half of the channels, batch norm of the others (Pan et al. 2018, IBN-a). Its halves
    have the names that the authors' weights have.

    Args:
        norm: the batch norm whose place it takes, and whose weights and statistics it begins with.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        channels = norm.num_features
        half = channels // 2
        self._sizes = [half, channels - half]
        self.IN = nn.InstanceNorm2d(half, norm.eps, affine=True)
        self.BN = nn.BatchNorm2d(channels - half, norm.eps, norm.momentum)
        values = norm.state_dict()
        self.IN.load_state_dict({name: values[name][:half] for name in ("weight", "bias")})
        self.BN.load_state_dict({name: value[half:] if value.ndim else value for name, value in values.items()})

    def forward(self, input: Tensor) -> Tensor:
        """B x C x H x W of the same shape."""
        first, second = torch.split(input, self._sizes, dim=1)
        return torch.cat([self.IN(first), self.BN(second)], dim=1)


class NonLocal(nn.Module):
    """Adds to each place what it finds in all places (Wang et al. 2018, section 3.3, embedded Gaussian).

    Its norm has weight 0 at first, so that a trained model computes what it did.

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
        query, key, value = (part(input).flatten(2).transpose(1, 2) for part in (self.theta, self.phi, self.g))
        found = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        found = found.transpose(1, 2).unflatten(2, input.shape[2:])  # type: ignore[no-untyped-call]
        output: Tensor = input + self.norm(self.out(found))
        return output


@register.backbone
def resnet(
    channels: int,
    /,
    *,
    model: str = "resnet50",
    pretrained: bool = False,
    last_stride: Literal[1, 2] = 1,
    stem_reduction: Literal[1, 2, 4] = 4,
    stride_in_1x1: bool = False,
    ibn: bool = False,
    se: bool = False,
    non_local: bool = False,
    norm: Literal["batch", "frozen", "group", "ghost"] = "batch",
    ghost_splits: Count | None = None,
    drop_path: Fraction = 0.0,
    options: dict[str, Any] | None = None,
) -> Backbone:
    """A ResNet of the timm library with the changes that re-identification makes to it.

    Its weights have timm's names (which are torchvision's), those of ``ibn`` the names of its authors.

    Args:
        channels: channels of the images.
        model: timm's name of it, such as ``resnet50``, ``resnet101`` or ``resnext50_32x4d``.
        pretrained: download timm's weights for it. What is added below has none; a norm that is changed begins with
            those it had.
        last_stride: 1 leaves out the stride of the fourth stage (Luo et al. 2019, section 3.4): 256 x 128 pixels become
            a map of 16 x 8 places instead of 8 x 4. Detection wants 2.
        stem_reduction: how many times smaller than the image the maps of the first stage are. 2 leaves out the pooling
            before it, 1 the stride of the first convolution, too (Chen et al. 2020, appendix B.9): for images of 100
            pixels or less.
        stride_in_1x1: the first convolution of a bottleneck has the stride of its stage, and not the second, as in
            Caffe2 and the original paper (He et al. 2016): detectron2's weights MSRA/R-50 and R-101, and what was
            trained from them, are made for that.
        ibn: half of the first norm of every block is an instance norm, in the first three stages (Pan et al. 2018,
            IBN-a).
        se: squeeze-and-excitation in every block, without biases, with a sixteenth of the channels (Hu et al. 2018).
        non_local: attention over places behind blocks of the second and third stage (Wang et al. 2018): the last half
            of each, one to two and one to nine. These are the 2 and 3 of ResNet-50 and the 2 and 9 of ResNet-101 that
            FastReID has.
        norm: ``batch``; ``frozen``: statistics and weights stay as they are; ``group``: of 32 channel groups (Wu and He
            2018); ``ghost``: batch norm over parts of the batch (Hoffer et al. 2017). For statistics of all processes
            see ``train.sync_batch_norm``.
        ghost_splits: how many parts a process makes of its batch for ``ghost``.
        drop_path: stochastic depth (Huang et al. 2016): the chance to skip a residual branch.
        options: further keyword arguments of that model in timm.

    Raises:
        ValueError: the model is no ResNet of timm, has what is to be added or not what is to be changed, or refuses an
            option.
    """
    if (norm == "ghost") != (ghost_splits is not None):
        raise ValueError("ghost_splits: it goes with norm: ghost, neither without the other")
    backbone = timm(channels, model=model, pretrained=pretrained, drop_path=drop_path, options=options)
    assert isinstance(backbone, TimmBackbone)
    net = backbone.model
    if not isinstance(net, ResNet):
        raise ValueError(f"model: timm's {model!r} is a {type(net).__name__}, not a ResNet; the backbone timm takes it")
    if stem_reduction < 4:
        _keep_size(net, stem_reduction)
    if stride_in_1x1:
        _move_strides(net)
    if last_stride == 1:
        drop_last_stride(net)
        net.feature_info[4]["reduction"] = net.feature_info[3]["reduction"]
    if ibn:
        _add_instance_norms(net)
    if norm == "frozen":  # before new layers come: they have something to learn
        norms.freeze(net)
    if se:
        _add_squeeze_excitation(net)
    if non_local:
        _add_non_local(net)
    if norm == "group":
        norms.group(net)
    if ghost_splits is not None:
        norms.ghost(net, ghost_splits)
    return backbone


def drop_last_stride(net: Any) -> None:
    """Leave out the stride of the fourth stage, that of its shortcut too; weights stay as they are."""
    block = net.layer4[0]
    for name, module in list(block.named_modules()):
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
        elif isinstance(module, nn.AvgPool2d | BlurPool2d) and module.stride not in (1, (1, 1)):
            block.set_submodule(name, nn.Identity())


def _keep_size(net: Any, reduction: int) -> None:
    """Leave out the pooling of the stem, and for 1 the stride of its first convolution."""
    net.maxpool = nn.Identity()
    if reduction == 1:
        first = net.conv1 if isinstance(net.conv1, nn.Conv2d) else net.conv1[0]
        first.stride = (1, 1)
    stem, *stages = net.feature_info
    stem["reduction"] = reduction
    for stage in stages:
        stage["reduction"] //= 4 // reduction


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
                raise ValueError("se: the blocks of this model have attention of their own")
            block.se = SEModule(net.feature_info[number]["num_chs"], bias=False)


def _add_non_local(net: Any) -> None:
    for number, stage, most in ((2, net.layer2, 2), (3, net.layer3, 9)):
        count = max(1, min(most, len(stage) // 2))
        for block in stage[len(stage) - count :]:
            last = _LAST.get(type(block))
            if last is None:
                raise ValueError(f"non_local: not for {type(block).__name__}, only for the blocks of plain ResNets")
            # Within the block's last layer, so that no other weight gets another name.
            attention = NonLocal(net.feature_info[number]["num_chs"])
            setattr(block, last, nn.Sequential(OrderedDict(act=getattr(block, last), non_local=attention)))


_LAST: dict[type[nn.Module], str] = {BasicBlock: "act2", Bottleneck: "act3"}
"""What a block applies last."""
