"""Networks for clips from torchvision, behind one adapter."""

from __future__ import annotations

from typing import Any, Literal

import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn
from torchvision import models

from opabinia.config import register
from opabinia.contracts import Backbone, DataMismatch, Preprocessing
from opabinia.models.backbones.video.base import ClipBackbone, pooled, times

Name = Literal["r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_t", "swin3d_s", "swin3d_b"]

MVIT_SIZE = (16, 224, 224)
"""Frames, height and width of the only clips that torchvision's MViTs take: grids of tokens are built into them."""
S3D_LEAST = (5, 17, 17)
"""Of less nothing is left behind the strides of S3D."""


class TorchvisionBackbone(ClipBackbone):
    """A network of torchvision without its classifier.

    Args:
        name: torchvision's name of it.
        model: the network; its classifier is taken off.
        preprocessing: what its weights were trained on; None when they were drawn.
    """

    def __init__(self, name: Name, model: nn.Module, preprocessing: Preprocessing | None = None) -> None:
        classifier = take_off_classifier(model)
        super().__init__(classifier.in_features)
        self.name, self.model = name, model
        self.preprocessing = preprocessing
        self.trained_classes = classifier.out_features if preprocessing else 0
        self.layers = [tuple(f"model.{start}" for start in starts) for starts in _layers(model)]
        # In a tuple it is not a child: it is saved and trained only where make_head hands it out.
        self._trained_head: tuple[nn.Linear | None] = (classifier if preprocessing else None,)

    def vectors(self, clips: Tensor) -> Tensor:
        """B x C x T x H x W to B x D.

        Raises:
            Unfit: the clips have a size that the network does not take.
        """
        given = tuple(clips.shape[2:])
        if self.name in ("mvit_v1_b", "mvit_v2_s") and given != MVIT_SIZE:
            raise DataMismatch(
                f"torchvision's {self.name} takes clips of {times(MVIT_SIZE)} only, frames x height x width, not of "
                f"{times(given)}"
            )
        if self.name == "s3d":
            if any(side < least for side, least in zip(given, S3D_LEAST, strict=True)):
                raise DataMismatch(
                    f"torchvision's s3d takes clips of {times(S3D_LEAST)} or more, not of {times(given)}"
                )
            net: Any = self.model
            return pooled(net.features(clips))  # its own pooling wants maps of 2 x 7 x 7, and is the mean of such
        vectors: Tensor = self.model(clips)
        return vectors

    def make_head(self, classes: int) -> nn.Module:
        """A linear layer; of a pretrained network the trained one when it has as many classes (it is handed out
        once)."""
        (trained,), self._trained_head = self._trained_head, (None,)
        if trained is not None and classes == self.trained_classes:
            return trained
        return super().make_head(classes)

    def checkpoint_activations(self) -> None:
        """Refuses.

        Raises:
            ValueError: always; torchvision cannot.
        """
        raise ValueError(f"torchvision cannot compute the activations of {self.name} again")


def take_off_classifier(model: Any) -> nn.Linear:
    """Have a network end at its pooled vector; returns the linear layer that stood behind."""
    if hasattr(model, "classifier"):  # S3D: dropout, and a convolution of 1 x 1 x 1
        last = model.classifier[-1]
        linear = nn.Linear(last.in_channels, last.out_channels)
        linear.load_state_dict({"weight": last.weight.flatten(1), "bias": last.bias})
        model.avgpool = model.classifier = nn.Identity()
        return linear
    name = "fc" if hasattr(model, "fc") else "head"
    layer = getattr(model, name)
    linear = layer if isinstance(layer, nn.Linear) else layer[-1]  # MViT has dropout ahead of it
    setattr(model, name, nn.Identity())
    return linear


def _layers(model: Any) -> list[tuple[str, ...]]:
    """What names of parameters begin with, from the stem on."""
    if hasattr(model, "layer4"):
        stages = [(number, getattr(model, f"layer{number}")) for number in range(1, 5)]
        return [("stem",), *((f"layer{number}.{i}",) for number, blocks in stages for i in range(len(blocks)))]
    if hasattr(model, "conv_proj"):
        blocks = [(f"blocks.{i}",) for i in range(len(model.blocks))]
        return [("conv_proj", "pos_encoding"), *blocks[:-1], (*blocks[-1], "norm")]
    if hasattr(model, "patch_embed"):
        found: list[tuple[str, ...]] = [("patch_embed",)]
        for i, part in enumerate(model.features):
            found += [(f"features.{i}.{j}",) for j in range(len(part))] if isinstance(part, nn.Sequential) else []
            if not isinstance(part, nn.Sequential):  # patches are merged right behind a block
                found[-1] += (f"features.{i}",)
        found[-1] += ("norm",)
        return found
    return [(f"features.{i}",) for i, part in enumerate(model.features) if next(part.parameters(), None) is not None]


@register.backbone
def torchvision_video(channels: int, /, *, model: Name, pretrained: bool = False) -> Backbone:
    """A network for clips of the torchvision library, without classifier: R3D, MC3 and R(2+1)D (Tran et al. 2018), S3D
    (Xie et al. 2018), MViT (Fan et al. 2021; Li et al. 2022), Video Swin (Liu et al. 2022).

    MViTs take clips of 16 frames of 224 x 224 and no others; S3D takes 5 frames of 17 x 17 and more; the rest takes
    all.

    Args:
        channels: channels of the frames; the first convolution is made for them.
        model: torchvision's name of it.
        pretrained: download torchvision's weights for it (Kinetics-400), those of its classifier too.
    """
    weights = models.get_model_weights(model).DEFAULT if pretrained else None
    net = models.get_model(model, weights=weights)
    if channels != 3:
        _take_channels(net, channels)
    return TorchvisionBackbone(model, net, _preprocessing(weights, channels) if weights else None)


def _take_channels(net: nn.Module, channels: int) -> None:
    """Make the first convolution for frames of so many channels; weights that it has are fitted as timm does."""
    path, first = next((name, module) for name, module in net.named_modules() if isinstance(module, nn.Conv3d))
    made = nn.Conv3d(
        channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    with torch.no_grad():
        flat = adapt_input_conv(channels, first.weight.flatten(2, 3))  # it knows 2-d kernels only
        made.weight.copy_(flat.view(made.weight.shape))
        if first.bias is not None and made.bias is not None:
            made.bias.copy_(first.bias)
    net.set_submodule(path, made)


def _preprocessing(weights: Any, channels: int) -> Preprocessing:
    """What torchvision tells of the frames. Where the network sees another number of channels, every one gets their
    mean."""
    made = weights.transforms()

    def fitted(values: list[float]) -> tuple[float, ...]:
        return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels

    height, width = made.crop_size
    crop = height / made.resize_size[0]
    return Preprocessing(fitted(made.mean), fitted(made.std), (height, width), made.interpolation.value, crop)
