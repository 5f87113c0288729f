"""The profile of a dataset: the facts from which a recipe is planned."""

from __future__ import annotations

from dataclasses import dataclass

Quantiles = tuple[float, float, float, float, float]
"""Minimum, 10 %, median, 90 % and maximum."""


@dataclass(frozen=True, kw_only=True)
class DatasetProfile:
    """Facts about the training data and the size of the validation data. None and empty ones do not apply.

    Attributes:
        samples, val_samples: number of images or videos.
        examined: number of training samples whose files were read, chosen by a seed if there are more.
        classes: names of the classes.
        per_class: number of training samples of each class; of objects for detection; empty without labels.
        multi_label: a sample may have several classes.
        gray: all images that were read are gray.
        bits: bits of a channel, 8 or 16.
        short_sides, long_sides: of the images, in pixels.
        objects_per_image: number of annotated objects.
        object_sides: square root of the area of the objects, in pixels.
        relative_object_sides: the same, divided by the square root of the area of their image.
        oriented, masks, keypoints: the objects have these.
        pixel_shares: for segmentation, share of the labeled pixels of each class in the maps that were read.
        seconds, fps: of the videos.
        identities: number of identities to train on.
        images_per_identity: number of training images of an identity.
        cameras: number of cameras.
        duplicates: training samples that are a near-duplicate of another one among those that were read.
        leaks: validation samples that are a near-duplicate of a training sample among those that were read.
        unreadable: files that cannot be read, at most 20.
    """

    samples: int
    val_samples: int
    examined: int
    classes: tuple[str, ...] = ()
    per_class: tuple[int, ...] = ()
    multi_label: bool = False
    gray: bool = False
    bits: int = 8
    short_sides: Quantiles | None = None
    long_sides: Quantiles | None = None
    objects_per_image: Quantiles | None = None
    object_sides: Quantiles | None = None
    relative_object_sides: Quantiles | None = None
    oriented: bool = False
    masks: bool = False
    keypoints: bool = False
    pixel_shares: tuple[float, ...] = ()
    seconds: Quantiles | None = None
    fps: Quantiles | None = None
    identities: int = 0
    images_per_identity: Quantiles | None = None
    cameras: int = 0
    duplicates: int = 0
    leaks: int = 0
    unreadable: tuple[str, ...] = ()
