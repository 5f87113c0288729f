"""Sources: where samples come from, and the optional abilities of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from opabinia.contracts.data import Batch, Indices, Sample
from opabinia.contracts.optional import OptionalMeta


@runtime_checkable
class Source(Protocol):
    """Samples by index. Reading one must not depend on any other having been read.

    A source may have any of the optional abilities below; the code that can use one asks with ``isinstance``.
    """

    @property
    def channels(self) -> int:
        """Channels of an image: 1 (gray) or 3 (color)."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names; the index is the label. Empty if there are no labels."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


@runtime_checkable
class LabeledSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that knows its labels without reading samples, for samplers that balance classes."""

    @property
    def labels(self) -> NDArray[Any]:
        """int64, N; float32 of 0 and 1, N x K, of a multi-label source."""


@runtime_checkable
class MultiLabelSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that says whether a sample may have several labels; without it, a sample has one."""

    @property
    def multi_label(self) -> bool: ...


@runtime_checkable
class PartlyLabeledSource(Source, Protocol, metaclass=OptionalMeta):
    """A source of which some samples lack labels that others have, for multi-task training."""

    @property
    def partly_labeled(self) -> Sequence[str]:
        """Keys that some samples lack: ``label``, ``boxes`` (and then ``labels`` and all else of objects, too),
        ``masks``, ``keypoints`` (and then ``visibility``, too) or ``mask``."""


@runtime_checkable
class BatchSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that returns whole batches, such as arrays in memory."""

    def batch(self, indices: Indices) -> Batch:
        """Return the collated samples of ``indices`` (int64, B)."""


@runtime_checkable
class EncodedSource(Source, Protocol, metaclass=OptionalMeta):
    """A source of image files whose samples can be had before they are decoded."""

    def encoded(self, index: int) -> Sample:
        """Return a sample without boxes or masks whose image is an encoded one (see ``opabinia.data.decoding``)."""


@runtime_checkable
class FingerprintedSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that can be compared with the source of an earlier run."""

    def fingerprint(self) -> str:
        """Return a text that changes with the samples and their order."""


@runtime_checkable
class FileSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that knows the files of a sample. Those of a batch are fetched from remote storage together."""

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files that are read with a sample (images, maps, videos)."""


@runtime_checkable
class NamedSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that knows the ``id`` of a sample without reading it."""

    def id(self, index: int) -> str: ...


@runtime_checkable
class ShardedSource(Source, Protocol, metaclass=OptionalMeta):
    """A source whose samples lie in shard files, one file after the other."""

    @property
    def shards(self) -> Indices:
        """Number of samples in each file (int64)."""


@runtime_checkable
class ConcatenatedSource(Source, Protocol, metaclass=OptionalMeta):
    """Several sources, one after the other."""

    @property
    def starts(self) -> Sequence[int]:
        """Index of the first sample of each source."""


@runtime_checkable
class SizedSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that knows the sizes of its images without decoding them."""

    @property
    def sizes(self) -> Indices:
        """Height and width of each image (int64, N x 2)."""


@runtime_checkable
class IdentitySource(Source, Protocol, metaclass=OptionalMeta):
    """A source whose labels are identities, for re-identification and retrieval."""

    @property
    def camera_count(self) -> int:
        """Number of cameras; 0 if unknown."""

    @property
    def view_count(self) -> int:
        """Number of viewpoints (front, side ...); 0 if unknown."""


@runtime_checkable
class CameraSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that knows the camera of each image. The attribute may be None: then it does not."""

    @property
    def cameras(self) -> Indices:
        """int64, N, from 0."""


@runtime_checkable
class ViewpointSource(Source, Protocol, metaclass=OptionalMeta):
    """A source that knows the viewpoint of each image. The attribute may be None: then it does not."""

    @property
    def views(self) -> Indices:
        """int64, N, from 0."""


@runtime_checkable
class QuerySource(Source, Protocol, metaclass=OptionalMeta):
    """A retrieval source split into queries and gallery. The attribute may be None: then it is not split."""

    @property
    def queries(self) -> NDArray[Any]:
        """True for a query, False for an image of the gallery (bool, N)."""


@runtime_checkable
class DetectionSource(Source, Protocol, metaclass=OptionalMeta):
    """A source of images with annotated objects. A class that inherits from it gets the values below as defaults.

    Attributes:
        has_boxes: whether samples have bounding boxes.
        has_masks: whether they have instance masks.
        keypoints: names of the keypoints of an object; empty if there are none.
        category_ids: the id of each class in the annotation file; results are written with it.
        frequencies: ``r``, ``c`` or ``f`` (rare, common, frequent) for each class (LVIS); empty if unknown.
    """

    has_boxes: bool = True
    has_masks: bool = False
    keypoints: Sequence[str] = ()
    category_ids: Sequence[int] = ()
    frequencies: Sequence[str] = ()


@runtime_checkable
class SegmentationSource(Source, Protocol, metaclass=OptionalMeta):
    """A source of images with a segmentation map. A class that inherits from it gets the values below as defaults.

    Attributes:
        has_maps: whether samples have a segmentation map.
        thing_labels: of panoptic data, the labels of the classes with countable objects; empty if unknown.
        colors: the color of each class, red, green, blue (0 to 255), for drawing; empty takes a palette of its own.
    """

    has_maps: bool = True
    thing_labels: Sequence[int] = ()
    colors: Sequence[tuple[int, int, int]] = ()


@runtime_checkable
class OrientedSource(Source, Protocol, metaclass=OptionalMeta):
    """A :class:`DetectionSource` that says whether its boxes are oriented (rotated); without it, they are upright."""

    @property
    def oriented(self) -> bool: ...


@runtime_checkable
class ImageClassesSource(Source, Protocol, metaclass=OptionalMeta):
    """A source of annotated objects that knows the classes in each image, for samplers that repeat rare classes."""

    @property
    def present(self) -> Sequence[Indices]:
        """For each of N images the classes in it, each once (int64)."""


@runtime_checkable
class RelabelingSource(Source, Protocol, metaclass=OptionalMeta):
    """A source of annotated objects whose classes can be changed, to unite it with other sources."""

    def relabeled(self, classes: tuple[str, ...], new_labels: Indices) -> Source:
        """Return the same images with other classes; ``new_labels`` has the new label of each of its classes."""
