"""D-FINE: predictions and losses match the transformers library."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import DatasetInfo, Level, Target
from opabinia.models.detectors.d_fine import DFine
from opabinia.models.losses.boxes import box_losses
from opabinia.models.losses.focal import varifocal_loss
from opabinia.models.losses.matching import Costs, Objects, Pairs, Prediction, match_queries, unite_pairs

pytest.importorskip("transformers", reason="the extra detr is not installed")

INFO = DatasetInfo(samples=1, classes=("circle", "square"), boxes=True)
LEVELS = (Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32))
SMALL: dict[str, Any] = {
    "channels": 16,
    "num_queries": 12,
    "decoder_layers": 3,
    "attention_heads": 4,
    "ffn_dim": 24,
    "num_denoising": 10,
    "max_detections": 5,
}
SHAPE = (64, 96)
TARGETS = [
    Target(torch.tensor([[8.0, 8, 40, 32], [50, 20, 90, 60]]), torch.tensor([0, 1])),
    Target(torch.tensor([[4.0, 4, 30, 44]]), torch.tensor([0])),
]


class FixedMaps(nn.Module):
    """Replaces the library's backbone: returns given feature maps."""

    def __init__(self, maps: list[Tensor]) -> None:
        super().__init__()
        self.maps = maps
        self.intermediate_channel_sizes = [level.shape[1] for level in maps]

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> list[tuple[Tensor, None]]:
        return [(level, None) for level in self.maps]


def detector_and_maps(**options: Any) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    detector = DFine(LEVELS, INFO, **{**SMALL, **options})
    for param in detector.parameters():
        if param.requires_grad:
            nn.init.normal_(param, std=0.3)
    maps = [torch.randn(2, level.channels, SHAPE[0] // level.stride, SHAPE[1] // level.stride) for level in LEVELS]
    return detector, maps


def library_model(detector: Any, maps: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> Any:
    from transformers.models.d_fine import modeling_d_fine as library

    monkeypatch.setattr(library, "DFineConvEncoder", lambda config: FixedMaps(maps))
    model = library.DFineForObjectDetection(copy.deepcopy(detector._config))
    assert not any(model.model.load_state_dict(detector.state_dict(), strict=False))
    return model


@pytest.mark.parametrize("options", [{}, {"encoder_channels": 24, "hidden_expansion": 0.5, "depth_multiplier": 0.34}])
def test_detections_match_the_library(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    detector, maps = detector_and_maps(**options)
    model = library_model(detector.eval(), maps[1:], monkeypatch).eval()
    with torch.no_grad():
        expected = model(torch.zeros(2, 3, *SHAPE))
        results = detector.detect(maps, SHAPE, [SHAPE, SHAPE])
    scores, pairs = expected.logits.sigmoid().flatten(1).topk(5)
    for number, image in enumerate(results):
        torch.testing.assert_close(image.scores, scores[number])
        torch.testing.assert_close(image.labels, pairs[number] % 2)
        x, y, width, height = expected.pred_boxes[number, pairs[number] // 2].unbind(-1)
        corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1).clamp(0, 1)
        torch.testing.assert_close(image.boxes, corners * torch.tensor([96, 64, 96, 64]), atol=1e-3, rtol=1e-4)


def test_losses_of_a_layer_match_the_library() -> None:
    """Only within a layer: the layers and pairs that are compared differ (see the docstring of ``d_fine``)."""
    from transformers.loss.loss_d_fine import DFineLoss

    detector, _ = detector_and_maps(num_denoising=0)
    torch.manual_seed(1)
    corners, teacher = torch.randn(2, 2, 12, 4, 33)
    boxes, references, expected = (0.2 + 0.5 * torch.rand(count, 4) for count in (24, 24, 3))
    layer = Prediction(torch.randn(2, 12, 2), boxes.view(2, 12, 4))
    last, start = torch.randn(2, 12, 2), references.view(2, 12, 4)
    objects = Objects(torch.tensor([0, 1, 0]), expected, [2, 1])
    labels = [{"class_labels": objects.labels[part], "boxes": expected[part]} for part in (slice(0, 2), slice(2, 3))]
    library = DFineLoss(detector._config)
    theirs = library.matcher({"logits": layer.logits, "pred_boxes": layer.boxes}, labels)
    (pairs,) = match_queries([layer], objects)
    assert [pairs.queries[pairs.images == image].tolist() for image in range(2)] == [
        match[0].tolist() for match in theirs
    ]
    outputs = {"logits": layer.logits, "pred_boxes": layer.boxes, "ref_points": start, "teacher_logits": last}
    outputs |= {"pred_corners": corners.flatten(2), "teacher_corners": teacher.flatten(2)}
    values = {}
    for name in ("vfl", "boxes", "local"):
        values |= library.get_loss(name, outputs, labels, theirs, 3.0)

    count = torch.tensor(3.0)
    from opabinia.models.detectors.d_fine import _Layers

    refined = _Layers(layer.logits, layer.boxes, torch.stack([corners, teacher], 1), torch.stack([start, start], 1))
    predictions = [Prediction(last, layer.boxes), layer]
    losses = detector._all_losses(predictions, refined, [pairs, pairs], pairs, objects, count, count)[1]
    weights = {"loss_vfl": 1.0, "loss_bbox": 5.0, "loss_giou": 2.0, "loss_fgl": 0.15, "loss_ddf": 1.5}
    assert losses.keys() == weights.keys()
    for name, weight in weights.items():
        assert losses[name].item() == pytest.approx(weight * values[name].item(), rel=1e-5), name


def test_two_levels_as_in_the_smallest_model() -> None:
    detector, maps = detector_and_maps(strides=[16, 32], decoder_n_points=[6, 6])
    detections = detector.eval().detect(maps, SHAPE, [SHAPE, SHAPE])
    assert [len(image.boxes) for image in detections] == [5, 5]
    with pytest.raises(ValueError, match="decoder_n_points: one number for each of the 3 strides, not 2"):
        detector_and_maps(decoder_n_points=[6, 6])


def test_a_query_is_matched_to_the_object_of_most_layers() -> None:
    """Query 3 of image 0 has object 1 in two layers and object 0 in one; query 5 has object 0 in one."""
    layers = [([0, 0], [3, 5], [1, 0]), ([0, 0], [3, 4], [1, 0]), ([0], [3], [0])]
    united = unite_pairs([Pairs(*map(torch.tensor, layer)) for layer in layers])
    result = sorted(zip(*(values.tolist() for values in united), strict=True))
    assert result == [(0, 3, 1), (0, 4, 0), (0, 5, 0)]


def test_matching_minimizes_the_cost_in_every_group() -> None:
    objects = Objects(torch.tensor([0, 1]), torch.tensor([[0.2, 0.2, 0.1, 0.1], [0.7, 0.7, 0.2, 0.2]]), [2, 0])
    boxes = objects.boxes[[1, 0, 1, 0]].expand(2, 4, 4)
    (pairs,) = match_queries([Prediction(torch.zeros(2, 4, 2), boxes)], objects, Costs(), groups=2)
    assert pairs.queries.tolist() == [0, 1, 2, 3] and pairs.objects.tolist() == [1, 0, 1, 0]
    count = torch.tensor(4.0)
    assert [
        value.item() for value in box_losses(Prediction(boxes[..., :2], boxes), pairs, objects, count)
    ] == pytest.approx([0, 0], abs=1e-5)
    perfect = torch.full((2, 4, 2), -20.0)
    perfect[pairs.images, pairs.queries, objects.labels[pairs.objects]] = 20.0
    assert varifocal_loss(Prediction(perfect, boxes), pairs, objects, count).item() < 1e-6
