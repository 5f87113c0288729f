"""Detectors that give a fixed number of things at once, without anchors and without suppression (the DETR family)."""

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
    Neck,
    NeckPart,
    NonNegative,
    Positive,
    Sizes,
    Target,
)
from opabinia.runtime.collectives import per_sample

_STRIDES = (8, 16, 32)


@register.detector
def rt_detr(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart | None = None,
    channels: Count = 256,
    queries: Count = 300,
    encoder_layers: Count = 1,
    decoder_layers: Count = 6,
    heads: Count = 8,
    points: Count = 4,
    feedforward: Count = 1024,
    expansion: Positive = 1.0,
    dropout: Fraction = 0.0,
    denoising: Annotated[int, Ge(0)] = 100,
    label_noise: Fraction = 0.5,
    box_noise: Positive = 1.0,
    vfl_weight: NonNegative = 1.0,
    box_weight: NonNegative = 5.0,
    giou_weight: NonNegative = 2.0,
    most: Count = 100,
) -> Detector:
    """RT-DETR in its second version, of the transformers library (the extra ``opabinia[detr]``), on our backbones.

    A hybrid encoder joins maps of strides 8, 16 and 32, the places that look most like things become queries, and a
    decoder turns these into boxes; Hungarian matching says which query is to find what (Zhao et al. 2024, RT-DETR; Lv
    et al. 2024, RT-DETRv2, discrete sampling left out). Layers and losses are the library's; what is drawn at first is
    drawn as in the authors' code. Defaults are those of the authors' R50 model.

    Losses, divided by the boxes of the batch of all processes: ``loss_vfl``, ``loss_bbox`` and ``loss_giou`` of the
    last layer; ``loss_auxiliary``, their sum over the encoder and the layers before; ``loss_denoising``, their sum for
    the boxes that the decoder gets to see blurred.

    Args:
        levels: what the backbone gives; strides 8, 16 and 32 are taken.
        facts: of the training data, for its classes.
        neck: makes maps of these strides where the backbone has none: ``{name: simple_pyramid, strides: [8, 16, 32]}``
            for a plain vision transformer. The hybrid encoder is no such neck; it is always there.
        channels: of the hybrid encoder, the queries and the decoder; a multiple of 4 and of ``heads``.
        queries: how many things are looked for. Images with fewer places than that have one query a place.
        encoder_layers: layers of attention over the map of stride 32.
        decoder_layers: how often boxes are refined.
        heads: of every attention.
        points: places of each map that a head of a query looks at.
        feedforward: width between the two linear layers behind attention.
        expansion: width of the encoder's convolutional blocks over ``channels``; the authors' R18 model has 0.5.
        dropout: in encoder and decoder.
        denoising: about how many blurred boxes the decoder gets for each image in training, half of them so blurred
            that they show nothing (Zhang et al. 2023, DINO, section 3.3); 0 for none.
        label_noise: half of this share of them has a class that is drawn.
        box_noise: how far their corners are moved, over half of width and height.
        vfl_weight: of the varifocal loss (Zhang et al. 2021, VarifocalNet, equation 2).
        box_weight: of the L1 loss of boxes, which are fractions of the padded image.
        giou_weight: of the generalised IoU loss.
        most: things it finds in an image at most; the authors give 300, of which COCO counts 100.

    Raises:
        ValueError: the transformers library is not there, there are no maps of these strides, or ``channels`` cannot be
            divided by ``heads`` and 4.
    """
    if channels % math.lcm(4, heads):
        raise ValueError(f"channels: a multiple of 4 and of heads ({heads}), not {channels}")
    library = _library()
    # The library takes no whole number where it expects another one.
    config = library.RTDetrV2Config(
        num_labels=len(dataset_info.classes),
        encoder_hidden_dim=channels,
        d_model=channels,
        decoder_in_channels=[channels] * len(_STRIDES),
        num_queries=queries,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        decoder_n_points=points,
        encoder_ffn_dim=feedforward,
        decoder_ffn_dim=feedforward,
        hidden_expansion=float(expansion),
        dropout=dropout,
        num_denoising=denoising,
        label_noise_ratio=float(label_noise),
        box_noise_scale=float(box_noise),
        weight_loss_vfl=float(vfl_weight),
        weight_loss_bbox=float(box_weight),
        weight_loss_giou=float(giou_weight),
    )
    return RTDetr(levels, None if neck is None else neck(levels), config, library, most)


