"""RT-DETR: end-to-end detection by queries, without anchors and non-maximum suppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.ops import box_convert, clip_boxes_to_image

from opabinia.config import register
from opabinia.contracts import (
    Count,
    DatasetInfo,
    Detections,
    Detector,
    Fraction,
    Level,
    NeckPart,
    NonNegative,
    Positive,
    Sizes,
    Target,
)
from opabinia.runtime.collectives import mean_over_samples

_STRIDES = (8, 16, 32)


def _import_library() -> Any:
    """Import the classes and functions of the transformers library.

    Raises:
        ValueError: it is not installed.
    """
    try:
        from transformers import RTDetrV2Config
        from transformers.loss.loss_rt_detr import RTDetrLoss
        from transformers.models.rt_detr_v2 import modeling_rt_detr_v2 as model
    except ImportError as error:
        raise ValueError("rt_detr needs the transformers library: pip install 'opabinia[detr]'") from error
    return SimpleNamespace(
        RTDetrV2Config=RTDetrV2Config,
        Loss=RTDetrLoss,
        Encoder=model.RTDetrV2HybridEncoder,
        Decoder=model.RTDetrV2Decoder,
        MLP=model.RTDetrV2MLPPredictionHead,
        denoising_queries=model.get_contrastive_denoising_training_group,
    )


class _Denoising(NamedTuple):
    """Denoising queries: their content (B x G x C), boxes before the sigmoid (B x G x 4), the attention mask (0 or
    -inf, G + Q x G + Q), and the library's metadata for the loss."""

    content: Tensor
    boxes: Tensor
    mask: Tensor
    meta: dict[str, Any]


class _Predictions(NamedTuple):
    """Logits (... x K) and boxes (... x 4: center, width and height, as fractions of the padded image) of queries."""

    logits: Tensor
    boxes: Tensor

    def for_loss(self) -> dict[str, Tensor]:
        return {"logits": self.logits.float(), "pred_boxes": self.boxes.float()}


