"""Losses: detection, segmentation, classification, metric learning and self-supervision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import timm.loss
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import complete_box_iou_loss, distance_box_iou_loss, generalized_box_iou_loss

from opabinia.models.losses.binary import asymmetric, binary_cross_entropy
from opabinia.models.losses.boxes import box_regression_loss, iou_loss
from opabinia.models.losses.contrastive import estimate_log_normalizer, memory_nce, nt_xent
from opabinia.models.losses.cross_entropy import adaptive_cross_entropy, cross_entropy
from opabinia.models.losses.distillation import logits_loss
from opabinia.models.losses.focal import focal_loss
from opabinia.models.losses.metric import (
    circle,
    cross_batch_memory_loss,
    multi_similarity,
    proxy_anchor,
    supervised_contrastive,
    triplet,
)
from opabinia.models.losses.redundancy import barlow_twins, covariance, invariance, variance
from opabinia.models.losses.regression import cosine_regression
from opabinia.models.losses.self_distillation import centered_softmax, dino_loss, koleo, update_center
from tests.models import test_anchors, test_dense, test_heads, test_mask_classification, test_rcnn
from tests.models.losses import (
    test_clustering,
    test_contrastive,
    test_metric,
    test_others,
    test_redundancy,
    test_self_distillation,
)
from tests.parity.comparisons import compare, largest, relative

# --- detection and segmentation ---------------------------------------------------------------------------------------


@compare(
    "transformers",
    "all losses of DETR, Deformable DETR (with and without refined boxes) and RF-DETR on padded images",
    unit="relative",
    tolerance=1e-5,
    needs=["transformers"],
    slow=True,
)
@torch.no_grad()
def detr_losses() -> Iterator[float]:
    from tests.models import test_query_detectors as detectors  # skips where transformers is absent

    for name in detectors.LIBRARY:
        for mode in (True, False):
            if name == "rf_detr" and not mode:
                continue  # the library divides its only group into groups
            detector, maps = detectors.build_detector(name)
            losses = detector.train(mode).losses(maps, detectors.SHAPE, detectors.SIZES, detectors.TARGETS)
            if name == "detr":
                del losses["loss_auxiliary"]  # the library's needs another network
            yield relative(sum(losses.values()), detectors.library_loss(detector, maps, mode))


@compare(
    "transformers",
    "RT-DETR: classification, box and denoising losses; D-FINE: the five losses of a layer",
    unit="relative",
    tolerance=1e-5,
    needs=["transformers"],
    slow=True,
)
def rt_detr_and_d_fine_losses() -> Iterator[float]:
    from tests.models import test_query_detectors as detectors

    with pytest.MonkeyPatch.context() as monkeypatch, torch.no_grad():
        detector, maps = detectors.build_detector("rt_detr", num_denoising=0)
        model = detectors.library_model("rt_detr", detector.eval(), maps[1:], monkeypatch).eval()
        expected = model(torch.zeros(2, 3, *detectors.SHAPE), labels=detectors.LABELS).loss_dict
        losses = detector.losses(maps, detectors.SHAPE, [detectors.SHAPE] * 2, detectors.TARGETS)
        for key in ("loss_vfl", "loss_bbox", "loss_giou"):
            yield relative(losses[key], expected[key])
        yield relative(*detectors.denoising_losses(monkeypatch))
    layer_losses, expected_losses = detectors.layer_losses_of_d_fine()
    for key, value in expected_losses.items():
        yield relative(layer_losses[key], value)


@compare(
    "transformers",
    "Mask2Former: classification, mask and dice losses of two layers at the same points",
    unit="relative",
    tolerance=1e-5,
    needs=["transformers"],
    slow=True,
)
def mask2former_losses() -> Iterator[float]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        for losses, expected in test_mask_classification.losses_of_both(monkeypatch):
            for name, value in expected.items():
                yield relative(losses[name], value)


@compare(
    "torchvision",
    "RPN, box, mask and keypoint losses of Faster, Mask and Keypoint R-CNN with the same samples",
    unit="relative",
    tolerance=1e-4,
    slow=True,
)
def rcnn_losses() -> Iterator[float]:
    for name in test_rcnn.SINGLE_STAGE:
        for targets in test_rcnn.TARGETS:
            losses, expected = test_rcnn.losses_of_both(name, targets)
            for key, value in expected.items():
                yield relative(losses[key], value) if value else abs(losses[key])


@compare("torchvision", "losses of FCOS and RetinaNet", unit="relative", tolerance=1e-4)
def dense_losses() -> Iterator[float]:
    for name in test_dense.DETECTORS:
        for counts in ([5, 0, 8, 1], [3, 4]):
            losses, expected, _, _ = test_dense.losses_and_gradients(name, counts)
            for key, value in expected.items():
                yield relative(losses[key], value)


@compare("torchvision", "gradients of these losses in the heads", unit="relative", tolerance=1e-3)
def dense_gradients() -> Iterator[float]:
    for name in test_dense.DETECTORS:
        for counts in ([5, 0, 8, 1], [3, 4]):
            _, _, gradients, expected = test_dense.losses_and_gradients(name, counts)
            for gradient, value in zip(gradients, expected, strict=True):
                yield relative(gradient, value)


@compare("torchvision", "GIoU, DIoU and CIoU losses of 80 boxes, and their gradients", tolerance=1e-5)
def iou_losses() -> Iterator[float]:
    theirs = {"giou": generalized_box_iou_loss, "diou": distance_box_iou_loss, "ciou": complete_box_iou_loss}
    for kind, expected in theirs.items():
        corners = torch.rand(2, 40, 2, 2, generator=torch.Generator().manual_seed(0)) * 50
        boxes = torch.cat([corners.amin(2), corners.amax(2) + 1], 2)
        results: list[tuple[Tensor, Tensor]] = []
        for loss in (partial(iou_loss, kind=kind), partial(expected, reduction="none")):
            own = boxes.clone().requires_grad_()
            values = loss(own, boxes.roll(1, 1))
            results.append((values, *torch.autograd.grad(values.sum(), own)))
        yield largest(*results)


@compare("fvcore", "focal, smooth L1, GIoU, DIoU and CIoU losses", tolerance=1e-4, against="recorded")
def fvcore_losses() -> Iterator[float]:
    golden = test_anchors.GOLDEN
    logits = torch.tensor(golden["focal"]["logits"]).float().view(1, -1, 1)
    classes = torch.tensor(golden["focal"]["there"]).view(1, -1) - 1
    yield largest(focal_loss(logits, classes, 0.25, 2.0)[0], golden["focal"]["losses"])
    errors = golden["smooth_l1"]["errors"]
    anchors, deltas = torch.tensor([[0.0, 0, 8, 8]] * len(errors)), torch.zeros(len(errors), 4)
    deltas[:, 2] = torch.tensor(errors)
    losses = box_regression_loss(deltas, anchors, anchors, beta=golden["smooth_l1"]["beta"])
    yield largest(losses, golden["smooth_l1"]["losses"])
    anchor, box = (torch.tensor([corners]).float() for corners in golden["overlap"]["boxes"])
    for kind in ("giou", "diou", "ciou"):
        yield largest(box_regression_loss(torch.zeros(1, 4), anchor, box, kind), [golden["overlap"][kind]])


# --- classification ---------------------------------------------------------------------------------------------------


@compare(
    "timm",
    "cross entropy with label smoothing and soft targets, binary cross entropy, asymmetric loss",
    unit="relative",
    tolerance=1e-5,
    needs=["timm"],
)
def classification_losses() -> Iterator[float]:
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        logits, labels = 3 * torch.randn(16, 10, generator=draw), torch.randint(10, (16,), generator=draw)
        soft, several = torch.rand(16, 10, generator=draw), torch.randint(2, (16, 10), generator=draw).float()
        soft = soft / soft.sum(1, keepdim=True)
        smoothing = timm.loss.LabelSmoothingCrossEntropy(0.1)
        yield relative(cross_entropy(logits, labels, label_smoothing=0.1), smoothing(logits, labels))
        yield relative(cross_entropy(logits, soft), timm.loss.SoftTargetCrossEntropy()(logits, soft))
        options: dict[str, Any]
        for options in ({}, {"target_threshold": 0.2}, {"sum_classes": True}):
            expected = timm.loss.BinaryCrossEntropy(smoothing=0.1, **options)(logits, labels)
            yield relative(binary_cross_entropy(logits, labels, label_smoothing=0.1, **options), expected)
        expected = timm.loss.AsymmetricLossMultiLabel(gamma_pos=1, gamma_neg=4, clip=0.05)(logits, several)
        yield relative(asymmetric(logits, several), expected)


@compare(
    "FastReID",
    "cross entropy with label smoothing and with adaptive smoothing",
    unit="relative",
    tolerance=1e-5,
    against="recorded",
)
def fastreid_cross_entropy() -> Iterator[float]:
    inputs, values = test_metric.golden("ce_smooth")
    logits, targets = torch.tensor(inputs["logits"]), torch.tensor(inputs["targets"])
    for smoothing in (0.0, 0.1):
        options: dict[str, Any] = {"smoothing_classes": "others", "averaged_samples": "nonzero"}
        loss = cross_entropy(logits, targets, label_smoothing=smoothing, **options)
        yield relative(loss, values[f"eps={smoothing},alpha=0.2"])
    yield relative(adaptive_cross_entropy(logits, targets, averaged_samples="nonzero"), values["eps=-1,alpha=0.2"])


@compare(
    "VISSL",
    "cross entropy of several outputs, scaled and smoothed; distillation",
    unit="relative",
    tolerance=1e-5,
    against="recorded",
)
def vissl_cross_entropy() -> Iterator[float]:
    losses, expected = test_others.cross_entropies_of_both()
    for name, value in expected.items():
        yield relative(losses[name], value)
    for name, value in test_others.DISTILLED["outputs"].items():
        yield relative(test_others.distillation_of_vissl(name), value)


@compare("FastReID, VISSL", "distillation of logits", unit="relative", tolerance=1e-5, against="recorded")
def distillation() -> Iterator[float]:
    for kind, temperature, expected in test_others.LOGITS_LOSSES:
        loss = logits_loss(test_others.STUDENT, test_others.TEACHER, kind, temperature)
        yield relative(loss, expected)


# --- metric learning --------------------------------------------------------------------------------------------------


@compare(
    "FastReID",
    "triplet loss: soft and hard margin, hard mining and cosine distances",
    tolerance=1e-5,
    against="recorded",
)
def fastreid_triplet() -> Iterator[float]:
    for settings, value in test_metric.TRIPLET_VALUES.items():
        loss, collapsed = test_metric.triplet_of_fastreid(settings)
        if not collapsed:  # FastReID's weighted mining of Euclidean distances, whose weights vanish
            yield largest(loss, value)


@compare("FastReID", "gradient of the circle loss, loss over a memory of features", tolerance=1e-5, against="recorded")
def fastreid_circle_and_memory() -> Iterator[float]:
    inputs, values = test_metric.golden("circle_pair")
    features = torch.tensor(inputs["embedding"], requires_grad=True)
    loss = circle(features, torch.tensor(inputs["targets"]), gamma=32.0)
    (gradient,) = torch.autograd.grad(loss, features)
    yield largest(gradient, torch.tensor(values["grad circle m=.25 gamma=32"]))
    inputs, values = test_metric.golden("moco_memory")
    queue = torch.tensor(inputs["queue_start_columns"]).T[2:]
    targets = torch.tensor(inputs["targets"])
    yield largest(
        cross_batch_memory_loss(torch.tensor(inputs["feat"]), targets, queue, torch.tensor([0, 0])), values["loss"]
    )


@compare(
    "FastReID",
    "logits of CosFace, ArcFace and circle heads, with and without unlabeled images",
    tolerance=test_heads.GOLDEN["tolerance"],
    against="recorded",
)
def fastreid_heads() -> Iterator[float]:
    cosines = torch.tensor(test_heads.GOLDEN["inputs"]["cos"])
    for name, rule in test_heads.RULES.items():
        for key, suffix in (("targets", ""), ("targets_with_minus1", " targets with -1")):
            logits = rule(cosines, torch.tensor(test_heads.GOLDEN["inputs"][key]))
            yield largest(logits, test_heads.GOLDEN["outputs"][f"{name}{suffix}"])


@compare(
    "pytorch-metric-learning",
    "triplet (hard mining), supervised contrastive, multi-similarity and proxy anchor losses",
    unit="relative",
    tolerance=1e-4,
    needs=["pytorch_metric_learning"],
)
def metric_losses() -> Iterator[float]:
    from pytorch_metric_learning import distances, losses, miners, reducers

    mean = reducers.MeanReducer()
    hard = losses.TripletMarginLoss(0.3, distance=distances.LpDistance(normalize_embeddings=False), reducer=mean)
    hard_pairs = miners.BatchHardMiner(distance=distances.LpDistance(normalize_embeddings=False))
    similar = losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5, reducer=mean)
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        labels = torch.arange(24) // 3
        features = torch.randn(8, 16, generator=draw)[labels] + torch.randn(24, 16, generator=draw)
        yield relative(triplet(features, labels), hard(features, labels, hard_pairs(features, labels)))
        yield relative(supervised_contrastive(features, labels), losses.SupConLoss(temperature=0.1)(features, labels))
        pairs = miners.MultiSimilarityMiner(epsilon=0.1)(features, labels)
        yield relative(multi_similarity(features, labels), similar(features, labels, pairs))
        theirs = losses.ProxyAnchorLoss(8, 16, margin=0.1, alpha=32)
        proxies = F.normalize(theirs.proxies.detach(), dim=1)
        logits = 32 * F.normalize(features, dim=1) @ proxies.T
        yield relative(proxy_anchor(logits, labels), theirs(features, labels))


# --- self-supervision -------------------------------------------------------------------------------------------------


@compare(
    "VISSL",
    "SimCLR at three temperatures; noise contrastive estimation from a memory bank",
    tolerance=1e-5,
    against="recorded",
)
def vissl_contrastive() -> Iterator[float]:
    golden = test_contrastive.SIMCLR
    for temperature in (0.1, 0.5, 1.0):
        views = torch.tensor(golden["inputs"]["embedding"]).chunk(2)
        yield largest(nt_xent(views, temperature), golden["outputs"][f"T={temperature}"])
    case, samples = test_contrastive.MEMORY["inputs"], len(test_contrastive.MEMORY["inputs"]["memory"])
    z = estimate_log_normalizer(*test_contrastive.vissl_inputs(), samples, case["T"])
    loss = memory_nce(*test_contrastive.vissl_inputs(), z, samples, case["T"])
    yield largest(loss, test_contrastive.MEMORY["outputs"]["nce"]["loss"][0])


@compare("VISSL", "Barlow Twins: loss and gradient", tolerance=1e-5, against="recorded")
def vissl_barlow_twins() -> Iterator[float]:
    outputs = test_redundancy.GOLDEN["outputs"]
    loss, rows = test_redundancy.vissl_loss("joint")
    yield largest(loss, outputs["joint"])
    yield largest(torch.autograd.grad(loss, rows)[0], torch.tensor(outputs["gradient of joint"]))
    yield largest(test_redundancy.vissl_loss("per_view")[0], outputs["each view"])


@compare("VISSL", "DINO: losses and centers of two steps", tolerance=1e-5, against="recorded")
def vissl_dino() -> Iterator[float]:
    golden = test_self_distillation.GOLDEN
    student, teacher = torch.tensor(golden["student"]).split(2), torch.tensor(golden["teacher"])
    center = torch.zeros(teacher.shape[1])
    steps = zip(golden["teacher_temperatures"], golden["losses"], golden["centres"], strict=True)
    for temperature, loss, expected_center in steps:
        targets = centered_softmax(teacher, center, temperature).split(2)
        yield largest(dino_loss(student, targets, golden["student_temperature"]), loss)
        center = update_center(center, teacher.mean(0), golden["centre_momentum"])
        yield largest(center, torch.tensor(expected_center))


@compare(
    "VISSL",
    "SwAV: assignments by Sinkhorn iterations, soft, hard and with a power law",
    tolerance=test_clustering.GOLDEN["tolerance"] / 10,
    against="recorded",
)
def vissl_sinkhorn() -> Iterator[float]:
    for case, expected in test_clustering.GOLDEN["outputs"].items():
        yield largest(test_clustering.sinkhorn_of(case, torch.float32), torch.tensor(expected))


def random_views(seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(16, 32, generator=draw) for _ in range(2)]


@compare(
    "lightly",
    "SimCLR, Barlow Twins, VICReg, SimSiam and KoLeo losses",
    unit="relative",
    tolerance=1e-5,
    needs=["lightly"],
)
def self_supervised_losses() -> Iterator[float]:
    from lightly import loss as theirs

    for seed in range(10):
        first, second = views = random_views(seed)
        yield relative(nt_xent(views, 0.5), theirs.NTXentLoss(0.5)(first, second))
        yield relative(barlow_twins(views, 0.0051, 1.0), theirs.BarlowTwinsLoss(0.0051)(first, second))
        vicreg = 25 * invariance(views) + 25 * variance(views) + covariance(views)
        yield relative(vicreg, theirs.VICRegLoss()(first, second))
        similarity = theirs.NegativeCosineSimilarity()
        yield relative(
            cosine_regression(views, [first + 1, second - 1]),
            (similarity(first, second - 1) + similarity(second, first + 1)) / 2,
        )
        yield relative(koleo(first), theirs.KoLeoLoss()(first))
