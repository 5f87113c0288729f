"""One backbone for several tasks: a single forward pass gives what all of them read."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Level, SharedFeatures, Sizes, Tokens
from opabinia.models.layers import Normalize
from opabinia.models.norms import CurrentStream
from opabinia.runtime.device import move_tensor


class SharedNetwork:
    """A backbone and its normalization, shared by the tasks of a multi-task run.

    While a batch is read (:meth:`reading`), normalized images and features are computed once for it; other images, such
    as views of self-supervised methods, are computed each time.

    Args:
        backbone: the network.
        normalize: normalization of its images.
    """

    def __init__(self, backbone: Backbone, normalize: Normalize) -> None:
        self.backbone, self.normalize = backbone, normalize
        self.stream = CurrentStream("")
        self.levels: list[Level] = []
        self.users: list[SharedBackbone] = []
        self._batch: tuple[Tensor, Sizes | Tensor | None] | None = None
        self._normalized: Tensor | None = None
        self._features: SharedFeatures | None = None
        self._vectors: Tensor | None = None
        self._selection: _Selection | None = None

    @contextmanager
    def reading(self, stream: str, images: Tensor | None, sizes: Sizes | Tensor | None) -> Iterator[None]:
        """Keep what is computed of a batch for all tasks that read it.

        Args:
            stream: name of the stream of the batch.
            images: images of the batch (B x C x H x W); None: it has only views.
            sizes: height and width of each image within a padded batch; None: not padded.
        """
        self.stream.name = stream
        self._batch = None if images is None else (images, sizes)
        try:
            yield
        finally:
            self._batch = self._normalized = self._features = self._vectors = None

    @contextmanager
    def selecting(self, images: Tensor | None, rows: list[int]) -> Iterator[None]:
        """Take the features of some images from those of the batch that is read.

        Args:
            images: these rows of the images of the batch; None: it has only views.
            rows: their positions in the batch.
        """
        self._selection = None if images is None else _Selection(images, rows)
        try:
            yield
        finally:
            self._selection = None

    def normalized(self, images: Tensor, sizes: Sizes | Tensor | None) -> Tensor:
        """Return normalized images; of the batch that is read once, with 0 in its padding for every task."""
        if self._selection is not None and self._batch is not None and images is self._selection.images:
            selected = select_rows(self.normalized(*self._batch), self._selection.rows)
            self._selection = self._selection._replace(normalized=selected)
            return selected
        if self._batch is None or images is not self._batch[0]:
            normalized: Tensor = self.normalize(images, sizes)
            return normalized
        if self._normalized is None:
            self._normalized = self.normalize(images, self._batch[1])
        return self._normalized

    def features(self, images: Tensor) -> SharedFeatures:
        """Return all features of normalized images."""
        if (full := self._all_if_selected(images)) is not None and self._selection is not None:
            rows, features = self._selection.rows, self.features(full)
            vectors, maps, *pyramid = (
                select_rows(values, rows) for values in (features.vectors, features.maps, *features.pyramid)
            )
            return SharedFeatures(vectors, maps, pyramid)
        if images is not self._normalized:
            return self.backbone.shared_features(images)
        if self._features is None:
            self._features = self.backbone.shared_features(images)
        return self._features

    def vectors(self, images: Tensor) -> Tensor:
        """Return the feature vectors of normalized images (B x D)."""
        if self.levels:
            return self.features(images).vectors
        if (full := self._all_if_selected(images)) is not None and self._selection is not None:
            return select_rows(self.vectors(full), self._selection.rows)
        if images is not self._normalized:
            vectors: Tensor = self.backbone(images)
            return vectors
        if self._vectors is None:
            self._vectors = self.backbone(images)
        return self._vectors

    def _all_if_selected(self, images: Tensor) -> Tensor | None:
        """Return the normalized images of the whole batch if ``images`` are the selected ones."""
        is_selection = self._selection is not None and images is self._selection.normalized
        return self._normalized if is_selection else None

    def enable_multi_scale(self) -> list[Level]:
        """Prepare the network for feature maps of several strides in addition to its vectors; return their levels."""
        self.levels = self.levels or self.backbone.enable_shared_features()
        return self.levels


def select_rows(values: Tensor, rows: list[int]) -> Tensor:
    """Return these rows of a tensor, without waiting for the device, as indexing with a list would."""
    return values[move_tensor(torch.tensor(rows), values.device)]


class _Selection(NamedTuple):
    """Some rows of a batch: their images, before and after normalization."""

    images: Tensor
    rows: list[int]
    normalized: Tensor | None = None


class SharedNormalize(nn.Module):
    """The normalization of a shared network, for one of its tasks; it holds no buffers of its own."""

    def __init__(self, network: SharedNetwork) -> None:
        super().__init__()
        self._network = network

    @property
    def mean(self) -> Tensor:
        """Of the channels, see :class:`opabinia.models.layers.Normalize`."""
        return self._network.normalize.mean

    @property
    def std(self) -> Tensor:
        """Likewise."""
        return self._network.normalize.std

    def forward(self, images: Tensor, sizes: Sizes | Tensor | None = None) -> Tensor:
        """See :meth:`opabinia.models.layers.Normalize.forward`."""
        return self._network.normalized(images, sizes)


class SharedBackbone(Backbone):
    """The view that a task has of a shared network: a backbone without weights of its own.

    A copy of it alone, as momentum teachers make, is a copy of the network.
    """

    def __init__(self, network: SharedNetwork) -> None:
        super().__init__()
        net = network.backbone
        self.network, self._network = net, network
        self.out_channels, self.map_channels, self.token_channels = (
            net.out_channels,
            net.map_channels,
            net.token_channels,
        )
        self.patch_size, self.preprocessing, self.clips = net.patch_size, net.preprocessing, net.clips
        self.trained_classes = net.trained_classes
        self.multi_scale = False
        network.users.append(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbone:
        if id(self.network) not in memo:
            return copy.deepcopy(self.network, memo)
        twin = SharedBackbone.__new__(SharedBackbone)
        memo[id(self)] = twin
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return that of the network, with the batch norm statistics of the first stream."""
        state = self.network.state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in state.items() if ".streams." not in name}

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """See :meth:`opabinia.contracts.Backbone.forward`."""
        return self._network.vectors(images) if offset is None else self.network(images, offset)

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """See :meth:`opabinia.contracts.Backbone.feature_maps`."""
        if self._network.levels and offset is None:
            return self._network.features(images).maps
        return self.network.feature_maps(images, offset)

    def vectors_and_maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`opabinia.contracts.Backbone.vectors_and_maps`."""
        if not self._network.levels:
            return self.network.vectors_and_maps(images)
        features = self._network.features(images)
        return features.vectors, features.maps

    def enable_multi_scale(self) -> list[Level]:
        """See :meth:`opabinia.contracts.Backbone.enable_multi_scale`; layers of the pooled vector stay."""
        self.multi_scale = True
        return self._network.enable_multi_scale()

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        """See :meth:`opabinia.contracts.Backbone.pyramid_features`."""
        return list(self._network.features(images).pyramid)

    def split_last_stage(self) -> nn.Module:
        """Refuse: other tasks read the last stage, too.

        Raises:
            ValueError: always.
        """
        raise ValueError("the tasks of a multi-task run share the last stage of the backbone; take a detector with fpn")

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """See :meth:`opabinia.contracts.Backbone.grid`."""
        return self.network.grid(size)

    def tokens(self, images: Tensor, hidden: tuple[Tensor, Tensor] | None = None, kept: Tensor | None = None) -> Tokens:
        """See :meth:`opabinia.contracts.Backbone.tokens`; computed each time."""
        return self.network.tokens(images, hidden, kept)

    def freeze_stages(self, count: int) -> None:
        """See :meth:`opabinia.contracts.Backbone.freeze_stages`; they are frozen for all tasks."""
        self.network.freeze_stages(count)

    def make_head(self, classes: int) -> nn.Module:
        """See :meth:`opabinia.contracts.Backbone.make_head`; a pretrained classifier goes to the first task."""
        return self.network.make_head(classes)

    def depths(self) -> dict[str, int]:
        """See :meth:`opabinia.contracts.Backbone.depths`."""
        return self.network.depths()


_current: ContextVar[SharedNetwork | None] = ContextVar("shared_network", default=None)


@contextmanager
def sharing(network: SharedNetwork) -> Iterator[None]:
    """Build tasks inside with views of ``network`` where their backbone is ``shared``."""
    token = _current.set(network)
    try:
        yield
    finally:
        _current.reset(token)


@register.backbone
def shared(channels: int, /) -> Backbone:
    """The backbone of the multi-task run that a task belongs to; configs need not name it.

    Args:
        channels: channels of the images.

    Raises:
        ValueError: the task does not belong to a multi-task run.
    """
    network = _current.get()
    if network is None:
        raise ValueError("shared is the backbone of a multi-task run; a task by itself has its own, such as timm")
    return SharedBackbone(network)
