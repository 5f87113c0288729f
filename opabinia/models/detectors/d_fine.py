"""D-FINE: a real-time detector whose boxes have a distribution for each side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction, Level, NeckPart, NonNegative, Positive, Sizes, Target
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.queries import (
    Outputs,
    add_losses,
    collect_objects,
    import_transformers,
    sizes_as_tensor,
    transformer_sizes,
)
from opabinia.models.detectors.query_keypoints import QueryKeypointOptions
from opabinia.models.detectors.query_masks import QueryMaskOptions
from opabinia.models.detectors.query_oriented import QueryOrientedOptions
from opabinia.models.detectors.rt_detr import HybridDetector, check_width, split_queries, unbind_layers
from opabinia.models.losses.boxes import (
    box_losses,
    fine_grained_localization_loss,
    localization_distillation_losses,
    side_distances,
)
from opabinia.models.losses.class_weights import ClassWeights, class_weight_table
from opabinia.models.losses.focal import varifocal_loss
from opabinia.models.losses.matching import (
    Objects,
    Pairs,
    Prediction,
    global_count,
    match_queries,
    matched_iou,
    move_pairs,
    unite_pairs,
)


@register.detector(name="d_fine")
class DFine(HybridDetector):
    """D-FINE of the transformers library (the extra ``opabinia[detr]``), on our backbones: RT-DETR whose boxes have a
    distribution for each side, which every layer of the decoder refines (Peng et al. 2024).

    Defaults are those of the authors' L model, whose backbone is ``hgnetv2_b4``. Layers have the library's names;
    padding and initialization are as in ``rt_detr``.

    Losses are the authors': boxes of all layers are regressed towards the objects with which most layers match a query
    (:func:`opabinia.models.losses.matching.unite_pairs`), and earlier layers learn the distributions of the
    last one. The library differs there: it compares each layer's distributions with the boxes of the layer before, and
    has no such loss for the last layer. ``loss_vfl``, ``loss_bbox``, ``loss_giou`` and ``loss_fgl`` of the last layer;
    ``loss_auxiliary``, their sum, with the distillation of distributions, over all others; ``loss_denoising``, likewise
    over the denoising queries.

    Args:
        levels: the backbone's levels; those of ``strides`` are used.
        dataset_info: description of the training data, for its classes.
        neck: see ``rt_detr``.
        strides: strides of the feature maps; the authors' N model has [16, 32].
        channels: number of channels of the queries and the decoder; a multiple of 4 and of ``attention_heads``.
        encoder_channels: number of channels of the hybrid encoder; null takes ``channels``. The authors' X model has
            384.
        num_queries: number of object queries. Images with fewer positions have one query per position.
        encoder_layers: transformer layers on the coarsest feature map.
        decoder_layers: refinement steps of the boxes.
        attention_heads: number of heads of every attention layer.
        decoder_n_points: sampling points per head and query in each feature map.
        ffn_dim: width of the feed-forward networks.
        hidden_expansion: width of the encoder's convolutional blocks over its channels; 0.5 in the S model.
        depth_multiplier: factor of the number of these blocks; 0.34 in S, 0.67 in M.
        dropout: in encoder and decoder.
        bins: number of intervals of a distribution.
        box_scale: a side of the initial box is this many units of the distributions long; 8 in X.
        num_denoising: see ``rt_detr``.
        label_noise_ratio: likewise.
        box_noise_scale: likewise.
        class_weights: likewise.
        vfl_weight: weight of the varifocal loss.
        box_weight: weight of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: weight of the generalized IoU loss.
        fgl_weight: weight of the fine-grained localization loss.
        ddf_weight: weight of the distillation of the last layer's distributions.
        max_detections: per image; the authors give 300, of which COCO counts 100.
        mask: see ``rt_detr``.
        keypoint: likewise.
        oriented: likewise.
        roi_mask: likewise.
        roi_keypoint: likewise.

    Raises:
        ValueError: ``decoder_n_points`` has another length than ``strides``, or see ``rt_detr``.
    """

    _library_prefix = "DFine"

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart | None = None,
        strides: Sequence[Count] = (8, 16, 32),
        channels: Count = 256,
        encoder_channels: Count | None = None,
        num_queries: Count = 300,
        encoder_layers: Count = 1,
        decoder_layers: Count = 6,
        attention_heads: Count = 8,
        decoder_n_points: Sequence[Count] = (3, 6, 3),
        ffn_dim: Count = 1024,
        hidden_expansion: Positive = 1.0,
        depth_multiplier: Positive = 1.0,
        dropout: Fraction = 0.0,
        bins: Annotated[int, Ge(4)] = 32,
        box_scale: Positive = 4.0,
        num_denoising: Annotated[int, Ge(0)] = 100,
        label_noise_ratio: Fraction = 0.5,
        box_noise_scale: Positive = 1.0,
        class_weights: ClassWeights | None = None,
        vfl_weight: NonNegative = 1.0,
        box_weight: NonNegative = 5.0,
        giou_weight: NonNegative = 2.0,
        fgl_weight: NonNegative = 0.15,
        ddf_weight: NonNegative = 1.5,
        max_detections: Count = 100,
        mask: QueryMaskOptions | None = None,
        keypoint: QueryKeypointOptions | None = None,
        oriented: QueryOrientedOptions | None = None,
        roi_mask: MaskOptions | None = None,
        roi_keypoint: KeypointOptions | None = None,
    ) -> None:
        library = import_transformers("d_fine", "d_fine")
        check_width(channels, attention_heads)
        if len(decoder_n_points) != len(strides):
            raise ValueError(
                f"decoder_n_points: one number for each of the {len(strides)} strides, not {len(decoder_n_points)}"
            )
        config = library.DFineConfig(
            num_labels=len(dataset_info.classes),
            feat_strides=list(strides),
            num_feature_levels=len(strides),
            encode_proj_layers=[len(strides) - 1],
            encoder_in_channels=[encoder_channels or channels] * len(strides),
            encoder_hidden_dim=encoder_channels or channels,
            d_model=channels,
            decoder_in_channels=[encoder_channels or channels] * len(strides),
            num_queries=num_queries,
            decoder_n_points=list(decoder_n_points),
            **transformer_sizes(encoder_layers, decoder_layers, attention_heads, ffn_dim),
            hidden_expansion=float(hidden_expansion),
            depth_mult=float(depth_multiplier),
            dropout=dropout,
            max_num_bins=bins,
            reg_scale=float(box_scale),
            num_denoising=num_denoising,
            label_noise_ratio=float(label_noise_ratio),
            box_noise_scale=float(box_noise_scale),
            weight_loss_vfl=float(vfl_weight),
            weight_loss_bbox=float(box_weight),
            weight_loss_giou=float(giou_weight),
            weight_loss_fgl=float(fgl_weight),
            weight_loss_ddf=float(ddf_weight),
        )
        super().__init__(levels, neck, library, config, class_weight_table(class_weights, dataset_info))
        self.add_heads(dataset_info, self._head_levels, channels, mask, keypoint, oriented, roi_mask, roi_keypoint)
        self._weighting_function = library.weighting_function
        self.max_detections = max_detections

    def _decoder_projection(self, channels: int, width: int) -> nn.Module:
        return nn.Identity() if channels == width else super()._decoder_projection(channels, width)

    def _box_head(self, library: Any, width: int) -> nn.Module:
        head: nn.Module = library.DFineMLP(width, width, 4 * (self._config.max_num_bins + 1), 3)
        return head

    def _init_weights(self) -> None:
        super()._init_weights()
        for head in (self.decoder.pre_bbox_head, *(layer.reg_conf for layer in self.decoder.lqe_layers)):
            for layer in head.layers[:-1]:
                layer.reset_parameters()
            nn.init.zeros_(head.layers[-1].weight)
            nn.init.zeros_(head.layers[-1].bias)

    def _predict(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None = None
    ) -> Outputs:
        _, output, _, features = self._decode(maps, shape, sizes, objects)
        last = unbind_layers(output.intermediate_logits, output.intermediate_reference_points)[-1]
        return Outputs(last, features=features)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :class:`DFine`."""
        objects = collect_objects(targets, shape)
        self.decoder.training = True  # of this module alone: it then gives the outputs of all layers
        places = sizes_as_tensor(sizes, objects.boxes.device)
        first, output, denoising, features = self._decode(maps, shape, places, objects)
        values = (
            output.intermediate_logits,
            output.intermediate_reference_points,
            output.intermediate_predicted_corners.unflatten(-1, (4, -1)),
            output.initial_reference_points,
        )
        noisy, plain = (_Layers(*part) for part in zip(*(split_queries(one, denoising) for one in values), strict=True))
        layers = [*plain.predictions(), first]
        matches = match_queries(layers, objects)
        *pairs, united = move_pairs([*matches, unite_pairs(matches)], objects.boxes.device)
        count, regressed = (
            global_count(objects.boxes.new_full((), number), len(targets))
            for number in (len(objects.labels), len(united.objects))
        )
        losses, *others = self._all_losses(layers, plain, pairs, united, objects, count, regressed)
        losses["loss_auxiliary"] = add_losses(others, count)
        losses |= self._head_losses(layers[0], features, matches[0], pairs[0], shape, targets, count)
        if denoising is not None:
            layers, count = noisy.predictions(), count * denoising.groups
            found = [denoising.pairs] * len(layers)
            terms = self._all_losses(layers, noisy, found, denoising.pairs, objects, count, count)
            losses["loss_denoising"] = add_losses(terms, count)
        elif self._config.num_denoising:
            losses["loss_denoising"] = 0 * self.denoising_class_embed.weight.sum()
        return losses

    def _all_losses(
        self,
        layers: Sequence[Prediction],
        refined: _Layers,
        pairs: Sequence[Pairs],
        united: Pairs,
        objects: Objects,
        count: Tensor,
        regressed: Tensor,
    ) -> list[dict[str, Tensor]]:
        """Return the weighted losses of layers, the last one first.

        Args:
            layers: predictions, those of ``refined`` first.
            refined: the decoder's layers.
            pairs: pairs of each of ``layers``, for classes.
            united: for boxes.
            objects: objects of the batch.
            count: number of objects.
            regressed: number of the pairs in ``united``, in the global batch.
        """
        config, decoder, losses = self._config, self.decoder, []
        for layer, matched in zip(layers, pairs, strict=True):
            box, giou = box_losses(layer, united, objects, regressed)
            vfl = varifocal_loss(layer, matched, objects, count, self.class_weights)
            terms = {"loss_vfl": vfl * config.weight_loss_vfl, "loss_bbox": box * config.weight_loss_bbox}
            losses.append({**terms, "loss_giou": giou * config.weight_loss_giou})
        bins = self._weighting_function(config.max_num_bins, decoder.up, decoder.reg_scale)
        expected, places = objects.boxes[united.objects], (united.images, united.queries)
        corners, references = (values.flip(1).unbind(1) for values in (refined.corners, refined.references))
        for number, (logits, initial) in enumerate(zip(corners, references, strict=True)):
            iou = matched_iou(layers[number].boxes[places], expected)
            distances = side_distances(initial[places].detach(), expected, decoder.reg_scale)
            fgl = fine_grained_localization_loss(logits[places], distances, iou, bins) / regressed
            losses[number]["loss_fgl"] = fgl * config.weight_loss_fgl
            if number:  # the last layer is the teacher of all others
                weights = layers[0].logits.detach().float().sigmoid().amax(-1)
                weights[places] = iou
                divergence = localization_distillation_losses(logits, corners[0], weights)
                ddf = _balance(divergence, places, 4 * regressed)
                losses[number]["loss_ddf"] = ddf * config.weight_loss_ddf
        return losses


class _Layers(NamedTuple):
    """The decoder's L layers: logits (B x L + 1 x Q x K) and boxes (B x L + 1 x Q x 4), of which the first ones are
    those before any refinement; logits of the distributions (B x L x Q x 4 x N) and the boxes that they start from (B x
    L x Q x 4)."""

    logits: Tensor
    boxes: Tensor
    corners: Tensor
    references: Tensor

    def predictions(self) -> list[Prediction]:
        """Return the predictions of all layers, the last one first."""
        return unbind_layers(self.logits, self.boxes)[::-1]


def _balance(losses: Tensor, matched: tuple[Tensor, Tensor], count: Tensor) -> Tensor:
    """Return the mean of the matched queries' losses per side and that of the others, weighted by the roots of their
    numbers.

    Args:
        losses: sums over the four sides, B x Q.
        matched: indices of the matched queries.
        count: number of their sides, in the global batch.
    """
    positive = losses[matched].sum()
    rest = (4 * losses.numel() - count).clamp(min=1)
    means = positive / count.sqrt() + (losses.sum() - positive) / rest.sqrt()
    return means / (count.sqrt() + rest.sqrt())
