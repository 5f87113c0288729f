"""Models: backbones, and the heads behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn


@dataclass(frozen=True)
class Preprocessing:
    """What the images were like that a model's weights were trained on.

    Attributes:
        mean, std: of the images in 0..1, one number a channel.
        size: height and width.
        interpolation: how they were resized: ``bicubic``, ``bilinear`` ...
        crop: side of the centre crop as a fraction of the resized image, in evaluation.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    interpolation: str
    crop: float


class Memory(nn.Module):
    """What a method keeps of earlier batches in its buffers; only hooks write it, and only what is finite.

    It is the same on every process, and saved with the model. It is no statistic and may be large: nobody averages it,
    and it stays as it is where a step is left out.
    """


def buffers_beside_memories(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers of a model by their names, without those of a :class:`Memory`."""
    for path, module in model.named_modules():
        if not isinstance(module, Memory):
            for name, buffer in module.named_buffers(recurse=False):
                yield (f"{path}.{name}" if path else name), buffer


class Level(NamedTuple):
    """What is known of feature maps: their channels, and the pixels of an image from one place to the next."""

    channels: int
    stride: int


class Tokens(NamedTuple):
    """What a vision transformer makes of images, behind its last norm.

    Attributes:
        first: the class token (B x T); of a transformer without one the mean of the patches.
        patches: B x N x T, row by row; of those that were kept, if not all were.
    """

    first: Tensor
    patches: Tensor


class Backbone(nn.Module):
    """Images (B x C x H x W) to one vector each (B x D). A head asks it for D, not a config.

    Attributes:
        out_channels: D.
        map_channels: M, of the feature maps before pooling; 0 when it has none to give.
        token_channels: T, of the tokens that ``offset`` is added to; 0 when it has none.
        patch_size: height and width of the patches that the tokens are of; None when it has none.
        preprocessing: what its weights were trained on; None when they were drawn.
        trained_classes: how many classes the classifier that came with its weights tells apart; 0 without such a one.
        clips: whether it takes clips (B x C x T x H x W, T frames) in the place of images, and gives a vector each.
    """

    clips: bool = False
    out_channels: int
    map_channels: int = 0
    token_channels: int = 0
    patch_size: tuple[int, int] | None = None
    preprocessing: Preprocessing | None = None
    trained_classes: int = 0

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to B x D.

        Args:
            images: B x C x H x W.
            offset: B x T, added to every token after the position embedding: what is known of an image beside its
                pixels, such as its camera.
        """
        raise NotImplementedError

    def maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to feature maps (B x M x h x w), which are what is pooled in :meth:`forward`.

        Raises:
            ValueError: this backbone has none to give.
        """
        raise ValueError(f"{type(self).__name__} gives no feature maps")

    def use_levels(self) -> list[Level]:
        """From now on :meth:`levels` is what is asked for: take off what only the pooled vector needs.

        Returns:
            what it gives there, from fine to coarse, strides of 4 and more.

        Raises:
            ValueError: this backbone has no maps of several sizes to give.
        """
        raise ValueError(f"{type(self).__name__} gives no feature maps of several sizes")

    def levels(self, images: Tensor) -> list[Tensor]:
        """B x C x H x W to feature maps (B x M x h x w, channels first) as :meth:`use_levels` told."""
        raise NotImplementedError

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Patches down and across of an image of this height and width.

        Raises:
            ValueError: this backbone sees no patches.
        """
        raise ValueError(f"{type(self).__name__} sees no patches; take a vision transformer")

    def tokens(self, images: Tensor, hidden: tuple[Tensor, Tensor] | None = None, kept: Tensor | None = None) -> Tokens:
        """B x C x H x W to tokens.

        Args:
            images: B x C x H x W.
            hidden: which patches are hidden (bool, B x N), and what stands in their place (T) before the position
                embedding is added (Bao et al. 2022, BEiT).
            kept: numbers of the patches that are seen at all (int64, B x M); the others are left out behind the
                position embedding (He et al. 2022, MAE).

        Raises:
            ValueError: this backbone has no tokens.
        """
        raise ValueError(f"{type(self).__name__} has no tokens; take a vision transformer")

    def freeze_stages(self, count: int) -> None:
        """From now on the stem and the first ``count - 1`` stages learn nothing, their norms neither (detectron2's
        FREEZE_AT: 1 is the stem, 2 with the first stage, which is its default).

        Raises:
            ValueError: it has fewer stages.
        """
        raise ValueError(f"{type(self).__name__} does not tell its stages")

    def make_head(self, classes: int) -> nn.Module:
        """A classifier of its vectors (B x D to B x K): a linear layer, unless the backbone has one of its own."""
        return nn.Linear(self.out_channels, classes)

    def depths(self) -> dict[str, int]:
        """Depth of each parameter by its name, from 0 (the stem) on; for layer-wise learning rates.

        Raises:
            ValueError: this backbone does not tell.
        """
        raise ValueError(f"{type(self).__name__} does not tell the depth of its layers")

    def checkpoint_activations(self) -> None:
        """From now on compute activations again in the backward pass instead of keeping them.

        Raises:
            ValueError: this backbone cannot.
        """
        raise ValueError(f"{type(self).__name__} cannot compute its activations again")


class Head(nn.Module):
    """A classifier: features (B x D) to logits (B x K)."""

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B x K)."""
        raise NotImplementedError

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Logits to be trained, from those of :meth:`forward`: a margin stands between the right class (int64, B) and
        the others. Here there is none."""
        return logits
