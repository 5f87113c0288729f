"""What detectors with object queries have in common: matching, losses of all layers, detections without suppression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert

from opabinia.contracts import DatasetInfo, Detections, Detector, Level, Sizes, Target
from opabinia.contracts.rotated_boxes import upright_boxes
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.query_heads import MatchedObjects, Queries, QueryHead, sides_of
from opabinia.models.detectors.query_keypoints import QueryKeypointHead, QueryKeypointOptions
from opabinia.models.detectors.query_masks import QueryMaskHead, QueryMaskOptions
from opabinia.models.detectors.query_oriented import QueryOrientedHead, QueryOrientedOptions
from opabinia.models.detectors.query_regions import region_keypoints, region_masks
from opabinia.models.losses.matching import (
    COSTS,
    ClassCost,
    Costs,
    Objects,
    Pairs,
    Prediction,
    focal_class_cost,
    global_count,
    match_queries,
    move_pairs,
)
from opabinia.runtime.device import move_tensor


class Outputs(NamedTuple):
    """Predictions of a detector for a batch.

    Attributes:
        last: predictions of the last layer.
        earlier: predictions of the layers before it and of the encoder; empty without objects to compare them with.
        denoising: predictions of all layers for the denoising queries; empty without any.
        denoising_pairs: denoising queries and the objects that they are made from.
        denoising_groups: number of queries per object.
        groups: number of groups of the other queries; each object is matched with a query of each group.
        features: the last layer as heads read it; None if the detector has no heads.
    """

    last: Prediction
    earlier: Sequence[Prediction] = ()
    denoising: Sequence[Prediction] = ()
    denoising_pairs: Pairs | None = None
    denoising_groups: int = 1
    groups: int = 1
    features: QueryFeatures | None = None


class QueryFeatures(NamedTuple):
    """The decoder's last layer as heads read it.

    Attributes:
        embeddings: vectors of the queries (B x Q x C).
        maps: feature maps (B x C x h x w each), the encoder's finest last.
    """

    embeddings: Tensor
    maps: Sequence[Tensor]


class QueryDetector(Detector):
    """A detector whose queries are matched with objects. Subclasses give :meth:`_predict` and :meth:`_layer_losses`.

    Hungarian matching runs on the CPU, once for all layers: a training step waits for the device.

    Attributes:
        costs, class_cost: costs of matching.
        heads: what adds masks and keypoints to the detections, or orients their boxes, by name.
    """

    keypoints_from_boxes = False
    costs: Costs = COSTS
    class_cost: ClassCost = staticmethod(focal_class_cost)

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict()

    def add_heads(
        self,
        dataset_info: DatasetInfo,
        levels: Sequence[Level],
        width: int,
        mask: QueryMaskOptions | None,
        keypoint: QueryKeypointOptions | None,
        oriented: QueryOrientedOptions | None,
        roi_mask: MaskOptions | None = None,
        roi_keypoint: KeypointOptions | None = None,
    ) -> None:
        """Add heads on the queries; null options add none.

        Args:
            dataset_info: description of the training data.
            levels: those of :attr:`QueryFeatures.maps`.
            width: channels of a query.
            mask: options of instance masks.
            keypoint: options of keypoints.
            oriented: options of oriented boxes, in the place of upright ones.
            roi_mask: options of instance masks by the head of Mask R-CNN.
            roi_keypoint: options of keypoints by the head of Keypoint R-CNN.

        Raises:
            ValueError: the training data does not have what a head learns, two heads learn the same, oriented boxes are
                combined with other heads, or see :class:`QueryKeypointHead`.
        """
        given = {"mask": mask, "roi_mask": roi_mask, "keypoint": keypoint, "roi_keypoint": roi_keypoint}
        _check_heads([key for key, options in given.items() if options is not None], oriented is not None, dataset_info)
        if mask is not None:
            self.heads["mask"] = QueryMaskHead(levels, width, mask)
        if roi_mask is not None:
            self.heads["mask"] = region_masks(levels, dataset_info, roi_mask)
        if keypoint is not None:
            self.heads["keypoint"] = QueryKeypointHead(dataset_info.keypoints, width, keypoint)
        if roi_keypoint is not None:
            self.heads["keypoint"] = region_keypoints(levels, dataset_info, roi_keypoint)
        if oriented is not None:
            self.heads["oriented"] = QueryOrientedHead(width, oriented)
        self.masks, self.keypoints, self.oriented = (name in self.heads for name in ("mask", "keypoint", "oriented"))
        self.label_keys = ("boxes", *(key for head in self._heads for key in head.label_keys))

    @property
    def _heads(self) -> list[QueryHead]:
        return cast("list[QueryHead]", list(self.heads.values()))

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Return the losses of the last layer, and of the heads on it; ``loss_auxiliary``, the sum of the former over
        the encoder and earlier layers; and, with denoising queries, ``loss_denoising``, their sum over these. All are
        divided by the number of objects in the batch of all processes, or by 1."""
        objects = collect_objects(targets, shape)
        outputs = self._predict(maps, shape, sizes_as_tensor(sizes, objects.boxes.device), objects)
        number = objects.boxes.new_full((), len(objects.labels))
        count = global_count(number, len(targets)) * outputs.groups
        layers = [outputs.last, *outputs.earlier]
        matches = match_queries(layers, objects, self.costs, self.class_cost, outputs.groups)
        pairs = move_pairs(matches, objects.boxes.device)
        losses, *others = (
            self._layer_losses(layer, matched, objects, count) for layer, matched in zip(layers, pairs, strict=True)
        )
        losses["loss_auxiliary"] = add_losses(others, count)
        losses |= self._head_losses(outputs.last, outputs.features, matches[0], pairs[0], shape, targets, count)
        if outputs.denoising_pairs is not None:
            found, number = outputs.denoising_pairs, count * outputs.denoising_groups
            denoising = [self._layer_losses(layer, found, objects, number) for layer in outputs.denoising]
            losses["loss_denoising"] = add_losses(denoising, count)
        return losses

    def _head_losses(
        self,
        last: Prediction,
        features: QueryFeatures | None,
        matches: Pairs,
        pairs: Pairs,
        shape: tuple[int, int],
        targets: Sequence[Target],
        count: Tensor,
    ) -> dict[str, Tensor]:
        """Return the losses of all heads.

        Args:
            last, features: the last layer.
            matches, pairs: its pairs on the CPU and on the device.
            shape, targets: see :meth:`losses`.
            count: number of pairs in the batch of all processes.
        """
        if features is None or not self.heads:
            return {}
        losses: dict[str, Tensor] = {}
        places = pairs.images, pairs.queries
        queries = Queries(features.embeddings[places], last.boxes[places].detach())
        objects = MatchedObjects(pairs.objects, matches.images.bincount(minlength=len(targets)).tolist())
        for head in self._heads:
            losses |= head.losses(queries, objects, features.maps, shape, targets, count)
        return losses

    def _predict(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None = None
    ) -> Outputs:
        """Return predictions of the last layer; with ``objects`` also those of all others and of denoising queries.

        Args:
            maps, shape: see :meth:`losses`.
            sizes: height and width of each image (int64, B x 2).
            objects: see above.
        """
        raise NotImplementedError

    def _layer_losses(self, prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> dict[str, Tensor]:
        """Return the weighted losses of a layer by name."""
        raise NotImplementedError

    def _scores(self, logits: Tensor) -> Tensor:
        """Return the scores of the classes (B x Q x K)."""
        return logits.sigmoid()

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Return the pairs of query and class with the highest scores, without suppression, with what the heads add."""
        batch = self.detect_batch(maps, shape, sizes_as_tensor(sizes, maps[-1].device))
        columns = [[None] * len(sizes) if values is None else values for values in batch]
        return [Detections(*rows) for rows in zip(*columns, strict=True)]

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections:
        """Return the same number of detections for each of B images: boxes (B x D x 4), scores and labels (B x D), and
        what the heads add.

        Args:
            maps, shape: see :meth:`losses`.
            sizes: height and width of each image (int64, B x 2).
        """
        outputs = self._predict(maps, shape, sizes)
        logits, fractions = (values.float() for values in outputs.last)
        by_class = self._scores(logits)
        classes, count = by_class.shape[-1], by_class.shape[1] * by_class.shape[2]
        scores, pairs = by_class.flatten(1).topk(min(self.max_detections, count))
        rows = (pairs // classes).unsqueeze(-1)
        best = fractions.gather(1, rows.expand(-1, -1, 4))
        boxes = box_convert(best, "cxcywh", "xyxy") * sides_of(shape, best.device)
        ends = sizes.flip(1).repeat(1, 2).unsqueeze(1).to(boxes.dtype)
        detections = Detections(boxes.clamp(min=0).minimum(ends), scores, pairs % classes)
        if outputs.features is not None:
            embeddings, maps = outputs.features
            queries = Queries(embeddings.gather(1, rows.expand(-1, -1, embeddings.shape[-1])), best)
            for head in self._heads:
                detections = head.describe(queries, maps, shape, detections)
        return detections


def _check_heads(keys: Sequence[str], oriented: bool, dataset_info: DatasetInfo) -> None:
    """Check heads by their keys in the config.

    Raises:
        ValueError: see :meth:`QueryDetector.add_heads`.
    """
    for key in keys:
        if key.endswith("mask") and not dataset_info.masks:
            raise ValueError(
                f"{key}: the training data has no masks: write masks: true in its source, or {key}: null for boxes "
                "alone"
            )
        if key.endswith("keypoint") and not dataset_info.keypoints:
            raise ValueError(
                f"{key}: the training data has no keypoints: take a source that has them, such as coco with a file of "
                f"keypoints, or {key}: null for boxes alone"
            )
    for key in ("mask", "keypoint"):
        if {key, f"roi_{key}"} <= set(keys):
            raise ValueError(f"{key} and roi_{key} are two heads for the same: write {key}: null or roi_{key}: null")
    if oriented and keys:
        nulls = " and ".join(f"{key}: null" for key in keys)
        raise ValueError(
            f"oriented: a detector of oriented boxes has no masks and keypoints: write {nulls}, or oriented: null for "
            "upright boxes"
        )


def sizes_as_tensor(sizes: Sizes, device: torch.device) -> Tensor:
    """Return height and width of each image (int64, B x 2)."""
    return move_tensor(torch.tensor(sizes), device)


def collect_objects(targets: Sequence[Target], shape: tuple[int, int]) -> Objects:
    """Return the objects of a batch, their boxes as fractions of the padded images (height and width: ``shape``); of
    oriented ones the upright boxes around them."""
    boxes = torch.cat([upright_boxes(target.boxes) for target in targets])
    fractions = box_convert(boxes / sides_of(shape, boxes.device), "xyxy", "cxcywh")
    return Objects(torch.cat([target.labels for target in targets]), fractions, [len(one.labels) for one in targets])


def add_losses(layers: Sequence[Mapping[str, Tensor]], like: Tensor) -> Tensor:
    """Return the sum of all losses of some layers; 0 if there are none (a tensor as ``like``)."""
    return sum((value for losses in layers for value in losses.values()), torch.zeros_like(like))


def import_transformers(detector: str, model: str) -> Any:
    """Import a model's module of the transformers library, which has the classes of its layers and config.

    Args:
        detector: its name, for the message.
        model: such as ``rt_detr_v2``.

    Raises:
        ValueError: the library is not installed.
    """
    try:
        import_module("transformers")
        return import_module(f"transformers.models.{model}.modeling_{model}")
    except ImportError as error:
        raise ValueError(f"{detector} needs the transformers library: pip install 'opabinia[detr]'") from error


def transformer_sizes(encoder_layers: int, decoder_layers: int, heads: int, ffn_dim: int) -> dict[str, int]:
    """Return the numbers of encoder and decoder under the library's names."""
    encoder = {"encoder_layers": encoder_layers, "encoder_attention_heads": heads, "encoder_ffn_dim": ffn_dim}
    decoder = {"decoder_layers": decoder_layers, "decoder_attention_heads": heads, "decoder_ffn_dim": ffn_dim}
    return encoder | decoder
