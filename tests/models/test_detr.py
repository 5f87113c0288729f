import copy
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from opabinia.contracts import DatasetInfo, Detections, Detector, Level, Target
from opabinia.models.detectors import queries
from opabinia.models.detectors.rt_detr import RTDetr
from opabinia.models.necks import SimplePyramid

pytest.importorskip("transformers", reason="the extra detr is not installed")

FACTS = DatasetInfo(samples=1, classes=("circle", "square"), boxes=True)
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


def made(**keys: Any) -> Any:
    return RTDetr(LEVELS, FACTS, **{**SMALL, **keys})


def drawn_maps(images: int = 2, shape: tuple[int, int] = SHAPE, levels: Sequence[Level] = LEVELS) -> list[Tensor]:
    return [torch.randn(images, level.channels, shape[0] // level.stride, shape[1] // level.stride) for level in levels]


def wanted(*boxes: list[float]) -> Target:
    return Target(torch.tensor(boxes).view(-1, 4), torch.arange(len(boxes)) % 2)


TARGETS = [wanted([8, 8, 40, 32], [50, 20, 90, 60]), wanted([4, 4, 30, 44])]
EMPTY = [wanted(), wanted()]


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [TARGETS, [TARGETS[0], EMPTY[1]], EMPTY], ids=["boxes", "one without", "none"])
@pytest.mark.parametrize("denoising", [0, 10])
def test_every_parameter_learns_in_every_step(targets: list[Target], denoising: int) -> None:
    detector = made(num_denoising=denoising)
    maps = [one.requires_grad_() for one in drawn_maps()]
    losses = detector.losses(maps, SHAPE, SIZES, targets)
    names = {"loss_vfl", "loss_bbox", "loss_giou", "loss_auxiliary"} | ({"loss_denoising"} if denoising else set())
    assert losses.keys() == names
    assert all(value.ndim == 0 and value.isfinite() for value in losses.values())
    torch.stack(list(losses.values())).sum().backward()
    assert [name for name, one in detector.named_parameters() if one.grad is None] == []
    assert [one.grad is not None for one in maps] == [False, True, True, True]


def test_discrete_sampling_trains_everything_but_the_offsets() -> None:
    detector = made(sampling="discrete")
    losses = detector.losses(drawn_maps(), SHAPE, SIZES, TARGETS)
    torch.stack(list(losses.values())).sum().backward()
    frozen = {name: param for name, param in detector.named_parameters() if param.grad is None}
    assert len(frozen) == 4 and all(
        "sampling_offsets" in name and not one.requires_grad for name, one in frozen.items()
    )


def test_without_a_box_only_the_classes_have_something_to_lose() -> None:
    losses = made().losses(drawn_maps(), SHAPE, SIZES, EMPTY)
    assert losses["loss_bbox"] == losses["loss_giou"] == losses["loss_denoising"] == 0
    assert losses["loss_vfl"] > 0


def test_losses_are_the_same_in_training_and_in_evaluation() -> None:
    detector, maps = made(), drawn_maps()
    norms = [one for one in detector.modules() if isinstance(one, nn.BatchNorm2d)]
    found = []
    for mode in (True, False):
        detector.train(mode)
        for norm in norms:
            norm.eval()
        torch.manual_seed(1)
        found.append(detector.losses(maps, SHAPE, SIZES, TARGETS))
    assert {name: value.item() for name, value in found[0].items()} == pytest.approx(
        {name: value.item() for name, value in found[1].items()}
    )


def test_weights_of_losses_multiply_them() -> None:
    plain, weighted = made(), made(vfl_weight=3, box_weight=10, giou_weight=0, num_denoising=0)
    weighted.load_state_dict(plain.state_dict(), strict=False)
    maps = drawn_maps()
    a, b = (one.eval().losses(maps, SHAPE, SIZES, TARGETS) for one in (plain, weighted))
    assert b["loss_vfl"].item() == pytest.approx(3 * a["loss_vfl"].item())
    assert b["loss_bbox"].item() == pytest.approx(2 * a["loss_bbox"].item())
    assert b["loss_giou"] == 0


def test_parts_of_a_batch_on_many_processes_count_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven boxes in one image and one in the other; each process has one of the two images."""
    detector, maps = made(num_denoising=0).eval(), drawn_maps()
    many = wanted(*([float(x), 4.0, x + 20.0, 30.0] for x in range(7)))
    targets = [many, TARGETS[1]]
    whole = detector.losses(maps, SHAPE, SIZES, targets)
    monkeypatch.setattr(queries, "mean_over_samples", lambda total, samples: torch.tensor(8 / 2))
    parts = [detector.losses([one[[n]] for one in maps], SHAPE, [SIZES[n]], [targets[n]]) for n in range(2)]
    for name, value in whole.items():
        assert (parts[0][name] + parts[1][name]).item() / 2 == pytest.approx(value.item(), rel=1e-5), name


@pytest.mark.slow
def test_it_learns_where_squares_are() -> None:
    """From nothing, in 250 steps of 8 images."""
    body = Body()
    detector = made(channels=32, num_queries=30, ffn_dim=64, num_denoising=30, max_detections=10)
    both = nn.ModuleList([body, detector])
    optimizer = torch.optim.AdamW(both.parameters(), lr=1e-3)
    for step in range(250):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 30) * (1 - step / 250)
        images, targets = squares(8)
        losses = detector.losses(body(images), SHAPE, [SHAPE] * 8, targets)
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(both.parameters(), 0.1)
        optimizer.step()
    both.eval()
    images, targets = squares(32)
    with torch.no_grad():
        found = detector.detect(body(images), SHAPE, [SHAPE] * 32)
    overlaps = [box_iou(one.boxes[:1], target.boxes) for one, target in zip(found, targets, strict=True)]
    assert torch.cat(overlaps).mean() > 0.6
    right = [one.labels[0] == target.labels[0] for one, target in zip(found, targets, strict=True)]
    assert torch.stack(right).float().mean() > 0.9


class Body(nn.Sequential):
    """Five convolutions, of which the last four give maps."""

    def __init__(self) -> None:
        widths = [3, 6, *(level.channels for level in LEVELS)]
        super().__init__(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in pairwise(widths)
            )
        )

    def forward(self, images: Tensor) -> list[Tensor]:  # type: ignore[override]
        maps = [self[0](images)]
        for layer in list(self)[1:]:
            maps.append(layer(maps[-1]))
        return maps[1:]


def squares(count: int) -> tuple[Tensor, list[Target]]:
    """Noise with one rectangle each, whose channel is its class."""
    images, targets = 0.2 * torch.rand(count, 3, *SHAPE), []
    for image in images:
        width, height = (int(side) for side in torch.randint(16, 40, (2,)))
        left, top = (int(torch.randint(0, side, ())) for side in (SHAPE[1] - width, SHAPE[0] - height))
        label = int(torch.randint(0, 2, ()))
        image[label, top : top + height, left : left + width] = 1
        box = [[float(left), float(top), float(left + width), float(top + height)]]
        targets.append(Target(torch.tensor(box), torch.tensor([label])))
    return images, targets


# --- the library ------------------------------------------------------------------------------------------------------


class Given(nn.Module):
    """In the place of the library's backbone: maps that are there already."""

    def __init__(self, maps: Sequence[Tensor]) -> None:
        super().__init__()
        self.maps = maps

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> list[tuple[Tensor, None]]:
        return [(one, None) for one in self.maps]


def library_model(detector: Any, maps: Sequence[Tensor]) -> Any:
    """The library's whole model with the weights of ours."""
    from transformers import RTDetrResNetConfig, RTDetrV2ForObjectDetection

    config = copy.deepcopy(detector._config)
    config.backbone_config = RTDetrResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8, 12, 16], depths=[1, 1, 1, 1], out_indices=[2, 3, 4], layer_type="basic"
    )
    model = RTDetrV2ForObjectDetection(config)
    model.model.backbone = Given(maps)
    left = model.model.load_state_dict(detector.state_dict(), strict=False)
    assert not left.unexpected_keys and not left.missing_keys
    return model


