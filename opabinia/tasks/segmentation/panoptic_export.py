"""Export of panoptic segmentation: maps of segments, merged in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from torch import Tensor

from opabinia.contracts import IGNORE_LABEL, Features, Predictions
from opabinia.contracts.export import relative_difference
from opabinia.models.decoders.layers import resize_like
from opabinia.models.panoptic import combine_instances, merge_queries, top_instances
from opabinia.tasks.dense_base import PaddedExport

OUTPUTS = ("segmentation", "segments", "segment_labels", "segment_scores", "boxes", "scores", "labels", "masks")


class PanopticExport(PaddedExport):
    """Segments in images padded to one size: ``segmentation`` (uint8, B x H x W: the class of each pixel, 255: none),
    ``segments`` (int32, B x H x W: the number of its segment, from 1; 0: none), ``segment_labels`` (int64, B x S: class
    of segment 1, 2 ...; -1 pads) and ``segment_scores`` (B x S); and the objects as in the export of detection:
    ``boxes``, ``scores``, ``labels``, ``masks``."""

    output_names = OUTPUTS

    def outputs(self, features: Features, image: Tensor, image_sizes: Tensor | None = None) -> Predictions:
        """Return predictions by the names above."""
        assert image_sizes is not None
        task, shape = self.task, (image.shape[-2], image.shape[-1])
        maps = features["pyramid"]
        rows, columns = (torch.arange(side) for side in shape)
        area = (rows < image_sizes[:, :1])[:, :, None] & (columns < image_sizes[:, 1:])[:, None]
        if task.detector:
            maps = task.detector.pyramid(maps)
            found = task.detector.detect_batch(maps, shape, image_sizes)
            found = found._replace(labels=torch.where(found.labels < 0, -1, task.things[found.labels.clamp(min=0)]))
            classes = task.to_class[resize_like(task.decoder(maps), image).argmax(1)]
            segments = combine_instances(found, classes, **task.merging, area=area)
        else:
            logits, masks = task.decoder.query_masks(maps)[0]
            pixels = resize_like(masks, image)
            found = top_instances(logits, pixels.where(area[:, None], -1), task.dataset_info.thing_labels)
            segments = merge_queries(logits, pixels, **task.merging, area=area)
        labels = torch.cat([torch.full_like(segments.labels[:, :1], IGNORE_LABEL), segments.labels], 1)
        classes = labels.gather(1, segments.map.long().flatten(1)).view_as(segments.map).to(torch.uint8)
        return dict(zip(OUTPUTS, (classes, *segments, *found[:4]), strict=True))

    def difference(self, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> float:
        """Return the larger one of the share of pixels with another class or segment, and the difference of the scores
        of segments and objects, best first."""
        height, width = expected["segments"].shape[1:]
        pairs = [(expected[name], actual[name][:, :height, :width]) for name in ("segmentation", "segments")]
        if any(first.shape != second.shape for first, second in pairs):
            return inf
        wrong = torch.stack([first != second for first, second in pairs]).any(0)
        differences = [float(wrong.float().mean())]
        for name in ("segment_scores", "scores"):
            count = min(expected[name].shape[1], actual[name].shape[1])  # the rest is padding
            differences.append(relative_difference(expected[name][:, :count], actual[name][:, :count]))
        return max(differences)
