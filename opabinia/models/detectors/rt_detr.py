"""RT-DETR and D-FINE: real-time detectors with object queries, without anchors and non-maximum suppression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    ClassRows,
    Count,
    DatasetInfo,
    Fraction,
    Level,
    NeckPart,
    NonNegative,
    Positive,
    Sizes,
    Target,
)
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.masks import MaskOptions
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
from opabinia.models.losses.boxes import box_losses
from opabinia.models.losses.class_weights import ClassWeights, class_weight_table
from opabinia.models.losses.focal import varifocal_loss
from opabinia.models.losses.matching import Objects, Pairs, Prediction
from opabinia.runtime.device import move_tensor


class Denoising(NamedTuple):
    """Denoising queries: their content (B x G x C), boxes before the sigmoid (B x G x 4), the attention mask (0 or
    -inf, G + Q x G + Q), the objects that they are made from, and their number per object."""

    content: Tensor
    boxes: Tensor
    mask: Tensor
    pairs: Pairs
    groups: int


class HybridDetector(QueryDetector):
    """The common parts of RT-DETR and D-FINE: projections, hybrid encoder, selection of queries, denoising.

    Layers are the library's and have its names. Unlike there, positions in the padding of a batch are neither queries
    nor attended to.

    Args:
        levels: feature levels of the backbone.
        neck: see the subclasses.
        library: the module of the library's model.
        config: config of the library's model.
        class_weights: see :func:`opabinia.models.losses.class_weights.class_weight_table`.
    """

    class_weights: Tensor | None
    _library_prefix: str

    class_layers: Mapping[str, ClassRows] = {
        "enc_score_head": ClassRows(),
        "decoder.class_embed": ClassRows(),
        "denoising_class_embed": ClassRows(others=1),
    }

    # Whole layers would not be one graph: the library compares shapes in NumPy, and checks values in training.
    compiled_modules = (
        r"neck|(encoder|decoder)_input_proj\.\d+|encoder\.\w+_(convs|blocks)\.\d+|enc_output|enc_bbox_head"
        r"|decoder\.layers\.\d+\.(self_attn|mlp|gateway)|decoder\.(bbox_embed|lqe_layers)\.\d+"
        r"|decoder\.(query_pos_head|pre_bbox_head)|heads\.mask\.(blocks\.\d+|query_features_block)"
        r"|heads\.(keypoint|oriented)\.layers|heads\.\w+\.(neck|head\.(layers|predictor))"
    )

    def __init__(
        self,
        levels: Sequence[Level],
        neck: NeckPart | None,
        library: Any,
        config: Any,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.neck = None if neck is None else neck(levels)
        self._config, self._denoising_queries = config, library.get_contrastive_denoising_training_group
        encoder, decoder, mlp = (
            getattr(library, self._library_prefix + name) for name in ("HybridEncoder", "Decoder", "MLPPredictionHead")
        )
        levels = levels if self.neck is None else self.neck.out_levels
        self._first_level = _find_first_level(levels, tuple(config.feat_strides), exactly=self.neck is not None)
        inputs = levels[self._first_level : self._first_level + len(config.feat_strides)]
        # Heads on queries read the level before those of the encoder, too, if there is one.
        self._finer_levels = slice(max(self._first_level - 1, 0), self._first_level)
        self._head_levels = [*levels[self._finer_levels], Level(config.d_model, config.feat_strides[0])]
        width, classes, inner = config.d_model, config.num_labels, config.encoder_hidden_dim
        self.encoder_input_proj = nn.ModuleList(_projection(level.channels, inner) for level in inputs)
        self.encoder = encoder(config)
        self.decoder_input_proj = nn.ModuleList(self._decoder_projection(inner, width) for _ in inputs)
        self.enc_output = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.enc_score_head = nn.Linear(width, classes)
        self.enc_bbox_head = mlp(width, width, 4, 3)
        self.decoder = decoder(config)
        layers = range(config.decoder_layers)
        self.decoder.class_embed = nn.ModuleList(nn.Linear(width, classes) for _ in layers)
        self.decoder.bbox_embed = nn.ModuleList(self._box_head(library, width) for _ in layers)
        if config.num_denoising:
            self.denoising_class_embed = nn.Embedding(classes + 1, width, padding_idx=classes)
        self._init_weights()

    def _decoder_projection(self, channels: int, width: int) -> nn.Module:
        return _projection(channels, width)

    def _box_head(self, library: Any, width: int) -> nn.Module:
        """Return the head that refines boxes after a layer of the decoder."""
        raise NotImplementedError

    @torch.no_grad()
    def _init_weights(self) -> None:
        """Initialize weights as the authors do. The library's rule, a deviation of 0.01 everywhere (also of the weights
        of batch norms), only suits models whose weights are loaded afterwards: training from it hardly progresses."""
        for part in (self.encoder, self.decoder):
            _init_transformer(part)
        feedforward = [block.mlp for block in self.decoder.layers]
        for part in (self.decoder_input_proj, self.enc_output, self.decoder.query_pos_head, *feedforward):
            for layer in part.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    nn.init.xavier_uniform_(layer.weight)
        for scores in (self.enc_score_head, *self.decoder.class_embed):
            nn.init.constant_(scores.bias, -math.log(99))  # a probability of 0.01, as for the focal loss
        for boxes in (self.enc_bbox_head, *self.decoder.bbox_embed):
            nn.init.zeros_(boxes.layers[-1].weight)
            nn.init.zeros_(boxes.layers[-1].bias)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :meth:`QueryDetector.losses`."""
        losses = super().losses(maps, shape, sizes, targets)
        if self._config.num_denoising and "loss_denoising" not in losses:
            # Without any box there are no denoising queries, but every parameter must take part in every step.
            losses["loss_denoising"] = 0 * self.denoising_class_embed.weight.sum()
        return losses

    def _layer_losses(self, prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> dict[str, Tensor]:
        box, giou = box_losses(prediction, pairs, objects, count)
        losses = {
            "loss_vfl": varifocal_loss(prediction, pairs, objects, count, self.class_weights)
            * self._config.weight_loss_vfl,
            "loss_bbox": box * self._config.weight_loss_bbox,
            "loss_giou": giou * self._config.weight_loss_giou,
        }
        return losses

    def _decode(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None
    ) -> tuple[Prediction, Any, Denoising | None, QueryFeatures]:
        """Return the encoder's predictions for the queries, the decoder's output for the denoising queries (if there
        are ``objects`` to make them from) and the queries after them, the denoising queries, and the last layer of the
        others for heads."""
        memory, shapes = self._encode(maps)
        anchors, inside = _anchors(shapes, shape, sizes)
        memory = memory * inside.unsqueeze(-1)
        first, content, box_logits = self._select_queries(memory, anchors, inside)
        denoising = self._make_denoising(objects, box_logits.shape[1]) if objects is not None else None
        if denoising:
            content = torch.cat([denoising.content, content], 1)
            box_logits = torch.cat([denoising.boxes, box_logits], 1)
        output = self.decoder(
            inputs_embeds=content,
            encoder_hidden_states=memory,
            encoder_attention_mask=denoising.mask if denoising else None,
            reference_points=box_logits.detach(),
            # Objects, since the library compares their products with a number: of tensors, a graph would do so, too.
            spatial_shapes=np.array(shapes, dtype=object),
            spatial_shapes_list=shapes,
        )
        height, width = shapes[0]
        finest = memory[:, : height * width].transpose(1, 2).reshape(memory.shape[0], -1, height, width)
        embeddings = output.last_hidden_state[:, denoising.boxes.shape[1] if denoising else 0 :]
        return first, output, denoising, QueryFeatures(embeddings, [*maps[self._finer_levels], finest])

    def _encode(self, maps: Sequence[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        """Run the hybrid encoder; return the features of all positions (B x N x C), and the sizes of the feature
        maps."""
        inputs = maps[self._first_level : self._first_level + len(self._config.feat_strides)]
        projected = [project(level) for project, level in zip(self.encoder_input_proj, inputs, strict=True)]
        encoded = self.encoder(projected).last_hidden_state
        outputs = [project(level) for project, level in zip(self.decoder_input_proj, encoded, strict=True)]
        memory = torch.cat([level.flatten(2).transpose(1, 2) for level in outputs], 1)
        return memory, [(level.shape[-2], level.shape[-1]) for level in outputs]

    def _select_queries(self, memory: Tensor, anchors: Tensor, inside: Tensor) -> tuple[Prediction, Tensor, Tensor]:
        """Select the positions with the highest scores: the encoder's predictions, their content (B x Q x C) and their
        boxes before the sigmoid (B x Q x 4)."""
        valid = ((anchors > 0.01) & (anchors < 0.99)).all(-1) & inside
        content = self.enc_output(memory * valid.unsqueeze(-1))
        logits = self.enc_score_head(content)
        # As in the library, invalid anchors get the largest float, which makes an empty box at the lower right corner.
        origins = torch.logit(anchors).masked_fill(~valid.unsqueeze(-1), torch.finfo(anchors.dtype).max)
        box_logits = self.enc_bbox_head(content) + origins
        count = min(self._config.num_queries, memory.shape[1])
        best = logits.amax(-1).topk(count, dim=1).indices.unsqueeze(-1)
        logits, box_logits, content = (
            values.gather(1, best.expand(-1, -1, values.shape[-1])) for values in (logits, box_logits, content)
        )
        return Prediction(logits, box_logits.sigmoid()), content.detach(), box_logits

    def _make_denoising(self, objects: Objects, queries: int) -> Denoising | None:
        """Make denoising queries for a batch (DINO's contrastive denoising); None if it has no boxes."""
        config, counts = self._config, list(objects.counts)
        if not config.num_denoising or not sum(counts):
            return None
        columns = zip(torch.split(objects.labels, counts), torch.split(objects.boxes, counts), strict=True)
        content, boxes, mask, meta = self._denoising_queries(
            targets=[{"class_labels": labels, "boxes": boxes} for labels, boxes in columns],
            num_classes=config.num_labels,
            num_queries=queries,
            class_embed=self.denoising_class_embed,
            num_denoising_queries=config.num_denoising,
            label_noise_ratio=config.label_noise_ratio,
            box_noise_scale=config.box_noise_scale,
        )
        groups = meta["dn_num_group"]
        starts = accumulate(counts, initial=0)
        rows = [
            (image, start + number)
            for image, (start, count) in enumerate(zip(starts, counts, strict=False))
            for _ in range(groups)
            for number in range(count)
        ]
        images, numbers = move_tensor(torch.tensor(rows), objects.labels.device).unbind(1)
        pairs = Pairs(images, torch.cat(meta["dn_positive_idx"]), numbers)
        return Denoising(content, boxes, mask, pairs, groups)


@register.detector(name="rt_detr")
class RTDetr(HybridDetector):
    """RT-DETR v2 of the transformers library (the extra ``opabinia[detr]``), on our backbones.

    A hybrid encoder fuses feature maps of strides 8, 16 and 32, the positions with the highest scores become queries,
    and a decoder refines these into boxes; Hungarian matching assigns them to objects (Zhao et al. 2024, RT-DETR; Lv
    et al. 2024, RT-DETRv2). Layers and losses are the library's; the initialization is that of the authors' code.
    Defaults are those of the authors' R50 model.

    Layers have the library's names. Unlike in the library, positions in the padding of a batch are neither queries nor
    attended to. Hungarian matching runs on the CPU, once for all layers: a training step waits for the device.

    Losses, divided by the number of boxes in the batch of all processes: ``loss_vfl``, ``loss_bbox`` and ``loss_giou``
    of the last layer; ``loss_auxiliary``, their sum over the encoder and the earlier layers; ``loss_denoising``, their
    sum over the denoising queries.

    Args:
        levels: the backbone's levels; strides 8, 16 and 32 are used.
        dataset_info: description of the training data, for its classes.
        neck: makes feature maps of these strides if the backbone has none: ``{name: simple_pyramid, strides: [8, 16,
            32]}`` for a plain vision transformer. It comes before the hybrid encoder, which is always there.
        channels: number of channels of the queries and the decoder; a multiple of 4 and of ``attention_heads``.
        encoder_channels: number of channels of the hybrid encoder; null takes ``channels``. The authors' R101 model has
            384.
        num_queries: number of object queries. Images with fewer positions have one query per position.
        encoder_layers: transformer layers on the feature map of stride 32.
        decoder_layers: refinement steps of the boxes.
        attention_heads: number of heads of every attention layer.
        decoder_n_points: sampling points per head, query and feature map in deformable attention.
        sampling: sampling of the feature maps at these points. ``grid_sample`` interpolates; ``discrete`` takes the
            nearest position, for runtimes without that operator (RT-DETRv2). It has no gradient for the offsets of the
            points, which are frozen: the authors fine-tune a model that was trained with ``grid_sample``.
        ffn_dim: width of the feed-forward networks.
        hidden_expansion: width of the encoder's convolutional blocks over ``channels``; the authors' R18 model has 0.5.
        dropout: in encoder and decoder.
        num_denoising: about how many denoising queries (noisy ground-truth boxes) each image has in training, half of
            them negative (Zhang et al. 2023, DINO, section 3.3); 0 for none.
        label_noise_ratio: half of this share of them has a random class.
        box_noise_scale: shift of their corners, over half of width and height.
        class_weights: weights of the varifocal loss of queries with an object, by the name of its class (1 for others),
            or ``balanced``; null: all alike.
        vfl_weight: weight of the varifocal loss (Zhang et al. 2021, VarifocalNet, equation 2).
        box_weight: weight of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: weight of the generalized IoU loss.
        max_detections: per image; the authors give 300, of which COCO counts 100.
        mask: options of instance masks (:class:`opabinia.models.detectors.query_masks.QueryMaskHead`), which add
            ``loss_mask`` and ``loss_dice`` of the last layer; null: no masks.
        keypoint: options of keypoints (:class:`opabinia.models.detectors.query_keypoints.QueryKeypointHead`), which add
            ``loss_keypoint``, ``loss_oks`` and ``loss_visibility`` of the last layer; null: no keypoints.
        oriented: options of oriented boxes (:class:`opabinia.models.detectors.query_oriented.QueryOrientedHead`), which
            add ``loss_rotated_iou`` and ``loss_angle`` of the last layer; null: upright boxes.
        roi_mask: options of masks by the head of Mask R-CNN, in the place of ``mask``
            (:class:`opabinia.models.detectors.query_regions.QueryRegionHead`); adds ``loss_mask`` of the last layer.
        roi_keypoint: options of keypoints by the head of Keypoint R-CNN, in the place of ``keypoint``; adds
            ``loss_keypoint`` of the last layer.

    Raises:
        ValueError: the transformers library is not installed, there are no feature maps of these strides, ``channels``
            is not divisible by ``attention_heads`` and 4, the training data has no masks or keypoints to learn, or
            oriented boxes are combined with these.
    """

    _library_prefix = "RTDetrV2"

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart | None = None,
        channels: Count = 256,
        encoder_channels: Count | None = None,
        num_queries: Count = 300,
        encoder_layers: Count = 1,
        decoder_layers: Count = 6,
        attention_heads: Count = 8,
        decoder_n_points: Count = 4,
        sampling: Literal["grid_sample", "discrete"] = "grid_sample",
        ffn_dim: Count = 1024,
        hidden_expansion: Positive = 1.0,
        dropout: Fraction = 0.0,
        num_denoising: Annotated[int, Ge(0)] = 100,
        label_noise_ratio: Fraction = 0.5,
        box_noise_scale: Positive = 1.0,
        class_weights: ClassWeights | None = None,
        vfl_weight: NonNegative = 1.0,
        box_weight: NonNegative = 5.0,
        giou_weight: NonNegative = 2.0,
        max_detections: Count = 100,
        mask: QueryMaskOptions | None = None,
        keypoint: QueryKeypointOptions | None = None,
        oriented: QueryOrientedOptions | None = None,
        roi_mask: MaskOptions | None = None,
        roi_keypoint: KeypointOptions | None = None,
    ) -> None:
        library = import_transformers("rt_detr", "rt_detr_v2")
        check_width(channels, attention_heads)
        # The library refuses ints for floats.
        config = library.RTDetrV2Config(
            num_labels=len(dataset_info.classes),
            encoder_hidden_dim=encoder_channels or channels,
            d_model=channels,
            decoder_in_channels=[encoder_channels or channels] * 3,
            num_queries=num_queries,
            decoder_n_points=decoder_n_points,
            decoder_method="default" if sampling == "grid_sample" else sampling,
            **transformer_sizes(encoder_layers, decoder_layers, attention_heads, ffn_dim),
            hidden_expansion=float(hidden_expansion),
            dropout=dropout,
            num_denoising=num_denoising,
            label_noise_ratio=float(label_noise_ratio),
            box_noise_scale=float(box_noise_scale),
            weight_loss_vfl=float(vfl_weight),
            weight_loss_bbox=float(box_weight),
            weight_loss_giou=float(giou_weight),
        )
        super().__init__(levels, neck, library, config, class_weight_table(class_weights, dataset_info))
        self.add_heads(dataset_info, self._head_levels, channels, mask, keypoint, oriented, roi_mask, roi_keypoint)
        self.max_detections = max_detections
        if sampling == "discrete":
            for layer in self.decoder.layers:
                layer.encoder_attn.sampling_offsets.requires_grad_(False)

    def _box_head(self, library: Any, width: int) -> nn.Module:
        head: nn.Module = library.RTDetrV2MLPPredictionHead(width, width, 4, 3)
        return head

    def _predict(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor, objects: Objects | None = None
    ) -> Outputs:
        first, output, denoising, features = self._decode(maps, shape, sizes, objects)
        values = output.intermediate_logits, output.intermediate_reference_points
        noisy, plain = (
            unbind_layers(*part) for part in zip(*(split_queries(one, denoising) for one in values), strict=True)
        )
        outputs = Outputs(plain[-1], [*plain[:-1], first], features=features)
        if denoising is None:
            return outputs
        return outputs._replace(denoising=noisy, denoising_pairs=denoising.pairs, denoising_groups=denoising.groups)


def check_width(channels: int, attention_heads: int) -> None:
    """Check the width of the decoder.

    Raises:
        ValueError: it cannot be divided into heads, or into the four coordinates of its position embedding.
    """
    if channels % math.lcm(4, attention_heads):
        raise ValueError(f"channels: a multiple of 4 and of attention_heads ({attention_heads}), not {channels}")


def split_queries(values: Tensor, denoising: Denoising | None) -> tuple[Tensor, Tensor]:
    """Split values of all queries (B x L x Q x ...) into those of the denoising queries and of the others."""
    count = denoising.boxes.shape[1] if denoising else 0
    return values[:, :, :count], values[:, :, count:]


def unbind_layers(logits: Tensor, boxes: Tensor) -> list[Prediction]:
    """Return the predictions of each layer, given those of all (B x L x Q x ...)."""
    return [Prediction(*layer) for layer in zip(logits.unbind(1), boxes.unbind(1), strict=True)]


def _find_first_level(levels: Sequence[Level], used: tuple[int, ...], exactly: bool) -> int:
    """Return the index of the first of the levels that are used.

    Args:
        levels: the given ones.
        used: their strides.
        exactly: there must be no other levels: the layers of unused levels would get no gradient.

    Raises:
        ValueError: there are no such levels.
    """
    strides = tuple(level.stride for level in levels)
    starts = [first for first in range(len(strides)) if strides[first : first + len(used)] == used]
    if starts and not (exactly and strides != used):
        return starts[0]
    expected, given = ", ".join(map(str, used)), ", ".join(map(str, strides))
    if exactly:
        raise ValueError(f"neck: it gives feature maps of strides {given}; the detector takes {expected} and no others")
    raise ValueError(
        f"the detector takes feature maps of strides {expected}, and the backbone gives {given}; a plain vision "
        f"transformer needs neck: {{name: simple_pyramid, strides: [{expected}]}}"
    )


def _projection(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))


def _init_transformer(part: nn.Module) -> None:
    """Initialize layers by torch's defaults, and attention as in its ``MultiheadAttention``. Deformable attention is
    skipped: the library initializes it as the authors do."""
    for name, layer in part.named_modules():
        if ".encoder_attn." in name or not isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
            continue
        layer.reset_parameters()
        if ".self_attn." in name:
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.bias)
            if not name.endswith("o_proj"):
                # In torch, query, key and value are one layer of three times the size.
                nn.init.xavier_uniform_(layer.weight, gain=0.5**0.5)


def _anchors(shapes: Sequence[tuple[int, int]], shape: tuple[int, int], sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return a box around each position of the feature maps (N x 4: center, width and height as fractions of the padded
    image), with sides of 0.05 on the finest level and twice that on each coarser one; and whether the position lies in
    the image (bool, B x N)."""
    levels, device = [], sizes.device
    for number, (height, width) in enumerate(shapes):
        y = (torch.arange(height, device=device) + 0.5) / height
        x = (torch.arange(width, device=device) + 0.5) / width
        centers = torch.cartesian_prod(y, x).flip(1)
        levels.append(torch.cat([centers, torch.full_like(centers, 0.05 * 2**number)], 1))
    anchors = torch.cat(levels)
    ends = torch.stack([sizes[:, 1] / shape[1], sizes[:, 0] / shape[0]], 1)
    inside = (anchors[:, :2] < ends[:, None]).all(-1)
    return anchors, inside
