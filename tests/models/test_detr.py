import copy
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import DatasetInfo, Detector, Level, Target
from opabinia.models.detectors.rt_detr import RTDetr
from opabinia.models.losses import matching
from opabinia.models.necks import SimplePyramid

pytest.importorskip("transformers", reason="the extra detr is not installed")

INFO = DatasetInfo(samples=1, classes=("circle", "square"), boxes=True)
LEVELS = (Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32))
SMALL: dict[str, Any] = {
    "channels": 16,
    "num_queries": 12,
    "decoder_layers": 2,
    "attention_heads": 4,
    "ffn_dim": 24,
    "num_denoising": 10,
    "max_detections": 5,
}
SHAPE = (64, 96)
SIZES = [(64, 96), (50, 40)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def make_detector(**keys: Any) -> Any:
    return RTDetr(LEVELS, INFO, **{**SMALL, **keys})


def random_maps(images: int = 2, shape: tuple[int, int] = SHAPE, levels: Sequence[Level] = LEVELS) -> list[Tensor]:
    return [torch.randn(images, level.channels, shape[0] // level.stride, shape[1] // level.stride) for level in levels]


def make_target(*boxes: list[float]) -> Target:
    return Target(torch.tensor(boxes).view(-1, 4), torch.arange(len(boxes)) % 2)


TARGETS = [make_target([8, 8, 40, 32], [50, 20, 90, 60]), make_target([4, 4, 30, 44])]
EMPTY = [make_target(), make_target()]


# --- losses -----------------------------------------------------------------------------------------------------------


def test_discrete_sampling_trains_all_parameters_except_offsets() -> None:
    detector = make_detector(sampling="discrete")
    losses = detector.losses(random_maps(), SHAPE, SIZES, TARGETS)
    torch.stack(list(losses.values())).sum().backward()
    frozen = {name: param for name, param in detector.named_parameters() if param.grad is None}
    assert len(frozen) == 4 and all(
        "sampling_offsets" in name and not param.requires_grad for name, param in frozen.items()
    )


def test_losses_average_over_processes_to_those_of_the_global_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image has seven boxes, the other has one; each of two processes has one image."""
    detector, maps = make_detector(num_denoising=0).eval(), random_maps()
    seven_boxes = make_target(*([float(x), 4.0, x + 20.0, 30.0] for x in range(7)))
    targets = [seven_boxes, TARGETS[1]]
    expected = detector.losses(maps, SHAPE, SIZES, targets)
    monkeypatch.setattr(matching, "mean_over_samples", lambda total, samples: torch.tensor(8 / 2))
    parts = [detector.losses([level[[n]] for level in maps], SHAPE, [SIZES[n]], [targets[n]]) for n in range(2)]
    for name, value in expected.items():
        assert (parts[0][name] + parts[1][name]).item() / 2 == pytest.approx(value.item(), rel=1e-5), name


# --- the library ------------------------------------------------------------------------------------------------------


class FixedMaps(nn.Module):
    """Replaces the library's backbone: returns given feature maps."""

    def __init__(self, maps: Sequence[Tensor]) -> None:
        super().__init__()
        self.maps = maps

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> list[tuple[Tensor, None]]:
        return [(level, None) for level in self.maps]


def library_model(detector: Any, maps: Sequence[Tensor]) -> Any:
    """Return the library's model with the weights of our detector."""
    from transformers import RTDetrResNetConfig, RTDetrV2ForObjectDetection

    config = copy.deepcopy(detector._config)
    config.backbone_config = RTDetrResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8, 12, 16], depths=[1, 1, 1, 1], out_indices=[2, 3, 4], layer_type="basic"
    )
    model = RTDetrV2ForObjectDetection(config)
    model.model.backbone = FixedMaps(maps)
    report = model.model.load_state_dict(detector.state_dict(), strict=False)
    assert not report.unexpected_keys and not report.missing_keys
    return model


def test_images_without_padding_match_the_library() -> None:
    detector, maps = make_detector(num_denoising=0), random_maps()
    for weights in detector.parameters():
        nn.init.normal_(weights, std=0.3)
    model = library_model(detector.eval(), maps[1:]).eval()
    targets = [make_target([8, 8, 40, 32], [50, 20, 90, 60]), make_target([4, 4, 30, 44])]
    two_boxes = torch.tensor([[24 / 96, 20 / 64, 32 / 96, 24 / 64], [70 / 96, 40 / 64, 40 / 96, 40 / 64]])
    one_box = torch.tensor([[17 / 96, 24 / 64, 26 / 96, 40 / 64]])
    labels = [
        {"class_labels": torch.tensor([0, 1]), "boxes": two_boxes},
        {"class_labels": torch.tensor([0]), "boxes": one_box},
    ]
    with torch.no_grad():
        expected = model(torch.zeros(2, 3, *SHAPE), labels=labels)
        losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], targets)
        detections = detector.detect(maps, SHAPE, [SHAPE, SHAPE])
    for name in ("loss_vfl", "loss_bbox", "loss_giou"):
        assert losses[name].item() == pytest.approx(expected.loss_dict[name].item(), rel=1e-5)
    assert torch.stack(list(losses.values())).sum().item() == pytest.approx(expected.loss.item(), rel=1e-5)
    scores, pairs = expected.logits.sigmoid().flatten(1).topk(5)
    for number, image in enumerate(detections):
        torch.testing.assert_close(image.scores, scores[number])
        torch.testing.assert_close(image.labels, pairs[number] % 2)
        x, y, width, height = expected.pred_boxes[number, pairs[number] // 2].unbind(-1)
        corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1).clamp(0, 1)
        torch.testing.assert_close(image.boxes, corners * torch.tensor([96, 64, 96, 64]))


