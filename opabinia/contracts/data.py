"""Data: samples and batches, what is known of a whole data set, and who gives and changes samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Sample = dict[str, Any]
"""One item: ``image`` (uint8, C x H x W, a ``tv_tensors.Image``), ``label`` (int; of multi-label data float32, K, of 0
and 1), ``id`` (str, unique in its source). Of identities also ``camera`` and ``view`` (int, from 0; where they are
known) and, in data that is searched, ``query`` (bool): whether it is looked for, or lies in the gallery.

Of N things with boxes, in the pixels of ``image``: ``boxes`` (a ``tv_tensors.BoundingBoxes``: float32, N x 4: left,
top, right, bottom) and ``labels`` (int64, N) in place of ``label``; where they are known ``masks`` (a
``tv_tensors.Mask``: uint8 of 0 and 1, N x H x W) and ``keypoints`` (a ``tv_tensors.KeyPoints``: float32, N x P x 2)
with ``visible`` (int64, N x P: 0 unknown, 1 hidden, 2 seen) and ``mirror`` (a list of P: which point is this one in a
mirror). ``original_size`` (height, width) is that of the picture as it was read, and ``ground_truth`` (:class:`GroundTruth`) what
evaluations compare with. Things that nobody is to learn (crowds) are in ``ground_truth`` only.

Of films ``video`` (a :class:`Video`, of which nothing is decoded yet) stands in place of ``image``, until the transform
``clip`` makes ``image`` of it: T x C x H x W, a ``tv_tensors.Video``. ``directed`` (bool) tells whether a mirror image
would be of another class, ``shape`` ((frames, height, width) or None) which size the batch is to have, and ``view``
((i, n), (j, m)) that it is clip i of n over time and crop j of m in space: the ``id`` is then that of the film."""

Batch = dict[str, Any]
"""Collated samples; a list has an entry for each of B, a tuple V tensors of B rows, one for each view.

``image`` (uint8, or float in 0 to 1, B x C x H x W), ``label`` (int64, B; float, B x K, of multi-label data and after
mixing), ``id`` (list of B), ``index`` (int64, B: which samples they are, of a ``numbered`` source). Where views were
made of an image, ``views`` (tuple of V, B x C x h x w each) stands in its place, with ``patch_masks`` (tuple, bool,
B x N each: the hidden patches of the first views) where they were drawn. Of things with boxes, lists of B: ``boxes``,
``labels`` and the like as in a sample, plain tensors, ``image_sizes`` ((height, width) of each image within the batch,
at its upper left) and ``original_size``. Of clips ``image`` is B x T x C x H x W."""

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class DatasetInfo:
    """What the data tells to the parts that are built on it, so that nobody writes it into a config.

    Attributes:
        samples: number of training samples.
        channels: channels of an image (1 grey, 3 colour).
        classes: class names; the index is the label. Empty when there are none.
        multi_label: whether a sample may belong to several classes, or to none.
        cameras: how many cameras the images are from; 0 when nobody tells.
        views: from how many sides things are seen; 0 when nobody tells.
        queries: whether some images are set apart, to be looked for among the others.
        boxes: whether samples tell where things are, and not only what they are.
        masks: whether they tell the pixels of things, too.
        keypoints: names of the points of a thing; empty when there are none.
        category_ids: the number of each class in the file that things come from; results are written with it.
        frequencies: of each class ``r``, ``c`` or ``f``: rare, common, frequent (LVIS); empty when nobody tells.
    """

    samples: int
    channels: int = 3
    classes: tuple[str, ...] = ()
    multi_label: bool = False
    cameras: int = 0
    views: int = 0
    queries: bool = False
    boxes: bool = False
    masks: bool = False
    keypoints: tuple[str, ...] = ()
    category_ids: tuple[int, ...] = ()
    frequencies: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """What a file says of the N things in a picture, in the picture's own pixels: what evaluations compare with.

    Attributes:
        image_id: the picture's number or name in the file.
        size: height and width of the picture.
        ids: numbers of the annotations in the file (int64, N).
        boxes: left, top, width, height (float64, N x 4).
        labels: class numbers (int64, N).
        areas: in pixels (float64, N).
        crowd: whether it stands for many things that are not told apart (bool, N).
        segments: for each thing polygons (lists of x, y, x, y ...) or run lengths ({"size": [height, width], "counts":
            ...}), as in COCO; None where nobody tells them.
        keypoints: x, y, visibility (float64, N x P x 3).
        absent: classes that are known not to be in the picture (LVIS).
        not_exhaustive: classes of which not all things are told (LVIS).
    """

    image_id: int | str
    size: tuple[int, int]
    ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    areas: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    segments: Sequence[Any] | None = None
    keypoints: NDArray[np.float64] | None = None
    absent: tuple[int, ...] = ()
    not_exhaustive: tuple[int, ...] = ()


@runtime_checkable
class Video(Protocol):
    """Moving pictures that are decoded when they are asked for, and only those that are.

    Frames are numbered in the order in which they are shown. Of films with a variable rate equal steps in number are no
    equal steps in time. What is opened is closed after ``read``.

    Attributes:
        path: what messages name.
    """

    path: str

    @property
    def frames(self) -> int:
        """How many there are, as far as its file tells without being decoded; at least 1."""
        ...

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second, on average."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as it is shown: after its rotation flag."""
        ...

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        """Frames by number (uint8, T x C x H x W), in the order asked for; the same one may be asked for several times.

        Frames that are broken are as the last good one before them, and it is told once.

        Args:
            indices: from 0 to ``frames`` - 1.
            short_side: shrink larger frames until their shorter side has so many pixels.

        Raises:
            OSError: the file is not there, or must not be read.
            ValueError: it is no film, none of it can be decoded, or there is no such frame. The text names the file.
        """
        ...


