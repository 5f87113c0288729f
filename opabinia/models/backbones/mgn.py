"""The branches of a multiple granularity network (Wang et al. 2018)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from typing import Any

from timm.models._manipulate import checkpoint_seq
from timm.models.resnet import ResNet
from torch import Tensor, nn

from opabinia.contracts import Backbone, DataMismatch
from opabinia.models.backbones.resnet import drop_last_stride


class MultiGranularity(nn.Module):
    """Images to feature maps of the whole, of halves and of thirds (Wang et al. 2018, section 3.1).

    Three branches start after the first block of the third stage of a ResNet. The first is the rest of the ResNet
    itself. The second and the third are copies, including weights, whose fourth stage has no stride; their feature maps
    are cut into two and three horizontal stripes, whose heights differ by at most one row.

    Args:
        backbone: a ResNet of timm.

    Attributes:
        parts: number of feature maps.
        map_channels: M of each.

    Raises:
        ValueError: the backbone is not a ResNet.
    """

    parts = 8

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        net = getattr(backbone, "model", None)
        if not isinstance(net, ResNet):
            raise ValueError(
                f"backbone: multiple granularities need a ResNet, such as the backbone resnet; "
                f"this one is a {type(backbone if net is None else net).__name__}"
            )
        self.backbone = backbone
        self.map_channels = backbone.map_channels
        self.halves, self.thirds = _copy_branch(net), _copy_branch(net)

    def forward(self, images: Tensor) -> list[Tensor]:
        """B x C x H x W to feature maps (B x M x h x w): the whole by each branch, the two halves, the three thirds.

        Raises:
            DataMismatch: the feature maps have fewer rows than stripes.
        """
        net: Any = self.backbone.model
        stem = net.maxpool(net.act1(net.bn1(net.conv1(images))))
        first, *rest = net.layer3
        shared = self._run([*net.layer1, *net.layer2, first], stem)
        whole = self._run([*rest, *net.layer4], shared)
        halves, thirds = (self._run(chain(*branch), shared) for branch in (self.halves, self.thirds))
        if thirds.shape[2] < 3:
            raise DataMismatch(
                f"images of {images.shape[2]} rows are too small: their feature maps have {thirds.shape[2]} of 3 rows"
            )
        return [whole, halves, thirds, *halves.tensor_split(2, dim=2), *thirds.tensor_split(3, dim=2)]

    def _run(self, blocks: Iterable[Any], maps: Tensor) -> Tensor:
        net: Any = self.backbone.model
        if net.grad_checkpointing:
            return checkpoint_seq(list(blocks), maps)  # type: ignore[no-any-return]
        for block in blocks:
            maps = block(maps)
        return maps


def _copy_branch(net: Any) -> nn.Sequential:
    """Copy the last stages, without stride in the fourth; layers keep their names in ``net``."""
    branch = copy.deepcopy(nn.Sequential(OrderedDict(layer3=net.layer3[1:], layer4=net.layer4)))
    drop_last_stride(branch)
    return branch
