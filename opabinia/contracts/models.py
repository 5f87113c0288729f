"""Backbones and heads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, cast

from torch import Tensor, nn


@dataclass(frozen=True)
class Preprocessing:
    """The image preprocessing that pretrained weights expect.

    Attributes:
        mean, std: of images in 0 to 1, one number per channel.
        size: height and width.
        interpolation: of resizing: ``bicubic``, ``bilinear`` ...
        crop: side of the center crop as a fraction of the resized image, in evaluation.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    interpolation: str
    crop: float


class Memory(nn.Module):
    """Buffers that hold data of earlier batches, such as a queue or a memory bank. Only hooks write to it, and only
    finite values.

    It is the same on every rank and saved with the model. It is not a running statistic and may be large: it is not
    averaged over ranks or steps, and it does not change in a skipped step.
    """


def non_memory_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of a model with their names, except those of a :class:`Memory`."""
    for path, module in model.named_modules():
        if not isinstance(module, Memory):
            for name, buffer in module.named_buffers(recurse=False):
                yield (f"{path}.{name}" if path else name), buffer


class Level(NamedTuple):
    """A level of feature maps: its channels, and its stride in pixels of the image."""

    channels: int
    stride: int


class ClassRows(NamedTuple):
    """The order of the rows of a layer's tensors: ``groups`` x K x ``width`` rows of classes, and ``others``.

    Modules with such layers name them in an attribute ``class_layers``: ``{"head.cls_logits": ClassRows(groups=9)}``.
    They are initialized by class name (:class:`opabinia.models.weights.init.Init`).

    Attributes:
        groups: groups with rows for all classes, such as anchors.
        width: rows of a class in each of them, such as the four values of a box.
        others: rows after those of the classes, such as the background.
    """

    groups: int = 1
    width: int = 1
    others: int = 0


class Tokens(NamedTuple):
    """The output tokens of a vision transformer, after its last norm.

    Attributes:
        first: the class token (B x T), or the mean of the patch tokens if there is none.
        patches: patch tokens, row by row (B x N x T); only the kept ones, if some were dropped.
    """

    first: Tensor
    patches: Tensor


FeatureKind = Literal["vectors", "maps", "pyramid"]
"""The features that a task may read of a backbone: see :class:`Features`."""


class Features(TypedDict, total=False):
    """Features of B images from one forward pass of a backbone, of the kinds that it was asked for (``Task.reads``).

    Attributes:
        vectors: pooled (B x D).
        maps: before the pooling (B x M x h x w).
        pyramid: feature maps of several strides, from fine to coarse (B x M x h x w each).
    """

    vectors: Tensor
    maps: Tensor
    pyramid: Sequence[Tensor]


def select_features(features: Features, rows: Tensor) -> Features:
    """Return the features of some of the images.

    Args:
        features: features of all images.
        rows: the positions of those images (int64, on the device of the features).
    """
    columns: Any = features
    selected = {
        kind: value[rows] if isinstance(value, Tensor) else [level[rows] for level in value]
        for kind, value in columns.items()
    }
    return cast("Features", selected)


class Backbone(nn.Module):
    """Maps images (B x C x H x W) to one feature vector each (B x D).

    Attributes:
        out_channels: D; heads read it here, not in a config.
        map_channels: M, channels of the feature maps before pooling; 0 if there are none.
        token_channels: T, channels of the tokens to which ``offset`` is added; 0 if there are none.
        patch_size: height and width of a token's patch; None without patches.
        preprocessing: expected by its pretrained weights; None without such weights.
        trained_classes: number of classes of the classifier that came with its weights; 0 without one.
        clips: whether it takes clips (B x C x T x H x W, T frames) instead of images.
        needs_weights: see :class:`opabinia.contracts.Task`.
        is_shared: whether several tasks read it, so that none of them may remove layers from it.
        trained_head: the classifier that came with its weights, in a tuple, so that it is no child: it is saved and
            trained only where :meth:`make_head` returns it.
    """

    clips: bool = False
    out_channels: int
    map_channels: int = 0
    token_channels: int = 0
    patch_size: tuple[int, int] | None = None
    preprocessing: Preprocessing | None = None
    trained_classes: int = 0
    needs_weights: str = ""
    is_shared: bool = False
    trained_head: tuple[nn.Module | None] = (None,)

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return feature vectors (B x D).

        Args:
            images: B x C x H x W.
            offset: B x T, added to every token after the position embedding, such as an embedding of the camera.
        """
        raise NotImplementedError

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return the feature maps (B x M x h x w) that :meth:`forward` pools.

        Raises:
            ValueError: this backbone has none.
        """
        raise ValueError(f"{type(self).__name__} has no feature maps")

    def vectors_and_maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the feature vectors (B x D) and the feature maps (B x M x h x w) from one forward pass.

        Raises:
            ValueError: this backbone has no feature maps.
        """
        maps = self.feature_maps(images)
        return maps.mean((2, 3)), maps

    def extract(self, images: Tensor, kinds: Collection[FeatureKind]) -> Features:
        """Return features of these kinds, perhaps with others, from one forward pass.

        Args:
            images: B x C x H x W.
            kinds: the features to compute.
        """
        if "pyramid" in kinds:
            return self.all_features(images) if len(kinds) > 1 else {"pyramid": self.pyramid_features(images)}
        if "maps" not in kinds:
            return {"vectors": self(images)}
        if "vectors" not in kinds:
            return {"maps": self.feature_maps(images)}
        vectors, maps = self.vectors_and_maps(images)
        return {"vectors": vectors, "maps": maps}

    def enable_multi_scale(self) -> list[Level]:
        """Prepare for :meth:`pyramid_features`: remove the layers that only the pooled vector needs, unless
        ``is_shared``.

        Returns:
            the levels that it will return, from fine to coarse, with strides of at least 4.

        Raises:
            ValueError: this backbone has no multi-scale feature maps.
        """
        raise ValueError(f"{type(self).__name__} has no multi-scale feature maps")

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps (B x M x h x w each, channels first) of the levels of :meth:`enable_multi_scale`."""
        raise NotImplementedError

    def all_features(self, images: Tensor) -> Features:
        """Return features of every kind from one forward pass. Called after :meth:`enable_multi_scale` of a backbone
        that ``is_shared``.

        Raises:
            ValueError: this backbone gives either vectors or the maps of several strides.
        """
        raise ValueError(f"{type(self).__name__} cannot be shared by tasks that read feature maps; use timm")

    def drop_vector_layers(self) -> None:
        """Remove the layers that only the pooled vector needs, after :meth:`enable_multi_scale`: no task reads it. By
        default there are none."""

    def keep_dilated_stages(self) -> list[Level]:
        """Also return the feature maps of the stages before the last that have its stride, as dilated networks have
        them, from :meth:`pyramid_features`. Called after :meth:`enable_multi_scale`.

        Returns:
            all levels; empty: there are no such stages.
        """
        return []

    def split_last_stage(self) -> nn.Module:
        """Return the last stage, from the feature maps of the level before to its own, for detectors that run it on
        regions. :meth:`pyramid_features` then ends with the level before. Called after :meth:`enable_multi_scale`.

        Raises:
            ValueError: its last stage cannot be run by itself.
        """
        raise ValueError(f"{type(self).__name__} has no last stage that could run on regions; use a ResNet")

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the number of patches along the height and the width of an image.

        Raises:
            ValueError: this backbone has no patches.
        """
        raise ValueError(f"{type(self).__name__} has no patches; use a vision transformer")

    def tokens(self, images: Tensor, hidden: tuple[Tensor, Tensor] | None = None, kept: Tensor | None = None) -> Tokens:
        """Return the output tokens.

        Args:
            images: B x C x H x W.
            hidden: mask of the patches to replace (bool, B x N), and the mask token (T) that replaces them before the
                position embedding is added (Bao et al. 2022, BEiT).
            kept: indices of the patches to keep (int64, B x M); the others are dropped after the position embedding
                (He et al. 2022, MAE).

        Raises:
            ValueError: this backbone has no tokens.
        """
        raise ValueError(f"{type(self).__name__} has no tokens; use a vision transformer")

    def freeze_stages(self, count: int) -> None:
        """Freeze the stem and the first ``count - 1`` stages, including their norms (detectron2's FREEZE_AT: 1 is the
        stem, 2 adds the first stage).

        Raises:
            ValueError: it has fewer stages.
        """
        raise ValueError(f"{type(self).__name__} has no known stages")

    def make_head(self, classes: int) -> nn.Module:
        """Return a classifier of its vectors (B x D to B x K): the trained one (once) if that has as many classes,
        otherwise one with random weights."""
        (trained,), self.trained_head = self.trained_head, (None,)
        return trained if trained is not None and classes == self.trained_classes else self._new_head(classes)

    def _new_head(self, classes: int) -> nn.Module:
        return nn.Linear(self.out_channels, classes)

    def depths(self) -> dict[str, int]:
        """Return the depth of each parameter by name, starting at 0 (the stem), for layer-wise learning rates.

        Raises:
            ValueError: the depths are not known for this backbone.
        """
        raise ValueError(f"the depths of the layers of {type(self).__name__} are not known")

    def checkpoint_activations(self) -> None:
        """Enable activation checkpointing: recompute activations in the backward pass instead of storing them.

        Raises:
            ValueError: this backbone does not support it.
        """
        raise ValueError(f"{type(self).__name__} does not support activation checkpointing")


class Head(nn.Module):
    """A classifier: features (B x D) to logits (B x K)."""

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B x K)."""
        raise NotImplementedError

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the logits for the loss, with a margin between the true class (``labels``, int64, B) and the others;
        by default there is none."""
        return logits
