"""DETR and its successors: losses and detections are those of the transformers library; where they differ, by hand."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import DataMismatch, Detector, Level, Target
from opabinia.models.detectors import DFine, RTDetr, deformable_detr, detr, rf_detr
from opabinia.models.detectors.d_fine import _Layers
from opabinia.models.losses import matching
from opabinia.models.losses.boxes import box_losses
from opabinia.models.losses.focal import varifocal_loss
from opabinia.models.losses.matching import Costs, Objects, Pairs, Prediction, match_queries, unite_pairs
from opabinia.models.necks import SimplePyramid
from tests.models.test_detectors import GROUPS, HEADS, INFO, LEVELS, QUERIES, SHAPE, SIZES

pytest.importorskip("transformers", reason="the extra detr is not installed")

HYBRID: dict[str, Any] = {"channels": 16, "num_denoising": 10, "max_detections": 5, **QUERIES, "attention_heads": 4}
BUILDERS: Mapping[str, Callable[..., Any]] = {
    "detr": partial(detr, channels=16, **QUERIES, **HEADS),
    "deformable": partial(deformable_detr, channels=32, **QUERIES, **HEADS),
    "refined": partial(deformable_detr, channels=32, refine_boxes=True, **QUERIES, **HEADS),
    "rf_detr": partial(rf_detr, channels=32, **{**QUERIES, "num_queries": 6}, **GROUPS),
    "rt_detr": partial(RTDetr, **HYBRID),
    "d_fine": partial(DFine, **{**HYBRID, "decoder_layers": 3}),
}
LIBRARY = ("detr", "deformable", "refined", "rf_detr")


def random_maps(shape: tuple[int, int] = SHAPE, levels: Sequence[Level] = LEVELS) -> list[Tensor]:
    return [torch.randn(2, level.channels, shape[0] // level.stride, shape[1] // level.stride) for level in levels]


def build_detector(name: str, **options: Any) -> tuple[Any, list[Tensor]]:
    """Return a detector with large random weights, and feature maps."""
    torch.manual_seed(0)
    detector = BUILDERS[name](LEVELS, INFO, **options)
    for param in detector.parameters():
        if param.requires_grad and param.ndim > 1:
            nn.init.normal_(param, std=0.3)
    return detector, random_maps()


def make_target(*boxes: list[float]) -> Target:
    return Target(torch.tensor(boxes).view(-1, 4), torch.arange(len(boxes)) % 2)


TARGETS = [make_target([8, 8, 40, 32], [50, 20, 90, 60]), make_target([4, 4, 30, 44])]
LABELS = [
    {
        "class_labels": torch.tensor([0, 1]),
        "boxes": torch.tensor([[24 / 96, 20 / 64, 32 / 96, 24 / 64], [70 / 96, 40 / 64, 40 / 96, 40 / 64]]),
    },
    {"class_labels": torch.tensor([0]), "boxes": torch.tensor([[17 / 96, 24 / 64, 26 / 96, 40 / 64]])},
]


# --- whole models of the library --------------------------------------------------------------------------------------


def library_loss(detector: Any, maps: list[Tensor], mode: bool) -> Tensor:
    model = copy.deepcopy(detector.model).train(mode)
    del model._loss_function
    model.config.class_cost = int(detector.costs.label)
    model.get_submodule(detector._backbone).maps = maps[detector._levels]
    mask = torch.zeros(2, *SHAPE, dtype=torch.int64)
    for row, (height, width) in zip(mask, SIZES, strict=True):
        row[:height, :width] = 1
    values = model(torch.zeros(2, 3, *SHAPE), pixel_mask=mask, labels=LABELS)
    classes = [value for name, value in values.loss_dict.items() if name.startswith("loss_ce")]
    loss: Tensor = values.loss + (detector._criterion.weights[0] - 1) * sum(classes)  # the library's weight is 1
    return loss


# Without rf_detr in evaluation: the library's loss divides its only group into groups.
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in LIBRARY for mode in (True, False) if mode or name != "rf_detr"]
)
def test_losses_match_the_library(name: str, mode: bool) -> None:
    detector, maps = build_detector(name)
    with torch.no_grad():
        losses = detector.train(mode).losses(maps, SHAPE, SIZES, TARGETS)
        expected = library_loss(detector, maps, mode)
    assert losses.keys() == {"loss_ce", "loss_bbox", "loss_giou", "loss_auxiliary"}
    if name == "detr":  # the library's own losses of earlier layers need another network (see SoftmaxDetector)
        assert losses.pop("loss_auxiliary") > 0
    assert sum(value.item() for value in losses.values()) == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
def test_detr() -> None:
    """A query has one class; padding is not read; earlier layers are those of a smaller decoder."""
    detector, maps = build_detector("detr")
    images = detector.eval().detect(maps, SHAPE, SIZES)
    assert (images[0].scores > 0).sum() == 12
    padded = [level.clone() for level in maps]
    padded[-1][1, :, :, 2:] = 9  # positions beyond the 40 pixels of the second image
    torch.testing.assert_close(images[1].boxes, detector.detect(padded, SHAPE, SIZES)[1].boxes)
    objects = Objects(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), [0, 0])
    (earlier,) = detector._predict(maps, SHAPE, torch.tensor(SIZES), objects).earlier
    del detector.model.model.decoder.layers[1:]
    torch.testing.assert_close(earlier, detector._predict(maps, SHAPE, torch.tensor(SIZES)).last)


# --- models of its layers: RT-DETR and D-FINE -------------------------------------------------------------------------


class FixedMaps(nn.Module):
    """Replaces the library's backbone: returns given feature maps."""

    def __init__(self, maps: Sequence[Tensor]) -> None:
        super().__init__()
        self.maps = maps
        self.intermediate_channel_sizes = [level.shape[1] for level in maps]

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> list[tuple[Tensor, None]]:
        return [(level, None) for level in self.maps]


