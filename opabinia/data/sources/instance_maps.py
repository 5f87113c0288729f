"""Instance segmentation with a map for each image, whose values number the objects."""

from __future__ import annotations

import os

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source
from opabinia.data.sources.file_names import decode_name
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.image_headers import read_sizes
from opabinia.data.sources.map_names import MapNaming, pair_with_maps
from opabinia.data.sources.object_masks import read_objects


@register.source
def instance_maps(
    *,
    root: InputPath,
    images: str = "images",
    labels: str = "labels",
    image_suffix: str | None = None,
    label_suffix: str = ".png",
    image_prefix: str = "",
    label_prefix: str = "",
    class_name: str = "object",
    masks: bool = False,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with a map each, in which 0 is background and every other value the pixels of one object, as Penn-Fudan,
    Cellpose and StarDist have them: ``labels/1.png`` for ``images/1.jpg``.

    Maps are gray (8 or 16 bits), have a palette, of which the indices count, or a color for each object and black for
    the background. All objects are of one class. All maps are read when the source is made. A sample's id is the path
    of its image below the root.

    Args:
        root: the folder that holds both.
        images: the folder with images, and its subfolders.
        labels: the folder with maps in the same subfolders; it may be that of the images, if ``label_suffix`` or
            ``label_prefix`` distinguishes them.
        image_suffix: end of the names of images, which is replaced by ``label_suffix``; others are skipped. null: any
            extension of an image.
        label_suffix: end of the names of maps.
        image_prefix: beginning of the names of images, which is replaced by ``label_prefix``; others are skipped.
        label_prefix: beginning of the names of maps.
        class_name: the class of all objects.
        masks: instance masks; otherwise only their bounding boxes.
        empty: ``drop`` drops images without objects.
        broken: for images whose map is missing, unreadable or of another size, and those that cannot be read:
            ``error`` and ``clip`` raise; ``drop`` and ``fix`` drop them.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing, there are no images, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds images and maps")
    naming = MapNaming(image_prefix, image_suffix, label_prefix, label_suffix)
    image_files, map_files = pair_with_maps(root, images, labels, naming)
    listing = DetectionListing(file=root / labels, root=root, classes=[class_name], masks=masks, noun="object")
    sizes = read_sizes(root, image_files, listing.errors).tolist()
    for name, file, size, found in zip(
        image_files, map_files, sizes, read_objects(os.fsencode(root), map_files), strict=True
    ):
        if isinstance(found, ValueError):
            listing.errors.add(kinds.BAD_MASK, decode_name(file), "", found)
        elif all(size) and list(found.size) != size:
            sides = f"{found.size[1]} x {found.size[0]} pixels, the image {size[1]} x {size[0]}"
            listing.errors.add(kinds.BAD_MASK, decode_name(file), "", sides)
        elif all(size):  # others are unreadable, and reported
            image = listing.add_image(name, (size[0], size[1]))
            for number, mask in enumerate(found.objects, 1):
                listing.add(image, number, class_name, mask.box, rle=mask.counts, area=mask.area)
    return build_source(listing, broken=broken, empty=empty, channels=channels)
