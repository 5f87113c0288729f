"""The maps of a multiple granularity network (Wang et al. 2018)."""

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
    """Images to the maps of the whole, of halves and of thirds (Wang et al. 2018, section 3.1).

    The three branches part behind the first block of the third stage of a ResNet. The first is the rest of the ResNet
    itself. The second and the third are copies, weights included, whose fourth stage has no stride; their maps are cut
    into two and three stripes from top to bottom, which differ by one row at most.

    Args:
        backbone: a ResNet of timm.

    Attributes:
        parts: how many maps there are.
        map_channels: M of each.

    Raises:
        ValueError: the backbone is no ResNet.
    """

    parts = 8

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        net = getattr(backbone, "model", None)
        if not isinstance(net, ResNet):
            raise ValueError(
                f"backbone: multiple granularities are of ResNets, such as the backbone resnet; "
                f"this one is a {type(backbone if net is None else net).__name__}"
            )
        self.backbone = backbone
        self.map_channels = backbone.map_channels
        self.halves, self.thirds = _branch(net), _branch(net)

    def forward(self, images: Tensor) -> list[Tensor]:
        """B x C x H x W to maps (B x M x h x w each): the whole by each branch, the two halves, the three thirds.

        Raises:
            Unfit: the maps have fewer rows than stripes are to be made of them.
        """
        net: Any = self.backbone.model
        stem = net.maxpool(net.act1(net.bn1(net.conv1(images))))
        first, *rest = net.layer3
        shared = self._through([*net.layer1, *net.layer2, first], stem)
        whole = self._through([*rest, *net.layer4], shared)
        halves, thirds = (self._through(chain(*branch), shared) for branch in (self.halves, self.thirds))
        if thirds.shape[2] < 3:
            raise DataMismatch(
                f"images of {images.shape[2]} rows are too small: their maps have {thirds.shape[2]} of 3 rows"
            )
        return [whole, halves, thirds, *halves.tensor_split(2, dim=2), *thirds.tensor_split(3, dim=2)]

    def _through(self, blocks: Iterable[Any], maps: Tensor) -> Tensor:
        net: Any = self.backbone.model
        if net.grad_checkpointing:
            return checkpoint_seq(list(blocks), maps)  # type: ignore[no-any-return]
        for block in blocks:
            maps = block(maps)
        return maps


def _branch(net: Any) -> nn.Sequential:
    """A copy of the last stages, without stride in the fourth; its parts are called as in ``net``."""
    branch = copy.deepcopy(nn.Sequential(OrderedDict(layer3=net.layer3[1:], layer4=net.layer4)))
    drop_last_stride(branch)
    return branch