def test_an_image_without_padding_gives_what_the_library_gives() -> None:
    detector, maps = made(num_denoising=0), drawn_maps()
    for weights in detector.parameters():
        nn.init.normal_(weights, std=0.3)
    model = library_model(detector.eval(), maps[1:]).eval()
    targets = [wanted([8, 8, 40, 32], [50, 20, 90, 60]), wanted([4, 4, 30, 44])]
    two = torch.tensor([[24 / 96, 20 / 64, 32 / 96, 24 / 64], [70 / 96, 40 / 64, 40 / 96, 40 / 64]])
    one = torch.tensor([[17 / 96, 24 / 64, 26 / 96, 40 / 64]])
    labels = [{"class_labels": torch.tensor([0, 1]), "boxes": two}, {"class_labels": torch.tensor([0]), "boxes": one}]
    with torch.no_grad():
        said = model(torch.zeros(2, 3, *SHAPE), labels=labels)
        losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], targets)
        found = detector.detect(maps, SHAPE, [SHAPE, SHAPE])
    for name in ("loss_vfl", "loss_bbox", "loss_giou"):
        assert losses[name].item() == pytest.approx(said.loss_dict[name].item(), rel=1e-5)
    assert torch.stack(list(losses.values())).sum().item() == pytest.approx(said.loss.item(), rel=1e-5)
    scores, pairs = said.logits.sigmoid().flatten(1).topk(5)
    for number, detections in enumerate(found):
        torch.testing.assert_close(detections.scores, scores[number])
        torch.testing.assert_close(detections.labels, pairs[number] % 2)
        x, y, width, height = said.pred_boxes[number, pairs[number] // 2].unbind(-1)
        corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1).clamp(0, 1)
        torch.testing.assert_close(detections.boxes, corners * torch.tensor([96, 64, 96, 64]))