def library_model(name: str, detector: Any, maps: Sequence[Tensor], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the library's model with the weights of our detector."""
    module, prefix = {"rt_detr": ("rt_detr_v2", "RTDetrV2"), "d_fine": ("d_fine", "DFine")}[name]
    library = import_module(f"transformers.models.{module}.modeling_{module}")
    monkeypatch.setattr(library, f"{prefix}ConvEncoder", lambda config: FixedMaps(maps))
    model = getattr(library, f"{prefix}ForObjectDetection")(copy.deepcopy(detector._config))
    assert not any(model.model.load_state_dict(detector.state_dict(), strict=False))
    return model


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rt_detr", {"num_denoising": 0}),
        ("d_fine", {}),
        ("d_fine", {"encoder_channels": 24, "hidden_expansion": 0.5, "depth_multiplier": 0.34}),
    ],
)
def test_images_without_padding_match_the_library(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, maps = build_detector(name, **options)
    model = library_model(name, detector.eval(), maps[1:], monkeypatch).eval()
    with torch.no_grad():
        expected = model(torch.zeros(2, 3, *SHAPE), labels=LABELS if name == "rt_detr" else None)
        losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], TARGETS)
        detections = detector.eval().detect(maps, SHAPE, [SHAPE, SHAPE])
    if name == "rt_detr":
        for key in ("loss_vfl", "loss_bbox", "loss_giou"):
            assert losses[key].item() == pytest.approx(expected.loss_dict[key].item(), rel=1e-5)
        assert sum(value.item() for value in losses.values()) == pytest.approx(expected.loss.item(), rel=1e-5)
    scores, pairs = expected.logits.sigmoid().flatten(1).topk(5)
    for number, image in enumerate(detections):
        torch.testing.assert_close(image.scores, scores[number])
        torch.testing.assert_close(image.labels, pairs[number] % 2)
        x, y, width, height = expected.pred_boxes[number, pairs[number] // 2].unbind(-1)
        corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1).clamp(0, 1)
        torch.testing.assert_close(image.boxes, corners * torch.tensor([96, 64, 96, 64]), atol=1e-3, rtol=1e-4)


def denoising_losses(monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return our loss of denoising queries and the library's."""
    detector, maps = build_detector("rt_detr")
    model = library_model("rt_detr", detector, maps[1:], monkeypatch).train()
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.25, 0.5]])}] * 2
    torch.manual_seed(3)
    library_losses = model(torch.zeros(2, 3, *SHAPE), labels=labels).loss_dict
    torch.manual_seed(3)
    target = Target(torch.tensor([[36.0, 16, 60, 48]]), torch.tensor([1]))
    losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], [target, target])
    expected = sum(value.item() for name, value in library_losses.items() if "_dn_" in name)
    return losses["loss_denoising"].item(), expected


