"""Detectors that are whole models of the transformers library on our backbones: DETR, Deformable DETR, RF-DETR."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import ClassRows, Count, DataMismatch, DatasetInfo, Fraction, Level, NonNegative
from opabinia.models.detectors.queries import (
    Outputs,
    QueryDetector,
    QueryFeatures,
    import_transformers,
    transformer_sizes,
)
from opabinia.models.detectors.query_keypoints import QueryKeypointOptions
from opabinia.models.detectors.query_masks import QueryMaskOptions
from opabinia.models.detectors.query_oriented import QueryOrientedOptions
from opabinia.models.detectors.rt_detr import check_width
from opabinia.models.layers import image_area
from opabinia.models.losses.boxes import box_losses
from opabinia.models.losses.focal import iou_aware_loss, no_object_cross_entropy, query_focal_loss
from opabinia.models.losses.matching import (
    ClassCost,
    Costs,
    Objects,
    Pairs,
    Prediction,
    focal_class_cost,
    global_count,
    softmax_class_cost,
)


@dataclass(frozen=True)
class Criterion:
    """How the predictions of a model are compared with objects.

    Attributes:
        class_loss: class loss of a layer; its last argument is the number of objects.
        class_cost: class cost of matching.
        costs: weights of the costs of matching.
        weights: weights of the class loss, the L1 loss and the generalized IoU loss of boxes.
    """

    class_loss: Callable[[Prediction, Pairs, Objects, Tensor], Tensor]
    class_cost: ClassCost
    costs: Costs
    weights: tuple[float, float, float]


class LibraryDetector(QueryDetector):
    """A model of the transformers library whose backbone is ours: it is given feature maps, and its predictions are
    compared by our losses. The library masks the padding.

    Args:
        model: the library's model for object detection.
        backbone: name of the :class:`opabinia.models.detectors.library_maps.GivenMaps` in it.
        levels: indices of the feature maps that it takes.
        criterion: its losses and costs.
        max_detections: per image.
    """

    # Encoders and models would not be one graph: in training the library checks values, and it takes locks.
    compiled_modules = (
        r"model\.model\.(encoder\.layers\.\d+\.(self_attn|mlp)|decoder\.layers\.\d+|input_proj\.\d+)"
        r"|model\.model\.(backbone\.projector|enc_output\.\d+)|model\.(bbox_predictor|bbox_embed(\.\d+)?)"
        r"|heads\.mask\.(blocks\.\d+|query_features_block)|heads\.(keypoint|oriented)\.layers"
    )
    class_layers: Mapping[str, ClassRows] = {
        "model.class_embed": ClassRows(),
        "model.model.enc_out_class_embed": ClassRows(),
        "model.class_labels_classifier": ClassRows(others=1),
    }

    def __init__(self, model: Any, backbone: str, levels: slice, criterion: Criterion, max_detections: int) -> None:
        super().__init__()
        # The library calls this function with the predictions of all layers.
        model.loss_function = _keep_predictions
        self.model = model
        self._backbone, self._levels, self._criterion = backbone, levels, criterion
        self.costs, self.class_cost = criterion.costs, criterion.class_cost
        self.max_detections = max_detections

    def _predict(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None = None
    ) -> Outputs:
        if objects is None:
            output = self._run(maps, shape, sizes)
            return Outputs(Prediction(output.logits, output.pred_boxes), features=self._features(output))
        output = self._run(maps, shape, sizes, labels=[])
        layers: list[Prediction] = output.auxiliary_outputs
        return Outputs(layers[0], layers[1:], features=self._features(output))

    def _features(self, output: Any) -> QueryFeatures | None:
        """Return what heads read of the library's output; None if the detector has no heads."""
        return None

    def _run(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, **options: Any) -> Any:
        """Return the library's output for feature maps."""
        mask = image_area(shape, sizes, sizes.device)[:, 0]
        backbone = self.model.get_submodule(self._backbone)
        backbone.maps = maps[self._levels]
        try:
            pixels = maps[-1].new_zeros(()).expand(sizes.shape[0], 3, *shape)
            return self.model(pixels, pixel_mask=mask.long(), **options)
        finally:
            backbone.maps = ()

    def _layer_losses(self, prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> dict[str, Tensor]:
        box, giou = box_losses(prediction, pairs, objects, count)
        losses = self._criterion.class_loss(prediction, pairs, objects, count), box, giou
        names = ("loss_ce", "loss_bbox", "loss_giou")
        rows = zip(names, losses, self._criterion.weights, strict=True)
        return {name: loss * weight for name, loss, weight in rows}


def _keep_predictions(
    logits: Tensor,
    labels: Any,
    device: Any,
    boxes: Tensor,
    config: Any,
    all_logits: Tensor,
    all_boxes: Tensor,
    first_logits: Tensor | None = None,
    first_boxes: Tensor | None = None,
    **others: Any,
) -> tuple[None, None, list[Prediction]]:
    """Return the predictions of all layers, the last one first, in the place of the library's loss.

    Args:
        logits, labels, device, boxes, config, others: not needed.
        all_logits, all_boxes: logits and boxes of the decoder's layers (L x B x Q x ...).
        first_logits, first_boxes: logits and boxes of the encoder (B x Q x ...).
    """
    layers = [Prediction(*layer) for layer in zip(all_logits.flip(0), all_boxes.flip(0), strict=True)]
    if first_logits is not None and first_boxes is not None:
        layers.append(Prediction(first_logits, first_boxes))
    return None, None, layers


class GroupDetector(LibraryDetector):
    """A :class:`LibraryDetector` with groups of queries, which are selected from the positions of the feature maps."""

    def _predict(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None = None
    ) -> Outputs:
        positions, queries = maps[-1].shape[-2] * maps[-1].shape[-1], self.model.config.num_queries
        if positions < queries:
            raise DataMismatch(
                f"images of {shape[0]} x {shape[1]} have {positions} positions, and rf_detr selects num_queries = "
                f"{queries} of them; set task.detector.num_queries to less, or use larger images"
            )
        outputs = super()._predict(maps, shape, sizes, objects)
        return outputs._replace(groups=outputs.last.logits.shape[1] // queries)

    def _features(self, output: Any) -> QueryFeatures:
        return QueryFeatures(output.last_hidden_state, [output.backbone_features])


class SoftmaxDetector(LibraryDetector):
    """DETR: the last class is "no object", and each query gives its best class only.

    The predictions of the decoder's earlier layers are computed here: with its ``auxiliary_loss`` the library would
    normalize the output of each layer before the next, which changes the network.
    """

    def _predict(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None = None
    ) -> Outputs:
        output = self._run(maps, shape, sizes, output_hidden_states=objects is not None)
        last = Prediction(output.logits, output.pred_boxes)
        if objects is None:
            return Outputs(last)
        states = [self.model.model.decoder.layernorm(state) for state in output.decoder_hidden_states[1:-1]]
        head, boxes = self.model.class_labels_classifier, self.model.bbox_predictor
        return Outputs(last, [Prediction(head(state), boxes(state).sigmoid()) for state in states])

    def _scores(self, logits: Tensor) -> Tensor:
        scores = logits.softmax(-1)[..., :-1]
        return scores.where(scores == scores.amax(-1, keepdim=True), 0)


@register.detector
def detr(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    channels: Count = 256,
    num_queries: Count = 100,
    encoder_layers: Count = 6,
    decoder_layers: Count = 6,
    attention_heads: Count = 8,
    ffn_dim: Count = 2048,
    dropout: Fraction = 0.1,
    no_object_weight: NonNegative = 0.1,
    box_weight: NonNegative = 5.0,
    giou_weight: NonNegative = 2.0,
) -> LibraryDetector:
    """DETR of the transformers library (the extra ``opabinia[detr]``; Carion et al. 2020) on the coarsest feature map.

    Losses: ``loss_ce``, divided by the weights of all queries, ``loss_bbox`` and ``loss_giou``, divided by the number
    of objects in the batch of all processes; ``loss_auxiliary``, their sum over the earlier layers.

    Args:
        levels: feature levels of the backbone.
        dataset_info: description of the training data, for its classes.
        channels: number of channels of encoder and decoder; a multiple of ``attention_heads`` and 4.
        num_queries: number of object queries, and the largest number of detections.
        encoder_layers: transformer layers.
        decoder_layers: transformer layers.
        attention_heads: number of heads of every attention layer.
        ffn_dim: width of the feed-forward networks.
        dropout: in encoder and decoder.
        no_object_weight: weight of "no object" in the cross entropy.
        box_weight: weight of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: weight of the generalized IoU loss.

    Raises:
        ValueError: the transformers library is not installed, or ``channels`` cannot be divided.
    """
    library, maps = import_transformers("detr", "detr"), _import_maps()
    check_width(channels, attention_heads)
    config = library.DetrConfig(
        backbone_config=maps.GivenMapsConfig(channels=[levels[-1].channels]),
        num_labels=len(dataset_info.classes),
        num_queries=num_queries,
        d_model=channels,
        **transformer_sizes(encoder_layers, decoder_layers, attention_heads, ffn_dim),
        dropout=dropout,
    )

    def class_loss(prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> Tensor:
        total, weights = no_object_cross_entropy(prediction, pairs, objects, no_object_weight)
        return total / global_count(weights, len(prediction.logits))

    costs = Costs(label=1.0, box=box_weight, giou=giou_weight)
    criterion = Criterion(class_loss, softmax_class_cost, costs, (1.0, box_weight, giou_weight))
    model = library.DetrForObjectDetection(config)
    _init_linear(model.model.encoder, model.model.decoder)
    return SoftmaxDetector(model, "model.backbone.model", slice(-1, None), criterion, num_queries)


@register.detector
def deformable_detr(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    channels: Count = 256,
    num_queries: Count = 300,
    num_levels: Count = 4,
    encoder_layers: Count = 6,
    decoder_layers: Count = 6,
    attention_heads: Count = 8,
    sampling_points: Count = 4,
    ffn_dim: Count = 1024,
    dropout: Fraction = 0.1,
    refine_boxes: bool = False,
    class_weight: NonNegative = 2.0,
    box_weight: NonNegative = 5.0,
    giou_weight: NonNegative = 2.0,
    max_detections: Count = 100,
) -> LibraryDetector:
    """Deformable DETR of the transformers library (the extra ``opabinia[detr]``; Zhu et al. 2021), without its
    two-stage variant, whose loss of the encoder the library does not have.

    Losses, divided by the number of objects in the batch of all processes: ``loss_ce`` (focal loss), ``loss_bbox``,
    ``loss_giou``; ``loss_auxiliary``, their sum over the earlier layers.

    Args:
        levels: feature levels of the backbone; the last three are used.
        dataset_info: description of the training data, for its classes.
        channels: number of channels of encoder and decoder; a multiple of ``attention_heads`` and 32.
        num_queries: number of object queries.
        num_levels: feature maps; those that the backbone does not have are made from its coarsest one.
        encoder_layers: transformer layers.
        decoder_layers: transformer layers.
        attention_heads: number of heads of every attention layer.
        sampling_points: per head, query and feature map.
        ffn_dim: width of the feed-forward networks.
        dropout: in encoder and decoder.
        refine_boxes: every layer of the decoder refines the boxes of the one before.
        class_weight: weight of the focal loss, and of its cost in matching.
        box_weight: weight of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: weight of the generalized IoU loss.
        max_detections: per image.

    Raises:
        ValueError: the transformers library is not installed, or ``channels`` cannot be divided.
    """
    library, maps = import_transformers("deformable_detr", "deformable_detr"), _import_maps()
    if channels % math.lcm(32, attention_heads):
        raise ValueError(f"channels: a multiple of 32 and of attention_heads ({attention_heads}), not {channels}")
    channels_given = [level.channels for level in levels[-min(3, num_levels) :]]
    config = library.DeformableDetrConfig(
        backbone_config=maps.GivenMapsConfig(channels=channels_given),
        num_labels=len(dataset_info.classes),
        num_queries=num_queries,
        num_feature_levels=num_levels,
        d_model=channels,
        **transformer_sizes(encoder_layers, decoder_layers, attention_heads, ffn_dim),
        encoder_n_points=sampling_points,
        decoder_n_points=sampling_points,
        dropout=dropout,
        with_box_refine=refine_boxes,
        auxiliary_loss=True,
    )
    weights = (class_weight, box_weight, giou_weight)
    criterion = Criterion(query_focal_loss, focal_class_cost, Costs(*weights), weights)
    model = library.DeformableDetrForObjectDetection(config)
    _init_deformable_heads(model)
    return LibraryDetector(model, "model.backbone.model", slice(-len(channels_given), None), criterion, max_detections)


@register.detector
def rf_detr(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    channels: Count = 256,
    num_queries: Count = 300,
    num_groups: Count = 13,
    decoder_layers: Count = 3,
    self_attention_heads: Count = 8,
    cross_attention_heads: Count = 16,
    sampling_points: Count = 2,
    ffn_dim: Count = 2048,
    projector_blocks: Count = 3,
    dropout: Fraction = 0.0,
    class_weight: NonNegative = 1.0,
    box_weight: NonNegative = 5.0,
    giou_weight: NonNegative = 2.0,
    max_detections: Count = 100,
    mask: QueryMaskOptions | None = None,
    keypoint: QueryKeypointOptions | None = None,
    oriented: QueryOrientedOptions | None = None,
) -> LibraryDetector:
    """RF-DETR of the transformers library (the extra ``opabinia[detr]``; Robinson et al. 2025, whose decoder is that of
    Chen et al. 2024, LW-DETR) on the feature maps of a vision transformer.

    Losses, divided by the number of objects in the batch of all processes: ``loss_ce``
    (:func:`opabinia.models.losses.focal.iou_aware_loss`), ``loss_bbox``, ``loss_giou``; ``loss_auxiliary``, their sum
    over the encoder and earlier layers. In training each object is matched with a query of every group, else of one.

    Args:
        levels: feature levels of the backbone; those with the stride of the last one are used (``windowed_dinov2``).
        dataset_info: description of the training data, for its classes.
        channels: number of channels of the decoder; a multiple of 4 and of both numbers of heads.
        num_queries: number of object queries of a group.
        num_groups: groups of queries (Chen et al. 2023, Group DETR).
        decoder_layers: transformer layers.
        self_attention_heads: number of heads of the self-attention layers.
        cross_attention_heads: number of heads of the deformable attention layers.
        sampling_points: per head and query.
        ffn_dim: width of the feed-forward networks.
        projector_blocks: blocks of the convolutional projector before the decoder.
        dropout: in the decoder.
        class_weight: weight of the classification loss.
        box_weight: weight of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: weight of the generalized IoU loss.
        max_detections: per image.
        mask: see ``rt_detr``.
        keypoint: likewise.
        oriented: likewise.

    Raises:
        ValueError: ``channels`` cannot be divided, the levels differ in channels, or see ``rt_detr``.
    """
    library, maps = import_transformers("rf_detr", "rf_detr"), _import_maps()
    check_width(channels, math.lcm(self_attention_heads, cross_attention_heads))
    widths = [level.channels for level in levels if level.stride == levels[-1].stride]
    decoder = {"decoder_layers": decoder_layers, "decoder_n_points": sampling_points, "decoder_ffn_dim": ffn_dim}
    config = library.RfDetrConfig(
        backbone_config=_placeholder_config(library, widths),
        num_labels=len(dataset_info.classes),
        **{"d_model": channels, "num_queries": num_queries, "group_detr": num_groups, "dropout": dropout},
        **decoder,
        decoder_self_attention_heads=self_attention_heads,
        decoder_cross_attention_heads=cross_attention_heads,
        c2f_num_blocks=projector_blocks,
        auxiliary_loss=True,
    )
    costs = Costs(label=2.0, box=box_weight, giou=giou_weight)
    criterion = Criterion(iou_aware_loss, focal_class_cost, costs, (class_weight, box_weight, giou_weight))
    model = library.RfDetrForObjectDetection(config)
    model.model.backbone.backbone = maps.GivenMaps(maps.GivenMapsConfig(channels=widths))
    detector = GroupDetector(model, "model.backbone.backbone", slice(-len(widths), None), criterion, max_detections)
    detector.add_heads(dataset_info, [Level(channels, levels[-1].stride)], channels, mask, keypoint, oriented)
    return detector


def _import_maps() -> Any:
    """Import the stand-in for backbones, which needs the library."""
    from opabinia.models.detectors import library_maps

    return library_maps


def _placeholder_config(library: Any, widths: Sequence[int]) -> Any:
    """Return the config of a small vision transformer with outputs of these widths, which is replaced at once.

    Raises:
        ValueError: the widths differ.
    """
    if len(set(widths)) > 1:
        raise ValueError(f"rf_detr takes feature maps of the same number of channels, not {widths}")
    return library.RfDetrDinov2Config(
        hidden_size=widths[0],
        num_hidden_layers=len(widths),
        num_attention_heads=1,
        image_size=14,
        num_windows=1,
        out_indices=list(range(1, len(widths) + 1)),
    )


@torch.no_grad()
def _init_deformable_heads(model: Any) -> None:
    """Initialize the heads as the authors do: every class has a probability of 0.01, boxes begin at their reference."""
    for scores in model.class_embed:
        nn.init.constant_(scores.bias, -math.log(99))
    for boxes in model.bbox_embed:
        nn.init.zeros_(boxes.layers[-1].weight)
        nn.init.zeros_(boxes.layers[-1].bias)
    model.bbox_embed[0].layers[-1].bias[2:] = -2.0  # width and height of about 0.12


def _init_linear(*parts: nn.Module) -> None:
    """Initialize the weights of linear layers as DETR's authors: Glorot's uniform distribution."""
    for part in parts:
        for layer in part.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