def test_denoising_gives_what_the_library_gives() -> None:
    detector, maps = made(), drawn_maps()
    model = library_model(detector, maps[1:]).train()
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.25, 0.5]])}] * 2
    torch.manual_seed(3)
    said = model(torch.zeros(2, 3, *SHAPE), labels=labels).loss_dict
    torch.manual_seed(3)
    target = Target(torch.tensor([[36.0, 16, 60, 48]]), torch.tensor([1]))
    losses = detector.losses(maps, SHAPE, [SHAPE, SHAPE], [target, target])
    expected = sum(value.item() for name, value in said.items() if "_dn_" in name)
    assert losses["loss_denoising"].item() == pytest.approx(expected, rel=1e-5)
    assert losses["loss_denoising"] > 0


# --- detections -------------------------------------------------------------------------------------------------------


def test_it_gives_the_best_pairs_of_query_and_class_within_the_image() -> None:
    detector = made().eval()
    found = detector.detect(drawn_maps(), SHAPE, SIZES)
    assert all(isinstance(one, Detections) and one.masks is None for one in found)
    for one, (height, width) in zip(found, SIZES, strict=True):
        assert one.boxes.shape == (5, 4) and one.scores.shape == one.labels.shape == (5,)
        assert (one.scores.diff() <= 0).all() and set(one.labels.tolist()) <= {0, 1}
        assert (one.boxes >= 0).all() and (one.boxes[:, 2::2] <= width).all() and (one.boxes[:, 3::2] <= height).all()