@register.detector(
    name="rt_detr",
    renamed={
        "queries": "num_queries",
        "heads": "attention_heads",
        "points": "decoder_n_points",
        "feedforward": "ffn_dim",
        "expansion": "hidden_expansion",
        "denoising": "num_denoising",
        "label_noise": "label_noise_ratio",
        "box_noise": "box_noise_scale",
        "most": "max_detections",
    },
)
class RTDetr(Detector):
    """RT-DETR v2 of the transformers library (the extra ``opabinia[detr]``), on our backbones.

    A hybrid encoder fuses feature maps of strides 8, 16 and 32, the positions with the highest scores become queries,
    and a decoder refines these into boxes; Hungarian matching assigns them to objects (Zhao et al. 2024, RT-DETR; Lv
    et al. 2024, RT-DETRv2, without discrete sampling). Layers and losses are the library's; the initialization is that
    of the authors' code. Defaults are those of the authors' R50 model.

    Layers have the library's names. Unlike in the library, positions in the padding of a batch are neither queries nor
    attended to. Hungarian matching runs on the CPU, once per layer: a training step waits for the device.

    Losses, divided by the number of boxes in the batch of all processes: ``loss_vfl``, ``loss_bbox`` and ``loss_giou``
    of the last layer; ``loss_auxiliary``, their sum over the encoder and the earlier layers; ``loss_denoising``, their
    sum over the denoising queries.

    Args:
        levels: the backbone's levels; strides 8, 16 and 32 are used.
        dataset_info: of the training data, for its classes.
        neck: makes feature maps of these strides if the backbone has none: ``{name: simple_pyramid, strides: [8, 16,
            32]}`` for a plain vision transformer. It comes before the hybrid encoder, which is always there.
        channels: of the hybrid encoder, the queries and the decoder; a multiple of 4 and of ``attention_heads``.
        num_queries: number of object queries. Images with fewer positions have one query per position.
        encoder_layers: transformer layers on the feature map of stride 32.
        decoder_layers: refinement steps of the boxes.
        attention_heads: of every attention layer.
        decoder_n_points: sampling points per head, query and feature map in deformable attention.
        ffn_dim: width of the feed-forward networks.
        hidden_expansion: width of the encoder's convolutional blocks over ``channels``; the authors' R18 model has 0.5.
        dropout: in encoder and decoder.
        num_denoising: about how many denoising queries (noisy ground-truth boxes) each image has in training, half of
            them negative (Zhang et al. 2023, DINO, section 3.3); 0 for none.
        label_noise_ratio: half of this share of them has a random class.
        box_noise_scale: shift of their corners, over half of width and height.
        vfl_weight: of the varifocal loss (Zhang et al. 2021, VarifocalNet, equation 2).
        box_weight: of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: of the generalized IoU loss.
        max_detections: per image; the authors give 300, of which COCO counts 100.

    Raises:
        ValueError: the transformers library is not installed, there are no feature maps of these strides, or
            ``channels`` is not divisible by ``attention_heads`` and 4.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart | None = None,
        channels: Count = 256,
        num_queries: Count = 300,
        encoder_layers: Count = 1,
        decoder_layers: Count = 6,
        attention_heads: Count = 8,
        decoder_n_points: Count = 4,
        ffn_dim: Count = 1024,
        hidden_expansion: Positive = 1.0,
        dropout: Fraction = 0.0,
        num_denoising: Annotated[int, Ge(0)] = 100,
        label_noise_ratio: Fraction = 0.5,
        box_noise_scale: Positive = 1.0,
        vfl_weight: NonNegative = 1.0,
        box_weight: NonNegative = 5.0,
        giou_weight: NonNegative = 2.0,
        max_detections: Count = 100,
    ) -> None:
        if channels % math.lcm(4, attention_heads):
            raise ValueError(f"channels: a multiple of 4 and of attention_heads ({attention_heads}), not {channels}")
        library = _import_library()
        # The library refuses ints for floats.
        config = library.RTDetrV2Config(
            num_labels=len(dataset_info.classes),
            encoder_hidden_dim=channels,
            d_model=channels,
            decoder_in_channels=[channels] * len(_STRIDES),
            num_queries=num_queries,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            encoder_attention_heads=attention_heads,
            decoder_attention_heads=attention_heads,
            decoder_n_points=decoder_n_points,
            encoder_ffn_dim=ffn_dim,
            decoder_ffn_dim=ffn_dim,
            hidden_expansion=float(hidden_expansion),
            dropout=dropout,
            num_denoising=num_denoising,
            label_noise_ratio=float(label_noise_ratio),
            box_noise_scale=float(box_noise_scale),
            weight_loss_vfl=float(vfl_weight),
            weight_loss_bbox=float(box_weight),
            weight_loss_giou=float(giou_weight),
        )
        super().__init__()
        self.max_detections = max_detections
        self.neck = None if neck is None else neck(levels)
        self._config, self._library = config, library
        levels = levels if self.neck is None else self.neck.out_levels
        self._first_level = _find_first_level(levels, exactly=self.neck is not None)
        inputs = levels[self._first_level : self._first_level + len(_STRIDES)]
        width, classes = config.d_model, config.num_labels
        self.encoder_input_proj = nn.ModuleList(_projection(level.channels, width) for level in inputs)
        self.encoder = library.Encoder(config)
        self.decoder_input_proj = nn.ModuleList(_projection(width, width) for _ in inputs)
        self.enc_output = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.enc_score_head = nn.Linear(width, classes)
        self.enc_bbox_head = library.MLP(width, width, 4, 3)
        self.decoder = library.Decoder(config)
        layers = range(config.decoder_layers)
        self.decoder.class_embed = nn.ModuleList(nn.Linear(width, classes) for _ in layers)
        self.decoder.bbox_embed = nn.ModuleList(library.MLP(width, width, 4, 3) for _ in layers)
        if config.num_denoising:
            self.denoising_class_embed = nn.Embedding(classes + 1, width, padding_idx=classes)
        self._init_weights()

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

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The neck's feature maps; without a neck the backbone's."""
        pyramid: list[Tensor] = list(maps) if self.neck is None else self.neck(maps)
        return pyramid

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :class:`RTDetr`."""
        labels = [{"class_labels": target.labels, "boxes": _to_fractions(target.boxes, shape)} for target in targets]
        first, layers, denoising = self._predict(maps, shape, sizes, labels)
        count = denoising.boxes.shape[1] if denoising else 0
        *earlier, last = (_Predictions(layer.logits[:, count:], layer.boxes[:, count:]) for layer in layers)
        outputs: dict[str, Any] = {**last.for_loss()}
        outputs["auxiliary_outputs"] = [layer.for_loss() for layer in (*earlier, first)]
        if denoising:
            outputs["dn_auxiliary_outputs"] = [
                _Predictions(layer.logits[:, :count], layer.boxes[:, :count]).for_loss() for layer in layers
            ]
            outputs["denoising_meta_values"] = denoising.meta
        values: dict[str, Tensor] = self._library.Loss(self._config)(outputs, labels)
        scale = self._loss_scale(targets)
        values = {name: value * scale for name, value in values.items()}
        losses = {name: values[name] for name in ("loss_vfl", "loss_bbox", "loss_giou")}
        losses["loss_auxiliary"] = torch.stack([value for name, value in values.items() if "_aux_" in name]).sum()
        if self._config.num_denoising:
            # Without any box there are no denoising queries, but every parameter must take part in every step.
            zero = 0 * self.denoising_class_embed.weight.sum()
            losses["loss_denoising"] = sum((value for name, value in values.items() if "_dn_" in name), zero)
        return losses

    def _loss_scale(self, targets: Sequence[Target]) -> Tensor:
        """Return the factor from means over the boxes of this process, as the library computes, to means over those of
        the batch of all processes (a divisor of at least 1 for both)."""
        count = sum(len(target.labels) for target in targets)
        total = mean_over_samples(self.enc_score_head.bias.new_tensor(float(count)), len(targets)) * len(targets)
        scale: Tensor = max(count, 1) / total.clamp(min=1)
        return scale

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """The pairs of query and class with the highest scores, without suppression."""
        _, layers, _ = self._predict(maps, shape, sizes)
        logits, fractions = (values.float() for values in layers[-1])
        scores, pairs = logits.sigmoid().flatten(1).topk(min(self.max_detections, logits[0].numel()))
        classes = logits.shape[-1]
        best = fractions.gather(1, (pairs // classes).unsqueeze(-1).expand(-1, -1, 4))
        height, width = shape
        boxes = box_convert(best, "cxcywh", "xyxy") * best.new_tensor([width, height, width, height])
        images = zip(boxes, scores, pairs % classes, sizes, strict=True)
        return [Detections(clip_boxes_to_image(box, size), score, label) for box, score, label, size in images]

    def _predict(
        self,
        maps: Sequence[Tensor],
        shape: tuple[int, int],
        sizes: Sizes,
        labels: list[dict[str, Tensor]] | None = None,
    ) -> tuple[_Predictions, list[_Predictions], _Denoising | None]:
        """Return the encoder's predictions for the queries, those of each decoder layer for the denoising queries (if
        there are ``labels`` to make them from) and the queries after them, and the denoising queries."""
        memory, shapes = self._encode(maps)
        anchors, inside = _anchors(shapes, shape, sizes, memory.device)
        memory = memory * inside.unsqueeze(-1)
        first, content, box_logits = self._select_queries(memory, anchors, inside)
        denoising = self._make_denoising(labels, box_logits.shape[1]) if labels is not None else None
        if denoising:
            content = torch.cat([denoising.content, content], 1)
            box_logits = torch.cat([denoising.boxes, box_logits], 1)
        output = self.decoder(
            inputs_embeds=content,
            encoder_hidden_states=memory,
            encoder_attention_mask=denoising.mask if denoising else None,
            reference_points=box_logits.detach(),
            spatial_shapes=torch.tensor(shapes),  # stays on the CPU, where the library compares it with a number
            spatial_shapes_list=shapes,
        )
        layers = zip(output.intermediate_logits.unbind(1), output.intermediate_reference_points.unbind(1), strict=True)
        return first, [_Predictions(*layer) for layer in layers], denoising

    def _encode(self, maps: Sequence[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        """Run the hybrid encoder; return the features of all positions (B x N x C), and the sizes of the feature
        maps."""
        inputs = maps[self._first_level : self._first_level + len(_STRIDES)]
        projected = [project(level) for project, level in zip(self.encoder_input_proj, inputs, strict=True)]
        encoded = self.encoder(projected).last_hidden_state
        outputs = [project(level) for project, level in zip(self.decoder_input_proj, encoded, strict=True)]
        memory = torch.cat([level.flatten(2).transpose(1, 2) for level in outputs], 1)
        return memory, [(level.shape[-2], level.shape[-1]) for level in outputs]

    def _select_queries(self, memory: Tensor, anchors: Tensor, inside: Tensor) -> tuple[_Predictions, Tensor, Tensor]:
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
        return _Predictions(logits, box_logits.sigmoid()), content.detach(), box_logits

    def _make_denoising(self, labels: list[dict[str, Tensor]], queries: int) -> _Denoising | None:
        """Make denoising queries for a batch (DINO's contrastive denoising); None if it has no boxes."""
        config = self._config
        if not config.num_denoising:
            return None
        content, boxes, mask, meta = self._library.denoising_queries(
            targets=labels,
            num_classes=config.num_labels,
            num_queries=queries,
            class_embed=self.denoising_class_embed,
            num_denoising_queries=config.num_denoising,
            label_noise_ratio=config.label_noise_ratio,
            box_noise_scale=config.box_noise_scale,
        )
        return None if content is None else _Denoising(content, boxes, mask, meta)


def _find_first_level(levels: Sequence[Level], exactly: bool) -> int:
    """Return the index of the first of the three levels that are used.

    Args:
        exactly: there must be no other levels: the layers of unused levels would get no gradient.

    Raises:
        ValueError: there are no such levels.
    """
    strides = tuple(level.stride for level in levels)
    starts = [first for first in range(len(strides)) if strides[first : first + len(_STRIDES)] == _STRIDES]
    if starts and not (exactly and strides != _STRIDES):
        return starts[0]
    expected, given = ", ".join(map(str, _STRIDES)), ", ".join(map(str, strides))
    if exactly:
        raise ValueError(f"neck: it gives feature maps of strides {given}; rt_detr takes {expected} and no others")
    raise ValueError(
        f"rt_detr takes feature maps of strides {expected}, and the backbone gives {given}; a plain vision transformer "
        f"needs neck: {{name: simple_pyramid, strides: [{expected}]}}"
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


def _anchors(
    shapes: Sequence[tuple[int, int]], shape: tuple[int, int], sizes: Sizes, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return a box around each position of the feature maps (N x 4: center, width and height as fractions of the padded
    image), with sides of 0.05 on the finest level and twice that on each coarser one; and whether the position lies in
    the image (bool, B x N)."""
    levels = []
    for number, (height, width) in enumerate(shapes):
        y = (torch.arange(height, device=device) + 0.5) / height
        x = (torch.arange(width, device=device) + 0.5) / width
        centers = torch.cartesian_prod(y, x).flip(1)
        levels.append(torch.cat([centers, torch.full_like(centers, 0.05 * 2**number)], 1))
    anchors = torch.cat(levels)
    ends = torch.tensor([[width / shape[1], height / shape[0]] for height, width in sizes])
    inside = (anchors[:, :2] < ends.to(device, non_blocking=True)[:, None]).all(-1)
    return anchors, inside


def _to_fractions(boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Convert boxes from pixels to the library's format: center, width and height as fractions of the padded image."""
    height, width = shape
    fractions: Tensor = box_convert(boxes / boxes.new_tensor([width, height, width, height]), "xyxy", "cxcywh")
    return fractions