def test_denoising_matches_the_library() -> None:
    detector, maps = make_detector(), random_maps()
    model = library_model(detector, maps[1:]).train()
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.25, 0.5]])}] * 2
    torch.manual_seed(3)
    library_losses = model(torch.zeros(2, 3, *SHAPE), labels=labels).loss_dict
    torch.manual_seed(3)
    target = Target(torch.tensor([[36.0, 16, 60, 48]]), torch.tensor([1]))
    losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], [target, target])
    expected = sum(value.item() for name, value in library_losses.items() if "_dn_" in name)
    assert losses["loss_denoising"].item() == pytest.approx(expected, rel=1e-5)
    assert losses["loss_denoising"] > 0


# --- detections -------------------------------------------------------------------------------------------------------


def test_queries_ignore_the_padding() -> None:
    """The hybrid encoder's attention and convolutions do read it, as in every convolutional network."""
    detector = make_detector().eval()
    detector.encoder = IdentityEncoder()
    maps = random_maps()
    changed_maps = [level.clone() for level in maps]
    for features, level in zip(changed_maps, LEVELS, strict=True):
        # Positions whose centre is outside the 50 x 40 pixels of the second image.
        features[1, :, (50 + level.stride // 2) // level.stride :] = 9
        features[1, :, :, (40 + level.stride // 2) // level.stride :] = 9
    plain, changed = detector.detect(maps, SHAPE, SIZES), detector.detect(changed_maps, SHAPE, SIZES)
    torch.testing.assert_close(plain[1].boxes, changed[1].boxes)
    torch.testing.assert_close(plain[1].scores, changed[1].scores)
    unpadded = detector.detect(changed_maps, SHAPE, [SHAPE, SHAPE])
    assert not torch.allclose(plain[1].scores, unpadded[1].scores)


class IdentityEncoder(nn.Module):
    def forward(self, maps: list[Tensor]) -> Any:
        return type("Output", (), {"last_hidden_state": maps})


def test_small_images_have_at_most_as_many_queries_as_positions() -> None:
    detector = make_detector(num_queries=300, max_detections=100).eval()
    maps = random_maps(shape=(32, 32))  # 16 + 4 + 1 positions
    detections = detector.detect(maps, (32, 32), [(32, 32)] * 2)
    assert [len(image.boxes) for image in detections] == [42, 42]
    losses = detector.losses(maps, (32, 32), [(32, 32)] * 2, TARGETS)
    assert all(value.isfinite() for value in losses.values())


def test_more_objects_than_queries_are_no_error() -> None:
    boxes = [[float(x), 4.0, x + 8.0, 30.0] for x in range(20)]
    losses = make_detector().losses(random_maps(), SHAPE, SIZES, [make_target(*boxes), EMPTY[0]])
    assert all(value.isfinite() for value in losses.values())


# --- building ---------------------------------------------------------------------------------------------------------


def test_initial_weights_propagate_signals() -> None:
    """The library initializes batch norm weights to 0.01, which suppresses the input."""
    detector = make_detector()
    for name, module in detector.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all(), name
    scores = detector.detect(random_maps(), SHAPE, SIZES)[0].scores
    assert 0.005 < scores.mean() < 0.05  # about 0.01


def test_a_vision_transformer_takes_a_neck() -> None:
    levels = [Level(8, 16)]
    with pytest.raises(ValueError, match=r"strides 8, 16, 32, and the backbone gives 16; .* neck: \{name: simple_pyr"):
        RTDetr(levels, INFO, **SMALL)
    with pytest.raises(
        ValueError, match=r"neck: it gives feature maps of strides 4, 8, 16, 32, 64; the detector takes 8, 16, 32"
    ):
        RTDetr(levels, INFO, neck=SimplePyramid, **SMALL)
    detector: Detector = RTDetr(
        levels, INFO, neck=lambda given: SimplePyramid(given, channels=8, strides=(8, 16, 32)), **SMALL
    )
    losses = detector.losses(detector.pyramid(random_maps(levels=levels)), SHAPE, SIZES, TARGETS)
    torch.stack(list(losses.values())).sum().backward()
    assert all(param.grad is not None for param in detector.parameters())


def test_without_the_library_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"rt_detr needs the transformers library: pip install 'opabinia\[detr\]'"):
        make_detector()
