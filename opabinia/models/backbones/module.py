"""Ordinary modules as backbones: their sizes are found by a dry run on images of zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, DataMismatch, Features, Level

SIZES = (64, 224, 32, 28)
"""Image sizes of the dry run, in the order in which they are tried."""
FRAMES = 8


class ModuleBackbone(Backbone):
    """An ordinary ``nn.Module`` as backbone.

    It maps images (B x C x H x W) to vectors (B x D); to feature maps (B x D x h x w), which are average-pooled; or,
    for detection, to a list or dictionary of feature maps from fine to coarse. Optional attributes of it:
    ``num_features``, which is D, where it takes one image size only; ``clips``, true where it takes clips
    (B x C x T x H x W); ``preprocessing`` of its weights (:class:`opabinia.contracts.Preprocessing`).

    Args:
        module: the network.
        channels: number of channels of an image.

    Raises:
        ValueError: the module takes no images of ``SIZES``, or returns something else.
    """

    def __init__(self, module: nn.Module, channels: int) -> None:
        super().__init__()
        self.clips = bool(getattr(module, "clips", False))
        self.preprocessing = getattr(module, "preprocessing", None)
        self.levels: list[Level] = []
        self.module = module
        width = getattr(module, "num_features", None)
        if isinstance(width, int):
            self.out_channels = width
            return
        size, output = self._dry_run(channels)
        self.out_channels = output[-1].shape[1]
        if output[-1].ndim > 2:
            self.map_channels = self.out_channels
            self.levels = [Level(maps.shape[1], size // maps.shape[-1]) for maps in output]

    def _dry_run(self, channels: int) -> tuple[int, list[Tensor]]:
        """The size of an image, and the outputs of the module for two such images of zeros."""
        name, errors = type(self.module).__name__, []
        with evaluating(self.module):
            for size in SIZES:
                images = torch.zeros(2, channels, *([FRAMES] if self.clips else []), size, size)
                try:
                    output = self.outputs(images)
                except Exception as error:  # of the module, of any kind
                    errors.append(f"{size} pixels: {error}")
                    continue
                if any(maps.ndim not in (2, images.ndim) or len(maps) != 2 for maps in output):
                    shapes = ", ".join(str(tuple(maps.shape)) for maps in output)
                    raise ValueError(
                        f"{name} maps images {tuple(images.shape)} to {shapes}; a backbone returns vectors (B x D) or "
                        "feature maps (B x D x h x w)"
                    )
                return size, output
        raise ValueError(
            f"{name} takes no images of zeros with {channels} channels ({errors[0]}); if it takes one size only, give "
            "it an attribute num_features: the length of its vectors"
        )

    def outputs(self, images: Tensor) -> list[Tensor]:
        """Return the vectors or feature maps of the module, as a list."""
        output = self.module(images)
        if isinstance(output, dict):
            return list(output.values())
        return list(output) if isinstance(output, Sequence) else [output]

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return feature vectors (B x D); see :meth:`opabinia.contracts.Backbone.forward`."""
        if offset is not None:
            raise ValueError(f"{type(self.module).__name__} has no tokens to which an offset could be added")
        output = self.outputs(images)[-1]
        return output if output.ndim == 2 else output.flatten(2).mean(2)

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return the feature maps, of several the coarsest; see :meth:`opabinia.contracts.Backbone.feature_maps`."""
        if not self.map_channels or offset is not None:
            raise ValueError(f"{type(self.module).__name__} returns vectors, not feature maps")
        return self.outputs(images)[-1]

    def enable_multi_scale(self) -> list[Level]:
        """Return the levels of the feature maps; see :meth:`opabinia.contracts.Backbone.enable_multi_scale`."""
        if not self.levels:
            raise ValueError(
                f"{type(self.module).__name__} returns vectors; detection needs feature maps (B x D x h x w), or a "
                "list of them from fine to coarse"
            )
        return self.levels

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of all levels."""
        return self.outputs(images)

    def all_features(self, images: Tensor) -> Features:
        """Return the feature maps of all levels, and the mean over the coarsest ones as vectors."""
        maps = self.outputs(images)
        return {"vectors": maps[-1].flatten(2).mean(2), "maps": maps[-1], "pyramid": maps}

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the network, which all methods call."""
        self.module.compile(*args, **kwargs)


def build_backbone(part: Callable[[int], nn.Module], channels: int) -> Backbone:
    """Build a backbone; any other module becomes a :class:`ModuleBackbone`.

    Args:
        part: called with the channels of an image.
        channels: see ``part``.

    Raises:
        ValueError: ``part`` is a network instead of a callable that builds one, or its network is no backbone.
    """
    if isinstance(part, nn.Module):
        name = type(part).__name__
        raise ValueError(f"backbone: give what builds the network, not the network: lambda channels: {name}(...)")
    net = part(channels)
    return net if isinstance(net, Backbone) else ModuleBackbone(net, channels)


def format_size(size: Sequence[int]) -> str:
    """Format a size or shape: ``4 x 32 x 32``."""
    return " x ".join(map(str, size))


def check_image_size(images: Tensor, size: tuple[int, ...]) -> None:
    """Check that images (B x C x H x W) have the only size that a backbone takes.

    Raises:
        DataMismatch: they have another size.
    """
    if tuple(images.shape[2:]) != size:
        given = format_size(images.shape[2:])
        raise DataMismatch(f"the backbone takes images of {format_size(size)} (its image_size), not {given}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put all modules into evaluation mode, without gradients; afterwards each has the mode it had."""
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, mode in modes.items():
            child.training = mode
