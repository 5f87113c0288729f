"""Networks and weights: detectors, backbones and layers with the weights of other systems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.video.torchvision_video import TorchvisionVideo
from opabinia.models.backbones.vit import vit
from opabinia.models.detectors.anchors import AnchorGrid
from opabinia.models.losses.boxes import decode_boxes
from opabinia.models.losses.matching import match_anchors
from opabinia.models.panoptic import combine_instances, first_image, merge_masks
from opabinia.models.weights.init import Init, initialize
from tests.migration import fastreid_models, test_detection_weights, test_fastreid_weights, test_mmdetection_weights
from tests.models import test_panoptic, test_pooling, test_video_nets
from tests.parity.comparisons import compare, largest, relative

# --- detectors --------------------------------------------------------------------------------------------------------

Detections = tuple[Tensor, Tensor, Tensor, Tensor]
"""Our scores, the other scores, our boxes, the other boxes."""


@cache
def torchvision_detections() -> Sequence[Detections]:
    pairs = []
    with TemporaryDirectory() as folder:
        for name in test_detection_weights.OURS:
            ours, theirs, _ = test_detection_weights.detections_of_both(Path(folder), name)
            pairs.append((ours["scores"], theirs["scores"], ours["boxes"], theirs["boxes"]))
    return pairs


@cache
def transformers_detections() -> Sequence[Detections]:
    from tests.migration import test_transformers_weights  # skips where transformers is absent

    pairs = []
    with TemporaryDirectory() as folder:
        for name, version in test_transformers_weights.VERSIONS:
            pairs.append(test_transformers_weights.detections_of_both(name, version, Path(folder)))
    return pairs


TORCHVISION_DETECTORS = "R-CNNs (Faster, Mask, Keypoint), RetinaNet and FCOS on ResNet-18, random weights in its files"
TRANSFORMERS_DETECTORS = "small DETR, Deformable DETR, RT-DETR, D-FINE and RF-DETR, random weights in its files"


@compare("torchvision", f"scores of {TORCHVISION_DETECTORS}", tolerance=1e-4, slow=True)
def torchvision_scores() -> Iterator[float]:
    for scores, expected, _, _ in torchvision_detections():
        yield largest(scores, expected)


@compare("torchvision", f"boxes of {TORCHVISION_DETECTORS}", unit="px", tolerance=1e-3, slow=True)
def torchvision_boxes() -> Iterator[float]:
    for _, _, boxes, expected in torchvision_detections():
        yield largest(boxes, expected)


@compare("transformers", f"scores of {TRANSFORMERS_DETECTORS}", tolerance=1e-4, needs=["transformers"], slow=True)
def transformers_scores() -> Iterator[float]:
    for scores, expected, _, _ in transformers_detections():
        yield largest(scores, expected)


@compare(
    "transformers", f"boxes of {TRANSFORMERS_DETECTORS}", unit="px", tolerance=1e-2, needs=["transformers"], slow=True
)
def transformers_boxes() -> Iterator[float]:
    for _, _, boxes, expected in transformers_detections():
        yield largest(boxes, expected)


@compare(
    "detectron2",
    "feature maps, pyramids and heads of small R-CNNs (Faster, Mask, Keypoint, Cascade) and RetinaNet, random weights "
    "in files like those of its model zoo",
    unit="relative",
    tolerance=1e-4,
    against="rule",
    slow=True,
)
def detectron2_layers() -> Iterator[float]:
    differences: list[float] = []

    def record(actual: Tensor | Sequence[Tensor], expected: Tensor | Sequence[Tensor]) -> None:
        pairs = [(actual, expected)] if isinstance(expected, Tensor) else zip(actual, expected, strict=True)
        differences.extend(relative(*pair) for pair in pairs)

    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        for name in test_detection_weights.DETECTRON2_DETECTORS:
            test_detection_weights.compare_with_the_zoo(Path(folder), name, record)
    yield from differences


@compare(
    "MMDetection",
    "weights that are left over, or missing, when files with its names and shapes fill our detectors",
    unit="weights",
    tolerance=0,
    against="rule",
)
def mmdetection_weights() -> Iterator[float]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.pth"
        for name in test_mmdetection_weights.OURS:
            task = test_mmdetection_weights.task_of(name)
            torch.save({"state_dict": test_mmdetection_weights.file_of(name)}, file)
            report = initialize(task, Init(weights=file))
            yield float(len(report.missing) + len(report.unexpected) + len(report.other_shape))


@compare("torchvision", "anchors and decoded boxes", unit="px", tolerance=0)
def torchvision_anchors() -> Iterator[float]:
    sizes, ratios = [(32, 40, 50), (64, 80, 101)], (0.5, 1.0, 2.0)
    for shape in ((64, 96), (32, 160), (96, 96)):
        maps = [torch.zeros(1, 2, -(-shape[0] // stride), -(-shape[1] // stride)) for stride in (16, 64)]
        (expected,) = AnchorGenerator(tuple(sizes), (ratios,) * 2)(ImageList(torch.zeros(1, 3, *shape), [shape]), maps)
        yield largest(torch.cat(AnchorGrid(sizes, ratios, [16, 64], convention="torchvision")(maps, shape)), expected)
    for seed in range(20):
        draw, weights = torch.Generator().manual_seed(seed), (10.0, 9.0, 5.0, 4.0)
        deltas, corners = 20 * torch.randn(20, 12, generator=draw), torch.rand(20, 2, 2, generator=draw)
        anchors = 100 * torch.cat([corners.amin(1), corners.amax(1)], 1)
        yield largest(decode_boxes(deltas, anchors, weights), BoxCoder(weights).decode_single(deltas, anchors))


@compare("torchvision", "matches of anchors and objects, also at the thresholds", unit="anchors", tolerance=0)
def torchvision_matches() -> Iterator[float]:
    for seed in range(20):
        quality = torch.randint(0, 5, (6, 40), generator=torch.Generator().manual_seed(seed)) / 4
        quality = quality[quality.any(1)]  # without objects that no anchor overlaps, which it matches with all
        for low, high in ((0.25, 0.75), (0.5, 0.5), (0.25, 0.5), (0.0, 1.0)):
            for low_quality in (False, True):
                expected = Matcher(high, low, low_quality)(quality)
                matches = match_anchors(quality, low, high, low_quality=low_quality)
                actual = torch.where(matches.labels == 1, matches.indices, matches.labels - 1)
                yield float((actual != expected).sum())


@compare(
    "detectron2, Mask2Former", "segments merged from instances and a map, and from queries", unit="pixels", tolerance=0,
    against="recorded",
)  # fmt: skip
def panoptic_merging() -> Iterator[float]:
    detections, labels, options = test_panoptic.instances_of_detectron2()
    segments = first_image(combine_instances(detections, labels, **options))
    yield float((segments.map != torch.tensor(test_panoptic.EXPECTED["instances"]["segments"])).sum())
    options = {"thing_labels": [1, 3], "min_score": 0.6, "min_visible": 0.7}
    segments = merge_masks(**test_panoptic.golden("queries"), **options)
    yield float((segments.map != torch.tensor(test_panoptic.EXPECTED["queries"]["segments"])).sum())


# --- backbones --------------------------------------------------------------------------------------------------------


@compare("timm", "features of our ResNets and ViT with its weights", unit="relative", tolerance=1e-5)
@torch.no_grad()
def timm_backbones() -> Iterator[float]:
    torch.manual_seed(0)
    images = torch.rand(2, 3, 64, 64)
    for model in ("resnet10t", "resnet18", "resnet26d"):
        reference = timm.create_model(model, num_classes=0).eval()
        net = resnet(3, model=model, last_stride=2).eval()
        net.load_state_dict({f"model.{name}": value for name, value in reference.state_dict().items()})
        yield relative(net(images), reference(images))
    reference = timm.create_model("test_vit", num_classes=0, img_size=(64, 32), dynamic_img_size=False).eval()
    transformer = vit(3, model="test_vit", image_size=(64, 32)).eval()
    transformer.model.load_state_dict(reference.state_dict())
    yield relative(transformer(images[..., :32]), reference(images[..., :32]))


@compare(
    "torchvision",
    "logits of its video models MC3 and Swin3D with their heads",
    unit="relative",
    tolerance=1e-4,
    slow=True,
)
@torch.no_grad()
def video_models() -> Iterator[float]:
    for name in ("mc3_18", "swin3d_t"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            reference, _, _ = test_video_nets.fake_pretrained_model(monkeypatch, name)
            net = TorchvisionVideo(3, model=name, pretrained=True).eval()
            head: nn.Module = net.make_head(400)
        clips = torch.rand(2, 3, 4, 32, 32)
        yield relative(head(net(clips)), reference(clips))


@compare(
    "FastReID",
    "features of its models (BoT, SBS, MGN, OSNet, ShuffleNet, ResNeSt, iResNet), random weights in its files",
    unit="relative",
    tolerance=1e-5,
    against="recorded",
    slow=True,
)
def fastreid_features() -> Iterator[float]:
    for case in test_fastreid_weights.CASES.values():
        features = fastreid_models.features(case["task"], fastreid_models.draw_weights(case["shapes"]))
        yield relative(features[:, ::97], torch.tensor(case["features"]))


@compare(
    "FastReID",
    "outputs of its poolings",
    tolerance=test_pooling.GOLDEN["tolerance"],
    against="recorded",
)
@torch.no_grad()
def fastreid_poolings() -> Iterator[float]:
    maps = torch.tensor(test_pooling.GOLDEN["inputs"]["x"])
    for name, expected in test_pooling.GOLDEN["outputs"].items():
        yield largest(test_pooling.POOLINGS[name](maps), torch.tensor([expected]))