def test_denoising_matches_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, expected = denoising_losses(monkeypatch)
    assert 0 < loss == pytest.approx(expected, rel=1e-5)


def layer_losses_of_d_fine() -> tuple[dict[str, float], dict[str, float]]:
    """Return our losses of a layer and the library's, times their weights."""
    from transformers.loss.loss_d_fine import DFineLoss

    detector, _ = build_detector("d_fine", num_denoising=0)
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
    refined = _Layers(layer.logits, layer.boxes, torch.stack([corners, teacher], 1), torch.stack([start, start], 1))
    predictions = [Prediction(last, layer.boxes), layer]
    losses = detector._all_losses(predictions, refined, [pairs, pairs], pairs, objects, count, count)[1]
    weights = {"loss_vfl": 1.0, "loss_bbox": 5.0, "loss_giou": 2.0, "loss_fgl": 0.15, "loss_ddf": 1.5}
    expected_losses = {name: weight * values[name].item() for name, weight in weights.items()}
    return {name: value.item() for name, value in losses.items()}, expected_losses


def test_losses_of_a_layer_of_d_fine_match_the_library() -> None:
    """Only within a layer: the layers and pairs that are compared differ (see the docstring of ``d_fine``)."""
    losses, expected = layer_losses_of_d_fine()
    assert losses == pytest.approx(expected, rel=1e-5)


def test_d_fine_of_two_levels_as_in_the_smallest_model() -> None:
    detector, maps = build_detector("d_fine", strides=[16, 32], decoder_n_points=[6, 6])
    assert [len(image.boxes) for image in detector.eval().detect(maps, SHAPE, [SHAPE, SHAPE])] == [5, 5]