def _library() -> Any:
    """What is taken of the transformers library.

    Raises:
        ValueError: it is not there.
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
        DeformableAttention=model.RTDetrV2MultiscaleDeformableAttention,
        Perceptron=model.RTDetrV2MLPPredictionHead,
        blurred=model.get_contrastive_denoising_training_group,
    )


class _Blurred(NamedTuple):
    """Queries that show the decoder blurred boxes: their content (B x G x C), their boxes before the sigmoid (B x G x
    4), which query must not see which (0 or -inf, G + Q x G + Q), and what the loss is to know of them."""

    content: Tensor
    boxes: Tensor
    apart: Tensor
    dataset_info: dict[str, Any]


class _Said(NamedTuple):
    """Logits (... x K) and boxes (... x 4: centre, width and height, as fractions of the padded image) of queries."""

    logits: Tensor
    boxes: Tensor

    def for_loss(self) -> dict[str, Tensor]:
        return {"logits": self.logits.float(), "pred_boxes": self.boxes.float()}


class RTDetr(Detector):
    """See :func:`rt_detr`. Its layers have the names that they have in the library.

    Beside what the library does, places in the padding of a batch are neither queries nor looked at. Hungarian matching
    is done on the CPU, once a layer: a training step waits for the device.

    Args:
        levels: what the backbone gives.
        neck: what comes before the hybrid encoder, if anything.
        config: the library's.
        library: what :func:`_library` gives.
        most: things in an image at most.

    Raises:
        ValueError: there are no maps of the strides 8, 16 and 32.
    """

    def __init__(self, levels: Sequence[Level], neck: Neck | None, config: Any, library: Any, most: int) -> None:
        super().__init__()
        self.most = most
        self.neck = neck
        self._config, self._library = config, library
        self._first = _finest(levels if neck is None else neck.out_levels, exactly=neck is not None)
        sides = (levels if neck is None else neck.out_levels)[self._first : self._first + len(_STRIDES)]
        width, classes = config.d_model, config.num_labels
        self.encoder_input_proj = nn.ModuleList(_projection(level.channels, width) for level in sides)
        self.encoder = library.Encoder(config)
        self.decoder_input_proj = nn.ModuleList(_projection(width, width) for _ in sides)
        self.enc_output = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.enc_score_head = nn.Linear(width, classes)
        self.enc_bbox_head = library.Perceptron(width, width, 4, 3)
        self.decoder = library.Decoder(config)
        layers = range(config.decoder_layers)
        self.decoder.class_embed = nn.ModuleList(nn.Linear(width, classes) for _ in layers)
        self.decoder.bbox_embed = nn.ModuleList(library.Perceptron(width, width, 4, 3) for _ in layers)
        if config.num_denoising:
            self.denoising_class_embed = nn.Embedding(classes + 1, width, padding_idx=classes)
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw weights as the authors do. The library's own rule, a deviation of 0.01 everywhere (of the weights of
        batch norms, too), is made for weights that are loaded over it: what begins with it hardly learns."""
        for part in (self.encoder, self.decoder):
            _draw_layers(part)
        feedforward = [block.mlp for block in self.decoder.layers]
        for part in (self.decoder_input_proj, self.enc_output, self.decoder.query_pos_head, *feedforward):
            for layer in part.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    nn.init.xavier_uniform_(layer.weight)
        for scores in (self.enc_score_head, *self.decoder.class_embed):
            nn.init.constant_(scores.bias, -math.log(99))  # a chance of 0.01, as for the focal loss
        for boxes in (self.enc_bbox_head, *self.decoder.bbox_embed):
            nn.init.zeros_(boxes.layers[-1].weight)
            nn.init.zeros_(boxes.layers[-1].bias)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :func:`rt_detr`."""
        labels = [{"class_labels": one.labels, "boxes": _fractions(one.boxes, shape)} for one in targets]
        first, layers, blurred = self._look(maps, shape, sizes, labels)
        count = blurred.boxes.shape[1] if blurred else 0
        *earlier, last = (_Said(one.logits[:, count:], one.boxes[:, count:]) for one in layers)
        told = {**last.for_loss(), "auxiliary_outputs": [one.for_loss() for one in (*earlier, first)]}
        if blurred:
            told["dn_auxiliary_outputs"] = [
                _Said(one.logits[:, :count], one.boxes[:, :count]).for_loss() for one in layers
            ]
            told["denoising_meta_values"] = blurred.dataset_info
        losses: dict[str, Tensor] = self._library.Loss(self._config)(told, labels)
        share = self._share(targets)
        losses = {name: value * share for name, value in losses.items()}
        kinds = ("loss_vfl", "loss_bbox", "loss_giou")
        found = {kind: losses[kind] for kind in kinds}
        found["loss_auxiliary"] = torch.stack([value for name, value in losses.items() if "_aux_" in name]).sum()
        if self._config.num_denoising:
            # Without any box there is nothing to blur, but no parameter may miss a step.
            nothing = 0 * self.denoising_class_embed.weight.sum()
            found["loss_denoising"] = sum((value for name, value in losses.items() if "_dn_" in name), nothing)
        return found

    def _share(self, targets: Sequence[Target]) -> Tensor:
        """What the library's losses are multiplied by: they are means over the boxes of this process, and are to be
        means over those of the batch of all processes (1 where a mean would have none)."""
        count = sum(len(one.labels) for one in targets)
        everywhere = per_sample(self.enc_score_head.bias.new_tensor(float(count)), len(targets)) * len(targets)
        share: Tensor = max(count, 1) / everywhere.clamp(min=1)
        return share

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """The pairs of query and class with the highest scores. Nothing is suppressed."""
        _, layers, _ = self._look(maps, shape, sizes)
        logits, fractions = (one.float() for one in layers[-1])
        scores, pairs = logits.sigmoid().flatten(1).topk(min(self.most, logits[0].numel()))
        classes = logits.shape[-1]
        chosen = fractions.gather(1, (pairs // classes).unsqueeze(-1).expand(-1, -1, 4))
        height, width = shape
        boxes = box_convert(chosen, "cxcywh", "xyxy") * chosen.new_tensor([width, height, width, height])
        rows = zip(boxes, scores, pairs % classes, sizes, strict=True)
        return [Detections(clip_boxes_to_image(box, size), score, label) for box, score, label, size in rows]

    def _look(
        self,
        maps: Sequence[Tensor],
        shape: tuple[int, int],
        sizes: Sizes,
        labels: list[dict[str, Tensor]] | None = None,
    ) -> tuple[_Said, list[_Said], _Blurred | None]:
        """What the encoder says of the queries, what each layer of the decoder says of the blurred boxes and the
        queries behind them, and the blurred boxes, where there are ``labels`` to make them of."""
        memory, shapes = self._memory(maps)
        anchors, inside = _anchors(shapes, shape, sizes, memory.device)
        memory = memory * inside.unsqueeze(-1)
        first, content, coded = self._queries(memory, anchors, inside)
        blurred = self._blurred(labels, coded.shape[1]) if labels is not None else None
        if blurred:
            content = torch.cat([blurred.content, content], 1)
            coded = torch.cat([blurred.boxes, coded], 1)
        said = self.decoder(
            inputs_embeds=content,
            encoder_hidden_states=memory,
            encoder_attention_mask=blurred.apart if blurred else None,
            reference_points=coded.detach(),
            spatial_shapes=torch.tensor(shapes),  # stays on the CPU, where the library compares it with a number
            spatial_shapes_list=shapes,
        )
        layers = zip(said.intermediate_logits.unbind(1), said.intermediate_reference_points.unbind(1), strict=True)
        return first, [_Said(*one) for one in layers], blurred

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The neck's maps; without a neck the backbone's."""
        made: list[Tensor] = list(maps) if self.neck is None else self.neck(maps)
        return made

    def _memory(self, maps: Sequence[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        """What the hybrid encoder makes of the maps, place by place (B x N x C), and their heights and widths."""
        sides = maps[self._first : self._first + len(_STRIDES)]
        projected = [project(one) for project, one in zip(self.encoder_input_proj, sides, strict=True)]
        encoded = self.encoder(projected).last_hidden_state
        found = [project(one) for project, one in zip(self.decoder_input_proj, encoded, strict=True)]
        places = torch.cat([one.flatten(2).transpose(1, 2) for one in found], 1)
        return places, [(one.shape[-2], one.shape[-1]) for one in found]

    def _queries(self, memory: Tensor, anchors: Tensor, inside: Tensor) -> tuple[_Said, Tensor, Tensor]:
        """The places that look most like things: what the encoder says of them, their content (B x Q x C) and their
        boxes before the sigmoid (B x Q x 4)."""
        fits = ((anchors > 0.01) & (anchors < 0.99)).all(-1) & inside
        content = self.enc_output(memory * fits.unsqueeze(-1))
        logits = self.enc_score_head(content)
        # Where no box fits the library has the largest number, which makes a box without size at the lower right.
        origins = torch.logit(anchors).masked_fill(~fits.unsqueeze(-1), torch.finfo(anchors.dtype).max)
        coded = self.enc_bbox_head(content) + origins
        count = min(self._config.num_queries, memory.shape[1])
        best = logits.amax(-1).topk(count, dim=1).indices.unsqueeze(-1)
        logits, coded, content = (one.gather(1, best.expand(-1, -1, one.shape[-1])) for one in (logits, coded, content))
        return _Said(logits, coded.sigmoid()), content.detach(), coded

    def _blurred(self, labels: list[dict[str, Tensor]], queries: int) -> _Blurred | None:
        """Blurred boxes of a batch (DINO's contrastive denoising); none if it has no box."""
        config = self._config
        if not config.num_denoising:
            return None
        content, boxes, apart, dataset_info = self._library.blurred(
            targets=labels,
            num_classes=config.num_labels,
            num_queries=queries,
            class_embed=self.denoising_class_embed,
            num_denoising_queries=config.num_denoising,
            label_noise_ratio=config.label_noise_ratio,
            box_noise_scale=config.box_noise_scale,
        )
        return None if content is None else _Blurred(content, boxes, apart, dataset_info)


def _finest(levels: Sequence[Level], exactly: bool) -> int:
    """Where the three levels begin that are taken.

    Args:
        exactly: there may be no others: what is not looked at learns nothing.

    Raises:
        ValueError: there are no such levels.
    """
    strides = tuple(level.stride for level in levels)
    wanted, given = ", ".join(map(str, _STRIDES)), ", ".join(map(str, strides))
    if exactly:
        if strides != _STRIDES:
            raise ValueError(f"neck: it gives maps of strides {given}; rt_detr takes {wanted} and no others")
        return 0
    for first in range(len(strides)):
        if strides[first : first + len(_STRIDES)] == _STRIDES:
            return first
    raise ValueError(
        f"rt_detr takes maps of strides {wanted}, and the backbone gives {given}; a plain vision transformer needs "
        f"neck: {{name: simple_pyramid, strides: [{wanted}]}}"
    )


def _projection(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))


def _draw_layers(part: nn.Module) -> None:
    """Draw layers as torch draws them, and attention as its ``MultiheadAttention``. Deformable attention is left out:
    the library draws it as the authors do."""
    for name, layer in part.named_modules():
        if ".encoder_attn." in name or not isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
            continue
        layer.reset_parameters()
        if ".self_attn." in name:
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.bias)
            if not name.endswith("o_proj"):
                nn.init.xavier_uniform_(layer.weight, gain=0.5**0.5)  # there the three are one layer, twice as wide


def _anchors(
    shapes: Sequence[tuple[int, int]], shape: tuple[int, int], sizes: Sizes, device: torch.device
) -> tuple[Tensor, Tensor]:
    """A box around each place of the maps (N x 4: centre, width and height as fractions of the padded image), whose
    sides are 0.05 on the finest map and twice that on each coarser one; and whether the place lies in the image
    (bool, B x N)."""
    found = []
    for number, (height, width) in enumerate(shapes):
        y = (torch.arange(height, device=device) + 0.5) / height
        x = (torch.arange(width, device=device) + 0.5) / width
        centres = torch.cartesian_prod(y, x).flip(1)
        found.append(torch.cat([centres, torch.full_like(centres, 0.05 * 2**number)], 1))
    anchors = torch.cat(found)
    ends = torch.tensor([[width / shape[1], height / shape[0]] for height, width in sizes])
    inside = (anchors[:, :2] < ends.to(device, non_blocking=True)[:, None]).all(-1)
    return anchors, inside


def _fractions(boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Boxes in pixels as the library has them: centre, width and height as fractions of the padded image."""
    height, width = shape
    fractions: Tensor = box_convert(boxes / boxes.new_tensor([width, height, width, height]), "xyxy", "cxcywh")
    return fractions
