"""Instance segmentation by mask classification: Mask2Former as a detector."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    Count,
    DatasetInfo,
    DecoderPart,
    Detections,
    Detector,
    Level,
    MaskTargets,
    Sizes,
    Target,
)
from opabinia.models.decoders.mask2former import Mask2Former
from opabinia.models.detectors.queries import sizes_as_tensor
from opabinia.models.layers import image_area
from opabinia.models.panoptic import top_instances


@register.detector(name="mask2former")
class MaskClassifier(Detector):
    """A mask classifier as a detector: each object is matched with a query, which learns its class and its mask (Cheng
    et al. 2022, Mask2Former).

    A detection is a pair of query and class; its score is the probability of the class times the mean probability of
    the pixels of the mask, its box is that of the mask (:func:`opabinia.models.panoptic.top_instances`).

    Args:
        levels: feature levels of the backbone.
        dataset_info: description of the training data, for its classes.
        decoder: the mask classifier, with its losses.
        max_detections: per image.

    Raises:
        ValueError: the decoder is no mask classifier, or see there.
    """

    masks = True
    label_keys = ("boxes", "masks")

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        decoder: DecoderPart = Mask2Former,
        max_detections: Count = 100,
    ) -> None:
        super().__init__()
        self.decoder = decoder(levels, len(dataset_info.classes))
        if not self.decoder.own_losses:
            raise ValueError("decoder: it does not find objects; take a mask classifier such as mask2former")
        self.compiled_modules = rf"decoder\.({self.decoder.compiled_modules})"
        self.max_detections, self._classes = max_detections, range(len(dataset_info.classes))

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Return the losses of the decoder."""
        if any(target.masks is None for target in targets):
            raise ValueError("an image without masks came to a detector that learns them: masks: true in the source")
        segments = [MaskTargets(target.labels, target.masks.dense()) for target in targets if target.masks is not None]
        return self.decoder.losses(self.decoder.query_masks(maps), segments)

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Return detections with masks, image by image: the masks of all queries of a batch would take much memory."""
        logits, masks = self.decoder.query_masks(maps)[0]
        rows = []
        for image in zip(logits, masks, sizes_as_tensor(sizes, logits.device), strict=True):
            classes, pixels, size = (values[None] for values in image)
            found = self._instances(classes, pixels, size, shape)
            count = int((found.labels[0] >= 0).sum())
            rows.append(Detections(*(values[0, :count] for values in found if values is not None)))
        return rows

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections:
        """Return the same number of detections with masks for each of B images of some sizes (int64, B x 2); label -1
        pads them."""
        return self._instances(*self.decoder.query_masks(maps)[0], sizes, shape)

    def _instances(self, logits: Tensor, masks: Tensor, sizes: Tensor, shape: tuple[int, int]) -> Detections:
        pixels = F.interpolate(masks.float(), size=shape, mode="bilinear", align_corners=False)
        inside = image_area(shape, sizes, sizes.device)
        return top_instances(logits.float(), pixels.where(inside, -1), self._classes, self.max_detections)