class DataMismatch(ValueError):
    """What the data holds does not fit a part, as it turns out on the way; the text says all a person needs."""

    exit_status = 2


@runtime_checkable
class Source(Protocol):
    """Samples by index. Reading one must not depend on any other having been read.

    What a source may have beside these is used where it is there: ``labels`` (int64, N; float32, N x K, of 0 and 1
    when ``multi_label`` is True) for samplers that balance, ``batch(indices)`` to hand over a whole batch at once,
    ``encoded(index)``, a sample without boxes or masks whose picture is not decoded yet
    (:class:`opabinia.data.decoding.images.Encoded`),
    ``fingerprint()``, a text that changes with the samples and their order, ``shards`` (int64), how many of the samples
    lie beside each other in each file, for the sampler that reads file by file; of identities ``cameras`` and ``views``
    (int64, N, from 0) and ``queries`` (bool, N); of pictures with boxes ``has_boxes`` and ``has_masks`` (bool),
    ``keypoints``, ``category_ids`` and ``frequencies`` as in :class:`DatasetInfo`, ``sizes`` (int64, N x 2: height, width),
    ``present``, the classes in each picture (N arrays of int64, each class once), for samplers, and ``id(index)``, the
    ``id`` of a sample without its picture.
    """

    @property
    def channels(self) -> int: ...

    @property
    def classes(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


Transform = Callable[[Sample], Sample]
"""A change to one sample. Random numbers may come from torch's, Python's or NumPy's global generator:
all three are seeded for each sample from (seed, epoch, position)."""


@runtime_checkable
class Combination(Protocol):
    """A transform that makes one sample of several (a mosaic). Only training has such.

    The others come from the source like the sample itself, changed by the transforms before this one, and depend on
    (seed, epoch, position) alone, so no batch, process or worker has a say in them.
    """

    def __call__(self, sample: Sample) -> Sample:
        """Refuses: there are no others.

        Raises:
            ValueError: always; the text says where it belongs.
        """
        ...

    def combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        """The sample with as many others as it takes; each call of ``another`` gives the next one, and draws nothing
        from the generators."""
        ...


class Sampler(Protocol):
    """Which samples make up an epoch, and in which order: a pure function of (seed, epoch, position)."""

    def __len__(self) -> int:
        """Positions in an epoch."""
        ...

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        """From positions of this epoch (int64, any shape) to indices of the source, of the same shape."""
        ...


Mix = Callable[[Batch, DatasetInfo], Batch]
"""A change to the collated batch of one process, seeded from (seed, step, rank) in the same way."""
