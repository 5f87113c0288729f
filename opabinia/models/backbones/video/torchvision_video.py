"""Clip backbones of torchvision, behind one adapter."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal

import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn
from torchvision import models

from opabinia.config import register
from opabinia.contracts import DataMismatch, Preprocessing
from opabinia.models.backbones.module import format_size
from opabinia.models.backbones.timm import fit_channels
from opabinia.models.backbones.video.base import ClipBackbone, global_pool
from opabinia.models.weights.download import are_replaced, pretrained_weights

Name = Literal["r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_t", "swin3d_s", "swin3d_b"]

MVIT_SIZE = (16, 224, 224)
"""Frames, height and width of the only clips that torchvision's MViTs take: they have a fixed grid of tokens."""
S3D_MIN_SIZE = (5, 17, 17)
"""Frames, height and width of the smallest clips that survive the strides of S3D."""


@register.backbone
class TorchvisionVideo(ClipBackbone):
    """Clip backbone of the torchvision library, without classifier: R3D, MC3 and R(2+1)D (Tran et al. 2018), S3D
    (Xie et al. 2018), MViT (Fan et al. 2021; Li et al. 2022), Video Swin (Liu et al. 2022).

    MViTs take clips of 16 frames of 224 x 224 only; S3D takes 5 frames of 17 x 17 and more; the others take any size.

    Args:
        channels: channels of the frames; the first convolution is adapted to them.
        model: torchvision's name.
        pretrained: download torchvision's weights (Kinetics-400), including those of its classifier.
    """

    def __init__(self, channels: int, /, *, model: Name, pretrained: bool = False) -> None:
        weights = models.get_model_weights(model).DEFAULT if pretrained else None
        load = None if are_replaced() else weights
        with pretrained_weights(f"torchvision's {model!r}", load.url) if load else nullcontext():
            net = models.get_model(model, weights=load)
        if channels != 3:
            adapt_channels(net, channels)
        classifier = remove_classifier(net)
        super().__init__(classifier.in_features)
        self.name, self.model = model, net
        self.preprocessing = _preprocessing(weights, channels) if weights else None
        self.trained_classes = classifier.out_features if pretrained else 0
        self.layers = [tuple(f"model.{prefix}" for prefix in prefixes) for prefixes in layer_prefixes(net)]
        self.trained_head = (classifier if pretrained else None,)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D.

        Raises:
            DataMismatch: the network does not take clips of this size.
        """
        size = tuple(clips.shape[2:])
        if self.name in ("mvit_v1_b", "mvit_v2_s") and size != MVIT_SIZE:
            raise DataMismatch(
                f"torchvision's {self.name} takes clips of {format_size(MVIT_SIZE)} only, frames x height x width, "
                f"not of {format_size(size)}"
            )
        if self.name == "s3d":
            if any(side < minimum for side, minimum in zip(size, S3D_MIN_SIZE, strict=True)):
                raise DataMismatch(
                    f"torchvision's s3d takes clips of {format_size(S3D_MIN_SIZE)} or more, not of {format_size(size)}"
                )
            net: Any = self.model
            return global_pool(net.features(clips))  # its own pooling is the same for maps of 2 x 7 x 7 only
        vectors: Tensor = self.model(clips)
        return vectors

    def checkpoint_activations(self) -> None:
        """Not supported by torchvision.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"torchvision cannot compute the activations of {self.name} again")


def remove_classifier(model: Any) -> nn.Linear:
    """Let a network end at its pooled vector, and return its former classifier as a linear layer."""
    if hasattr(model, "classifier"):  # S3D: dropout, and a convolution of 1 x 1 x 1
        last = model.classifier[-1]
        linear = nn.Linear(last.in_channels, last.out_channels)
        linear.load_state_dict({"weight": last.weight.flatten(1), "bias": last.bias})
        model.avgpool = model.classifier = nn.Identity()
        return linear
    name = "fc" if hasattr(model, "fc") else "head"
    layer = getattr(model, name)
    linear = layer if isinstance(layer, nn.Linear) else layer[-1]  # MViT has dropout before it
    setattr(model, name, nn.Identity())
    return linear


def layer_prefixes(model: Any) -> list[tuple[str, ...]]:
    """Prefixes of parameter names, from the stem on; see :class:`ClipBackbone`."""
    if hasattr(model, "layer4"):
        stages = [(number, getattr(model, f"layer{number}")) for number in range(1, 5)]
        return [("stem",), *((f"layer{number}.{i}",) for number, blocks in stages for i in range(len(blocks)))]
    if hasattr(model, "conv_proj"):
        blocks = [(f"blocks.{i}",) for i in range(len(model.blocks))]
        return [("conv_proj", "pos_encoding"), *blocks[:-1], (*blocks[-1], "norm")]
    if hasattr(model, "patch_embed"):
        layers: list[tuple[str, ...]] = [("patch_embed",)]
        for i, part in enumerate(model.features):
            layers += [(f"features.{i}.{j}",) for j in range(len(part))] if isinstance(part, nn.Sequential) else []
            if not isinstance(part, nn.Sequential):  # patch merging right after a block
                layers[-1] += (f"features.{i}",)
        layers[-1] += ("norm",)
        return layers
    return [(f"features.{i}",) for i, part in enumerate(model.features) if next(part.parameters(), None) is not None]


def adapt_channels(net: nn.Module, channels: int) -> None:
    """Adapt the first convolution and its weights to the channels of the frames, as timm does."""
    path, first = next((name, module) for name, module in net.named_modules() if isinstance(module, nn.Conv3d))
    options = {name: getattr(first, name) for name in ("kernel_size", "stride", "padding")}
    adapted = nn.Conv3d(channels, first.out_channels, **options, bias=first.bias is not None)
    with torch.no_grad():
        flat = adapt_input_conv(channels, first.weight.flatten(2, 3))  # for 2-d kernels only
        adapted.weight.copy_(flat.view(adapted.weight.shape))
        if first.bias is not None and adapted.bias is not None:
            adapted.bias.copy_(first.bias)
    net.set_submodule(path, adapted)


def _preprocessing(weights: Any, channels: int) -> Preprocessing:
    """Convert torchvision's transforms for weights."""
    transforms = weights.transforms()
    height, width = transforms.crop_size
    return Preprocessing(
        mean=fit_channels(transforms.mean, channels),
        std=fit_channels(transforms.std, channels),
        size=(height, width),
        interpolation=transforms.interpolation.value,
        crop=height / transforms.resize_size[0],
    )
