"""Samples, batches, dataset info, and the contracts of transforms and samplers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts.ranges import ChannelCount
from opabinia.contracts.tracking import FrameTracks

Sample = dict[str, Any]
"""One sample.

All: ``image`` (uint8, or float32 in 0 to 1, C x H x W, a ``tv_tensors.Image``), ``id`` (str, unique in its source).

Classification: ``label`` (int; float32 of 0 and 1, K, of multi-label data). Identities also have ``camera`` and
``view`` (int, from 0; if known) and, in retrieval data, ``query`` (bool): True for a query, False for the gallery.

Detection, for N objects, in pixels of ``image``: ``boxes`` (a ``tv_tensors.BoundingBoxes``: float32, N x 4: left, top,
right, bottom; oriented ones N x 5, torchvision's ``CXCYWHR``: center x, center y, width, height, counterclockwise
rotation in degrees, not clipped to the image), ``labels`` (int64, N) instead of ``label``; if annotated ``masks`` (a
``tv_tensors.Mask``: uint8 of 0 and 1, N x H x W) and ``keypoints`` (a ``tv_tensors.KeyPoints``: float32, N x P x 2)
with ``visibility`` (int64, N x P: 0 unknown, 1 hidden, 2 visible) and ``flip_pairs`` (list of P: the index of each
keypoint's counterpart in a mirrored image). ``original_size`` is the (height, width) of the image as read,
``ground_truth`` (:class:`GroundTruth`) what evaluators compare with. Objects that must not be trained on (crowds) are
in ``ground_truth`` only.

Segmentation: ``mask`` (a ``tv_tensors.Mask``: uint8, H x W), the class of each pixel, 255 for pixels without a label,
and ``ground_truth_map`` (:class:`opabinia.contracts.GroundTruthMap`), what evaluators compare with. Panoptic data has
the objects of countable classes as detection data, too. Other dense labels are a ``tv_tensors.Mask`` of H x W, too.

Regression: ``value`` (float).

The type of a value decides what is transformed and collated with the image: ``tv_tensors.BoundingBoxes``, ``KeyPoints``
and ``Mask`` of N x H x W have a row for each object, a ``Mask`` of H x W is a map. Other tensors with a row for each
object, and other ignore values, are declared by :func:`opabinia.data.register_sample_key`.

Video: ``video`` (a :class:`Video`, not decoded yet) instead of ``image``, until the transform ``clip`` replaces it by
``image`` (T x C x H x W, a ``tv_tensors.Video``). ``flip_changes_label`` (bool) is True if a mirrored clip would belong
to another class, ``shape`` ((frames, height, width) or None) the size that the batch needs, ``view`` ((i, n), (j, m))
says that this is clip i of n over time and crop j of m in space; the ``id`` is then the video's."""

Batch = dict[str, Any]
"""Collated samples. A list has B entries; a tuple has V tensors with B rows each, one per view.

``image`` (uint8, or float in 0 to 1, B x C x H x W; clips: B x T x C x H x W), ``label`` (int64, B; float, B x K, of
multi-label data and after mixing), ``id`` (list of B), ``index`` (int64, B: the index of each sample, of an ``indexed``
source). With multi-view transforms ``views`` (tuple of V, B x C x h x w each) replaces ``image``, and ``patch_masks``
(tuple, bool, B x N each) marks the masked patches of the first views, if drawn. Detection data has lists of B:
``boxes``, ``labels`` and so on as in a sample, as plain tensors, but ``masks`` as runs of pixels of the padded image
(int32, N x R x 2: ``runs`` of :class:`InstanceMasks`), ``image_sizes`` ((height, width) of each image within the padded
batch, at its upper left corner) and ``original_size``. Maps are stacked (B x H x W); where images differ in
size (``Task.size_multiple``) they are padded like the images, with their ignore value. Batches to train on have no
ground truth for evaluators. ``missing`` (list of B, of partly labeled data in multi-task training) has the keys of the
labels that each sample lacks, such as ``"boxes mask"``; its labels of these keys are empty.

A batch of multi-task training has ``streams``, a batch of each stream by name; ``id`` (list of all samples);
``global_batch`` and ``global_batches`` (by stream). A micro-batch of it also has ``counts``, the number of samples of
each stream that count. A batch that evaluates one task of a multi-task run has its name in ``task``."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataFacts:
    """Facts about samples: of a source, and of a dataset, whose images have gone through the transforms.

    Attributes:
        classes: class names; the index is the label. Empty if there are no labels.
        multi_label: a sample may have several labels, or none.

        boxes, masks, oriented: samples have objects with bounding boxes, with instance masks, with rotated boxes.
        keypoints: names of the keypoints of an object.
        category_ids: the id of each class in the annotation file; results are written with it.
        frequencies: ``r``, ``c`` or ``f`` (rare, common, frequent) for each class (LVIS).

        maps: samples have a segmentation map.
        thing_labels: of panoptic data, the labels of the classes with countable objects.
        colors: red, green, blue (0 to 255) of each class, for drawing.
    """

    classes: tuple[str, ...] = ()
    multi_label: bool = False

    boxes: bool = False
    masks: bool = False
    oriented: bool = False
    keypoints: tuple[str, ...] = ()
    category_ids: tuple[int, ...] = ()
    frequencies: tuple[str, ...] = ()

    maps: bool = False
    thing_labels: tuple[int, ...] = ()
    colors: tuple[tuple[int, int, int], ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return the facts above, without those of subclasses, by name."""
        return {fact.name: getattr(self, fact.name) for fact in fields(DataFacts)}


@dataclass(frozen=True)
class DatasetInfo(DataFacts):
    """Facts about a dataset that parts are built with, so that no config repeats them. Empty ones are unknown.

    Attributes:
        samples: number of training samples.
        channels: channels of an image after the transforms.
        cameras, views: number of cameras and viewpoints; 0 if unknown.
        queries: whether the dataset is split into queries and gallery.
        label_shares: share of the samples that have each label, of multi-label data.
        image_counts: number of images with objects of each class.
        streams: description of each stream of multi-task training data, by name; ``samples`` is then their sum.
        task: name of the task of a multi-task run that the dataset evaluates; empty otherwise.
    """

    samples: Annotated[int, Ge(0)]
    _: KW_ONLY
    channels: ChannelCount = 3
    cameras: int = 0
    views: int = 0
    queries: bool = False
    label_shares: tuple[float, ...] = ()
    image_counts: tuple[int, ...] = ()
    streams: dict[str, DatasetInfo] = field(default_factory=dict)
    task: str = ""


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """Annotations of the N objects in an image, in pixels of the original image, as evaluators need them.

    Attributes:
        image_id: the image's id or name in the annotation file.
        size: height and width of the original image.
        ids: ids of the annotations in the file (int64, N).
        boxes: left, top, width, height (float64, N x 4); of oriented boxes the upright box around the corners.
        labels: class labels (int64, N).
        areas: in pixels (float64, N).
        crowd: whether the annotation stands for several objects, or is marked difficult: it is not trained on and
            ignored in evaluation (bool, N).
        segments: for each object polygons (lists of x, y, x, y ...) or run-length encoding ({"size": [height, width],
            "counts": ...}), as in COCO; None if there are none.
        keypoints: x, y, visibility (float64, N x P x 3).
        absent: classes that are known not to be in the image (LVIS).
        not_exhaustive: classes of which not all objects are annotated (LVIS).
        corners: x, y of the four corners of oriented boxes as annotated, in order around the object, which need not be
            an exact rectangle (float64, N x 4 x 2); None for upright boxes.
        track: video and number of the frame, and its boxes with their tracks; None for images.
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
    corners: NDArray[np.float64] | None = None
    track: FrameTracks | None = None


@runtime_checkable
class Video(Protocol):
    """A video whose frames are decoded on request, and only those.

    Frames are numbered in display order. In a video with a variable frame rate equal steps in number are not equal
    steps in time. ``read`` closes every file that it opens.

    Attributes:
        path: the name that messages use.
    """

    path: str

    @property
    def frames(self) -> int:
        """Number of frames according to the container, without decoding; at least 1."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""

    @property
    def fps(self) -> float:
        """Average number of frames per second."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as displayed, with the rotation flag applied."""

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        """Decode frames by number (uint8, T x C x H x W), in the given order; a number may occur several times.

        A broken frame is replaced by the last good one before it, with one warning.

        Args:
            indices: from 0 to ``frames`` - 1.
            short_side: downscale larger frames to this length of the shorter side, in pixels.

        Raises:
            OSError: the file is missing or not readable.
            ValueError: it is not a video, nothing can be decoded, or a frame number is out of range. The text names
                the file.
        """


class DataMismatch(ValueError):
    """The data does not fit a part of the config, found out at run time; the text is complete for users."""

    exit_status = 2


Transform = Callable[[Sample], Sample]
"""A change to one sample. Random numbers may come from the global generator of torch, Python or NumPy: all three are
seeded for each sample from (seed, epoch, position)."""


@runtime_checkable
class CombiningTransform(Protocol):
    """A transform that combines several samples into one, such as mosaic. For training only.

    The additional samples come from the same source, after the transforms before this one, and depend on (seed, epoch,
    position) alone, not on the batch, process or worker.
    """

    def __call__(self, sample: Sample) -> Sample:
        """Raise: without additional samples there is nothing to combine.

        Raises:
            ValueError: always; the text says where the transform belongs.
        """

    def combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        """Return the combined sample. Each call of ``another`` returns the next additional sample and draws nothing
        from the random generators."""


class Sampler(Protocol):
    """The samples of an epoch and their order: a pure function of (seed, epoch, position)."""

    def __len__(self) -> int:
        """Number of positions in an epoch."""

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        """Return a function from positions of this epoch (int64, any shape) to indices of the source (same shape)."""


Mix = Callable[[Batch, DatasetInfo], Batch]
"""A change to the collated batch of one process, seeded from (seed, step, rank) in the same way."""


NO_CLASS, CLASS_SEPARATOR = "no class", ";"
"""A sample of multi-label data without a label, and the text between the names of several classes in lists."""


def label_names(sample: Sample, classes: Sequence[str]) -> list[str]:
    """Return the names of the classes of a sample, one or, in multi-label data, several; ``label: VALUE`` if it is no
    class; empty without a label.

    Args:
        sample: as the source gives it, before transforms.
        classes: class names of the source.
    """
    if "label" not in sample:
        return []
    label = torch.as_tensor(sample["label"])
    if label.ndim == 1 and len(label) == len(classes):
        return [classes[number] for number in label.nonzero().flatten().tolist()] or [NO_CLASS]
    if not label.ndim and not label.is_floating_point() and 0 <= int(label) < len(classes):
        return [classes[int(label)]]
    return [f"label: {label.tolist()}"]