def test_losses_average_over_processes_to_those_of_the_global_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image has seven boxes, the other has one; each of two processes has one image."""
    detector, maps = build_detector("rt_detr", num_denoising=0)
    seven_boxes = make_target(*([float(x), 4.0, x + 20.0, 30.0] for x in range(7)))
    targets = [seven_boxes, TARGETS[1]]
    expected = detector.eval().losses(maps, SHAPE, SIZES, targets)
    monkeypatch.setattr(matching, "mean_over_samples", lambda total, samples: torch.tensor(8 / 2))
    parts = [detector.losses([level[[n]] for level in maps], SHAPE, [SIZES[n]], [targets[n]]) for n in range(2)]
    for name, value in expected.items():
        assert (parts[0][name] + parts[1][name]).item() / 2 == pytest.approx(value.item(), rel=1e-5), name


def test_discrete_sampling_trains_all_parameters_except_offsets() -> None:
    detector, maps = build_detector("rt_detr", sampling="discrete")
    torch.stack(list(detector.losses(maps, SHAPE, SIZES, TARGETS).values())).sum().backward()
    frozen = {name: param for name, param in detector.named_parameters() if param.grad is None}
    assert len(frozen) == 4
    assert all("sampling_offsets" in name and not param.requires_grad for name, param in frozen.items())


class IdentityEncoder(nn.Module):
    def forward(self, maps: list[Tensor]) -> Any:
        return type("Output", (), {"last_hidden_state": maps})


def test_queries_ignore_the_padding() -> None:
    """The hybrid encoder's attention and convolutions do read it, as in every convolutional network."""
    detector, maps = build_detector("rt_detr")
    detector.eval().encoder = IdentityEncoder()
    changed_maps = [level.clone() for level in maps]
    for features, level in zip(changed_maps, LEVELS, strict=True):
        # Positions whose center is outside the 50 x 40 pixels of the second image.
        features[1, :, (50 + level.stride // 2) // level.stride :] = 9
        features[1, :, :, (40 + level.stride // 2) // level.stride :] = 9
    plain, changed = detector.detect(maps, SHAPE, SIZES), detector.detect(changed_maps, SHAPE, SIZES)
    torch.testing.assert_close(plain[1][:2], changed[1][:2])
    assert not torch.allclose(plain[1].scores, detector.detect(changed_maps, SHAPE, [SHAPE, SHAPE])[1].scores)


def test_small_images_and_many_objects() -> None:
    """There are at most as many queries as positions, and there may be more objects than queries."""
    detector, _ = build_detector("rt_detr", num_queries=300, max_detections=100)
    maps = random_maps(shape=(32, 32))  # 16 + 4 + 1 positions
    detections = detector.eval().detect(maps, (32, 32), [(32, 32)] * 2)
    assert [len(image.boxes) for image in detections] == [42, 42]
    many = make_target(*([float(x), 4.0, x + 8.0, 30.0] for x in range(30)))
    losses = detector.losses(maps, (32, 32), [(32, 32)] * 2, [many, make_target()])
    assert all(value.isfinite() for value in losses.values())


def test_initial_weights_propagate_signals() -> None:
    """The library initializes batch norm weights to 0.01, which suppresses the input."""
    torch.manual_seed(0)
    detector = BUILDERS["rt_detr"](LEVELS, INFO)
    norms = [module for module in detector.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all((module.weight == 1).all() for module in norms)
    scores = detector.detect(random_maps(), SHAPE, SIZES)[0].scores
    assert 0.005 < scores.mean() < 0.05  # about 0.01


# --- matching ---------------------------------------------------------------------------------------------------------


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
    l1, giou = box_losses(Prediction(boxes[..., :2], boxes), pairs, objects, count)
    assert (l1.item(), giou.item()) == pytest.approx((0, 0), abs=1e-5)
    perfect = torch.full((2, 4, 2), -20.0)
    perfect[pairs.images, pairs.queries, objects.labels[pairs.objects]] = 20.0
    assert varifocal_loss(Prediction(perfect, boxes), pairs, objects, count).item() < 1e-6


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "levels", "options", "message"),
    [
        ("detr", LEVELS, {"channels": 18}, r"channels: a multiple of 4 and of attention_heads \(4\), not 18"),
        ("deformable", LEVELS, {"channels": 48}, r"channels: a multiple of 32 and of attention_heads \(4\), not 48"),
        ("rf_detr", LEVELS, {"channels": 30}, "channels: a multiple of 4"),
        ("rf_detr", (*LEVELS, Level(8, 32)), {}, r"the same number of channels, not \[16, 8\]"),
        ("rt_detr", LEVELS, {"channels": 20, "attention_heads": 8}, r"a multiple of 4 and of attention_heads \(8\)"),
        ("d_fine", LEVELS, {"decoder_n_points": [6, 6]}, "decoder_n_points: one number for each of the 3 strides"),
        ("rt_detr", [Level(8, 16)], {}, r"strides 8, 16, 32, and the backbone gives 16; .* neck: \{name: simple_pyr"),
        (
            *("rt_detr", [Level(8, 16)], {"neck": SimplePyramid}),
            "neck: it gives feature maps of strides 4, 8, 16, 32, 64; the detector takes 8, 16, 32",
        ),
    ],
)
def test_options_that_do_not_fit_raise(name: str, levels: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BUILDERS[name](levels, INFO, **options)


def test_images_with_too_few_positions_raise() -> None:
    detector, maps = build_detector("rf_detr")
    with pytest.raises(DataMismatch, match="images of 32 x 32 have 1 positions, and rf_detr selects num_queries = 6"):
        detector.detect([level[..., :1, :1] for level in maps], (32, 32), [(32, 32)] * 2)


def test_a_vision_transformer_takes_a_neck() -> None:
    levels = [Level(8, 16)]
    neck = partial(SimplePyramid, channels=8, strides=(8, 16, 32))
    detector: Detector = BUILDERS["rt_detr"](levels, INFO, neck=neck)
    losses = detector.losses(detector.pyramid(random_maps(levels=levels)), SHAPE, SIZES, TARGETS)
    torch.stack(list(losses.values())).sum().backward()
    assert all(param.grad is not None for param in detector.parameters())


def test_without_the_library_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"rt_detr needs the transformers library: pip install 'opabinia\[detr\]'"):
        build_detector("rt_detr")


def test_d_fine_without_objects_has_no_loss_of_denoising() -> None:
    """The embedding of the classes has a gradient all the same, as every parameter in every step."""
    detector, maps = build_detector("d_fine")
    nothing = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], [nothing, nothing])
    assert losses["loss_denoising"].item() == 0
    losses["loss_denoising"].backward()
    assert detector.denoising_class_embed.weight.grad is not None
