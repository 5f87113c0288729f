"""Evaluation: detections, tracks, segmentation, retrieval and classification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from sklearn.metrics import roc_curve

from opabinia.contracts.masks import compress_rle, decode_rle
from opabinia.evaluation.detection.coco import Coco, evaluate_files
from opabinia.evaluation.detection.voc import voc_ap
from opabinia.evaluation.retrieval import verification
from opabinia.evaluation.retrieval.query_expansion import expand_features
from opabinia.evaluation.retrieval.rerank import k_reciprocal
from opabinia.evaluation.segmentation.panoptic import Panoptic
from opabinia.evaluation.segmentation.semantic import Semantic
from opabinia.evaluation.tracking.scores import evaluate_tracks
from tests.evaluation import (
    test_coco,
    test_confusion,
    test_knn,
    test_linear_svm,
    test_rerank,
    test_retrieval,
    test_segmentation,
    test_verification,
    track_scenes,
)
from tests.evaluation.scenes import DATASET_INFO, make_scene, state_after
from tests.models.trackers import peers, streams
from tests.parity.comparisons import SHARED, compare, largest

# --- detection --------------------------------------------------------------------------------------------------------

SCENES = "AP and AR of boxes, masks and keypoints in random scenes with crowds, equal scores and empty images"


def coco_differences(library: Any) -> Iterator[float]:
    """Each case is seven images with up to 12 detections each, or three with 260 each."""
    random = np.random.default_rng(4)
    crowded = [make_scene(number, random, 30, 260) for number in range(1, 4)]
    for scenes in (*map(test_coco.scenes_of, range(30)), crowded):
        evaluator = Coco(DATASET_INFO)
        states = [state_after(evaluator, scenes)]
        yield largest(evaluator.compute(states), test_coco.expected_scores(scenes, evaluator.files(states), library))


@compare("pycocotools", SCENES, tolerance=1e-9, needs=["pycocotools"], slow=True)
def coco_pycocotools() -> Iterator[float]:
    from pycocotools.cocoeval import COCOeval

    return coco_differences((COCO, COCOeval))


@compare("faster-coco-eval", SCENES, tolerance=1e-9, needs=["faster_coco_eval"], slow=True)
def coco_faster_coco_eval() -> Iterator[float]:
    from faster_coco_eval import COCO as FasterCoco
    from faster_coco_eval import COCOeval_faster

    return coco_differences((FasterCoco, COCOeval_faster))


@compare(
    "COCO API",
    "published scores of its own example (100 images of val2014, boxes and masks), and of keypoints",
    tolerance=1e-9,
    against="recorded",
)
def coco_published() -> Iterator[float]:
    for name in ("val2014_100/bbox", "val2014_100/segm", "fce_keypoints"):
        case = test_coco.EXPECTED[name]
        files = (test_coco.golden(case[key]) for key in ("gt", "dt"))
        yield largest(evaluate_files(*files, case["iou_type"]), case["stats"])


@compare("pycocotools", "pixels and run lengths of random polygons", unit="pixels", tolerance=0, needs=["pycocotools"])
def polygons() -> Iterator[float]:
    size, coco = (60, 90), COCO()
    coco.imgs = {1: {"height": size[0], "width": size[1]}}
    random = np.random.default_rng(0)
    for _ in range(200):
        corners = random.uniform(-10, 100, (random.integers(3, 9), 2)).round(1)
        annotation = {"image_id": 1, "segmentation": [corners.ravel().tolist()]}
        expected = coco.annToRLE(annotation)["counts"].decode()
        runs = 0.0 if compress_rle(annotation["segmentation"], size) == expected else float("inf")
        mask = decode_rle(annotation["segmentation"], size).astype(int)
        yield runs + float(np.abs(mask - coco.annToMask(annotation).astype(int)).sum())


# --- tracking ---------------------------------------------------------------------------------------------------------


@compare(
    "TrackEval",
    "HOTA, CLEAR and identity metrics of each class and of both averages: ties, empty frames, rules of MOT17 and KITTI",
    tolerance=1e-9,
    needs=["trackeval"],
    slow=True,
)
def trackeval_scores() -> Iterator[float]:
    for case in (*track_scenes.hand_made_cases(), *map(track_scenes.random_case, range(486))):
        expected = track_scenes.trackeval_scores(case)
        actual = evaluate_tracks(case.truths, case.tracks, case.classes)
        rows = [{name: value for name, value in row.items() if name != "class"} for row in actual["per_class"]]
        yield largest({name: (actual | {"per_class": rows})[name] for name in expected}, expected)


@compare(
    "trackers (Roboflow)",
    "tracks of all detections by SORT, ByteTrack, OC-SORT and BoT-SORT without appearance, in synthetic streams",
    unit="detections",
    tolerance=0,
    needs=["trackers"],
    slow=True,
)
def tracker_ids() -> Iterator[float]:
    for name in peers.TRACKERS:
        for kind in streams.KINDS:
            for seed in range(3):
                ours, theirs = peers.ids_of_both(name, streams.stream(kind, seed).frames)
                yield float((ours != theirs).sum())


# --- segmentation -----------------------------------------------------------------------------------------------------


@compare(
    "detectron2",
    "mIoU, frequency-weighted IoU, accuracies and IoU of each class (`SemSegEvaluator`)",
    tolerance=1e-9,
    against="recorded",
)
def semantic_scores() -> Iterator[float]:
    columns = {"IoU": "IoU", "ACC": "accuracy"}
    for case, expected in test_segmentation.EXPECTED["semantic"].items():
        info = test_segmentation.info(len(expected["boundary"]))
        rows = test_segmentation.semantic_rows(case)
        scores, tables = test_segmentation.evaluate(lambda info=info: Semantic(info, boundary=True), rows)
        actual = {
            name: tables["per_class"][int(label)][columns[kind]] if label else scores[name]
            for name in expected["scores"]
            for kind, _, label in [name.partition("-")]
        }
        yield largest(actual, expected["scores"])


@compare("Boundary IoU API", "boundary IoU of each class", tolerance=1e-9, against="recorded")
def boundary_scores() -> Iterator[float]:
    for case, expected in test_segmentation.EXPECTED["semantic"].items():
        info = test_segmentation.info(len(expected["boundary"]))
        rows = test_segmentation.semantic_rows(case)
        _, tables = test_segmentation.evaluate(lambda info=info: Semantic(info, boundary=True), rows)
        for row, value in zip(tables["per_class"], expected["boundary"], strict=True):
            if row["pixels"]:
                yield largest(row["boundary_IoU"], value)


@compare(
    "panopticapi", "PQ, SQ and RQ of all, countable and other classes, and of each", tolerance=1e-9, against="recorded"
)
def panoptic_scores() -> Iterator[float]:
    names = ("PQ", "SQ", "RQ")
    for case, expected in test_segmentation.EXPECTED["panoptic"].items():
        info = test_segmentation.info(len(expected["per_class"]), expected["countable"])
        scores, tables = test_segmentation.evaluate(
            lambda info=info: Panoptic(info), test_segmentation.panoptic_rows(case)
        )
        for group, suffix in {"All": "", "Things": "_th", "Stuff": "_st"}.items():
            yield largest([scores[name + suffix] for name in names], [expected[group][name.lower()] for name in names])
        for label, row in enumerate(tables["per_class"]):
            published = expected["per_class"][str(label)]
            yield largest([row[name] or 0 for name in names], list(published.values()))


# --- retrieval --------------------------------------------------------------------------------------------------------


@compare("FastReID", "CMC, mAP and mINP of distance matrices with cameras", tolerance=1e-5, against="recorded")
def fastreid_ranks() -> Iterator[float]:
    for name, matrix, last_rank in (("rank_market", "distmat", 5), ("rank_small", "dist", 10)):
        inputs, outputs = test_retrieval.golden(name)
        labels = [np.array(inputs[key]) for key in ("q_pids", "g_pids", "q_camids", "g_camids")]
        ranks = range(1, last_rank + 1)
        scores = test_retrieval.evaluate_distances(np.array(inputs[matrix]), *labels, ranks=list(ranks))
        actual = [*(scores[f"rank{k}"] for k in ranks), scores["mAP"], scores["mINP"]]
        yield largest(actual, [*outputs["cmc"], outputs["mAP"], outputs["mINP"]])


@compare(
    "FastReID, torchreid",
    "CMC to rank 50, mAP and mINP of 5 queries in 12 images and of 100 in 600",
    tolerance=1e-6,
    against="outside",
)
def reid_matrices() -> Iterator[float]:
    folder = SHARED / "evaluation" / "reid"
    for expected in json.loads((folder / "expected.json").read_text(encoding="utf-8")).values():
        if isinstance(expected, str):
            continue
        case = np.load(folder / expected["file"])
        labels = [case[key] for key in ("q_pids", "g_pids", "q_camids", "g_camids")]
        ranks = range(1, len(expected["cmc"]) + 1)
        scores = test_retrieval.evaluate_distances(case["dist"], *labels, ranks=list(ranks))
        actual = [*(scores[f"rank{k}"] for k in ranks), scores["mAP"], scores["mINP"]]
        yield largest(actual, [*expected["cmc"], expected["mAP"], expected["mINP"]])


@compare("FastReID", "cosine and Euclidean distances", tolerance=1e-5, against="recorded")
def fastreid_distances() -> Iterator[float]:
    inputs, outputs = test_retrieval.golden("build_dist")
    features = np.array(inputs["query"]), np.array(inputs["gallery"])
    yield largest(test_retrieval.distances(*features, metric="cosine"), outputs["cosine"])
    yield largest(test_retrieval.distances(*features, metric="squared_euclidean"), outputs["euclidean"])


@compare("FastReID", "features after query expansion", tolerance=1e-5, against="recorded")
def fastreid_query_expansion() -> Iterator[float]:
    inputs, outputs = test_verification.golden("aqe")
    features = np.array(inputs["query"]), np.array(inputs["gallery"])
    for times in (1, 2):
        expanded = expand_features(*features, k=inputs["qe_k"], alpha=inputs["alpha"], times=times)
        expected = outputs[f"qe_times={times}"]
        yield largest(list(expanded), [expected["query"], expected["gallery"]])


@compare(
    "k-reciprocal re-ranking (Zhong et al.)",
    "distances after re-ranking",
    tolerance=test_rerank.GOLDEN["tolerance"],
    against="recorded",
)
def reranking() -> Iterator[float]:
    features = test_rerank.features_at(test_rerank.GOLDEN_DISTANCES).split(
        [test_rerank.QUERIES, len(test_rerank.GOLDEN_DISTANCES) - test_rerank.QUERIES]
    )
    for case, expected in test_rerank.GOLDEN["outputs"].items():
        keys = dict(pair.split("=") for pair in case.split(","))
        options = {"k1": int(keys["k1"]), "k2": int(keys["k2"]), "lambda_value": float(keys["lambda"])}
        reranked = k_reciprocal(*features, **options, metric="euclidean")
        yield largest(reranked.distances(0, test_rerank.QUERIES), expected)


@compare("FastReID", "face verification: accuracy and threshold of each fold", tolerance=1e-6, against="recorded")
def fastreid_verification() -> Iterator[float]:
    inputs, outputs = test_verification.golden("face_verif")
    embeddings = np.array(inputs["embeddings_interleaved"])
    scores = verification.pairs(embeddings[0::2], embeddings[1::2], inputs["issame"], folds=inputs["nrof_folds"])
    yield largest(list(scores["accuracies"]), outputs["fold_accuracy"])
    yield largest(list(scores["thresholds"]), outputs["best_thresholds"])


@compare("scikit-learn", "true accept rates at all false accept rates (`roc_curve`)", tolerance=1e-9, needs=["sklearn"])
def accept_rates() -> Iterator[float]:
    for seed in range(20):
        random = np.random.default_rng(seed)
        matrix, q, g = random.random((9, 30)), random.integers(0, 6, 9), random.integers(0, 5, 30)
        fprs, tprs, _ = roc_curve((q[:, None] == g).ravel(), -matrix.ravel(), drop_intermediate=False)
        rates = test_verification.roc_of(matrix, q, g, fprs=tuple(fprs.tolist()))
        yield largest(rates, {fpr: float(tprs[fprs <= fpr].max()) for fpr in fprs.tolist()})


# --- classification ---------------------------------------------------------------------------------------------------


@compare(
    "scikit-learn", "mean accuracy, accuracy, precision, recall and F1 of attributes", tolerance=1e-6, needs=["sklearn"]
)
def attributes() -> Iterator[float]:
    for seed in range(20):
        yield largest(*test_confusion.attribute_scores_of_both(seed))


@compare("VISSL", "votes and predictions of k-NN", unit="relative", tolerance=1e-4, against="recorded")
def knn_votes() -> Iterator[float]:
    for case, expected in test_knn.GOLDEN["outputs"].items():
        votes = test_knn.all_votes(test_knn.QUERIES, **test_knn.CASES[case])
        weights = torch.tensor(expected["class_weights"], dtype=torch.float64)
        same = 0.0 if votes.argmax(1).tolist() == expected["pred"] else float("inf")
        yield same + largest(*(values / values.sum(1, keepdim=True) for values in (votes, weights)))


@compare("VISSL", "average precision of a linear SVM (VOC's rule)", tolerance=1e-6, against="recorded")
def svm_average_precision() -> Iterator[float]:
    inputs, outputs = test_linear_svm.GOLDEN["inputs"], test_linear_svm.GOLDEN["outputs"]
    targets, scores, weights = (np.array(inputs[name]) for name in ("targets", "scores", "weights"))
    yield largest(voc_ap(targets, scores), outputs["ap"])
    yield largest(voc_ap(targets[weights > 0], scores[weights > 0]), outputs["ap_ignoring_index3"])