def test_what_lies_in_the_padding_is_not_looked_at_by_queries() -> None:
    """Attention and convolutions of the hybrid encoder see it, as in every convolutional network."""
    detector = made().eval()
    detector.encoder = Passing()
    maps = drawn_maps()
    others = [one.clone() for one in maps]
    for one, level in zip(others, LEVELS, strict=True):
        # Places whose middle lies beyond the 50 x 40 pixels of the second image.
        one[1, :, (50 + level.stride // 2) // level.stride :] = 9
        one[1, :, :, (40 + level.stride // 2) // level.stride :] = 9
    plain, changed = detector.detect(maps, SHAPE, SIZES), detector.detect(others, SHAPE, SIZES)
    torch.testing.assert_close(plain[1].boxes, changed[1].boxes)
    torch.testing.assert_close(plain[1].scores, changed[1].scores)
    whole = detector.detect(others, SHAPE, [SHAPE, SHAPE])
    assert not torch.allclose(plain[1].scores, whole[1].scores)


class Passing(nn.Module):
    def forward(self, maps: list[Tensor]) -> Any:
        return type("Output", (), {"last_hidden_state": maps})


def test_small_images_have_as_many_queries_as_places() -> None:
    detector = made(num_queries=300, max_detections=100).eval()
    maps = drawn_maps(shape=(32, 32))  # 16 + 4 + 1 places
    found = detector.detect(maps, (32, 32), [(32, 32)] * 2)
    assert [len(one.boxes) for one in found] == [42, 42]
    losses = detector.losses(maps, (32, 32), [(32, 32)] * 2, TARGETS)
    assert all(value.isfinite() for value in losses.values())


def test_more_objects_than_queries_are_no_error() -> None:
    boxes = [[float(x), 4.0, x + 8.0, 30.0] for x in range(20)]
    losses = made().losses(drawn_maps(), SHAPE, SIZES, [wanted(*boxes), EMPTY[0]])
    assert all(value.isfinite() for value in losses.values())


def test_it_goes_in_half_precision() -> None:
    detector = made()
    with torch.autocast("cpu", torch.bfloat16):
        losses = detector.losses(drawn_maps(), SHAPE, SIZES, TARGETS)
        found = detector.detect(drawn_maps(), SHAPE, SIZES)
    torch.stack(list(losses.values())).sum().backward()
    assert all(value.dtype == torch.float32 and value.isfinite() for value in losses.values())
    assert found[0].boxes.dtype == torch.float32


# --- building ---------------------------------------------------------------------------------------------------------


def test_what_is_drawn_lets_signals_through() -> None:
    """The library draws batch norms with weights of 0.01, so that nothing of an image arrives."""
    detector = made()
    for name, one in detector.named_modules():
        if isinstance(one, nn.BatchNorm2d):
            assert (one.weight == 1).all(), name
    scores = detector.detect(drawn_maps(), SHAPE, SIZES)[0].scores
    assert 0.005 < scores.mean() < 0.05  # about 0.01


def test_the_same_seed_draws_the_same_weights() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(made().state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_it_can_be_copied() -> None:
    detector = made().eval()
    maps = drawn_maps()
    again = copy.deepcopy(detector)
    torch.testing.assert_close(again.detect(maps, SHAPE, SIZES)[0], detector.detect(maps, SHAPE, SIZES)[0])
    with torch.device("meta"):
        assert all(one.is_meta for one in made().parameters())


def test_a_vision_transformer_takes_a_neck() -> None:
    levels = [Level(8, 16)]
    with pytest.raises(ValueError, match=r"strides 8, 16, 32, and the backbone gives 16; .* neck: \{name: simple_pyr"):
        RTDetr(levels, FACTS, **SMALL)
    with pytest.raises(
        ValueError, match=r"neck: it gives feature maps of strides 4, 8, 16, 32, 64; the detector takes 8, 16, 32"
    ):
        RTDetr(levels, FACTS, neck=SimplePyramid, **SMALL)
    detector: Detector = RTDetr(
        levels, FACTS, neck=lambda given: SimplePyramid(given, channels=8, strides=(8, 16, 32)), **SMALL
    )
    losses = detector.losses(detector.pyramid(drawn_maps(levels=levels)), SHAPE, SIZES, TARGETS)
    torch.stack(list(losses.values())).sum().backward()
    assert all(one.grad is not None for one in detector.parameters())


@pytest.mark.parametrize(("channels", "heads"), [(20, 8), (18, 6)])
def test_channels_that_cannot_be_divided_are_reported(channels: int, heads: int) -> None:
    with pytest.raises(
        ValueError, match=rf"channels: a multiple of 4 and of attention_heads \({heads}\), not {channels}"
    ):
        made(channels=channels, attention_heads=heads)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"rt_detr needs the transformers library: pip install 'opabinia\[detr\]'"):
        made()
