"""COCO's average precision and recall of boxes, masks and keypoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction, Positive, Resampling
from opabinia.contracts.keypoints import COCO_SIGMAS
from opabinia.evaluation.detection.base import DetectionEvaluator, ImageResult
from opabinia.evaluation.detection.coco_format import Annotations, Kind, coco_ground_truth, coco_results
from opabinia.evaluation.detection.detection_errors import count_objects, error_tables
from opabinia.evaluation.detection.resampling import rank_by_coco, recall_points, resampled_precision
from opabinia.evaluation.detection.rle import Floats

PREFIXES: dict[Kind, str] = {"bbox": "", "segm": "mask_", "keypoints": "keypoint_"}
"""Prefixes of score names. Boxes come first: theirs is the headline score."""

COCO_KEYPOINTS = tuple(COCO_SIGMAS)
"""The keypoints whose sigmas the library knows."""

_IOUS = np.linspace(0.5, 0.95, 10)
_MAX_DETECTIONS = (1, 10, 100)
_MAX_DETECTIONS_WITH_KEYPOINTS = (20,)  # COCO evaluates keypoints with no other number
_LISTS = ("images", "annotations", "categories")
_CELLS = 1_000_000
"""Pairs of an image and a class that are evaluated at once; the library takes some 250 bytes for each."""

_AREAS: dict[Kind, str] = {"bbox": "sml", "segm": "sml", "keypoints": "ml"}
"""Sizes of objects that have scores of their own, after those of all sizes."""


class PrecisionRecall(NamedTuple):
    """COCO's tables before means are taken; -1 where there are no objects.

    Attributes:
        precision: 10 IoUs (0.5 to 0.95) x 101 recalls (0 to 1) x classes x areas x numbers of detections.
        recall: the same without the recalls.
        categories: ids of the classes.
    """

    precision: Floats
    recall: Floats
    categories: list[int]


def evaluate_files(
    ground_truth: Path | str | Mapping[str, Any],
    results: Path | str | Sequence[Mapping[str, Any]],
    kind: Kind = "bbox",
    *,
    max_detections: Sequence[int] | None = None,
    sigmas: Sequence[float] | None = None,
) -> dict[str, float]:
    """Return the scores of results in COCO's format, as fractions of 1. They equal pycocotools' numbers.

    Args:
        ground_truth: ``images``, ``annotations`` and ``categories``, or the path of their file.
        results: detections, or the path of their file.
        kind: ``bbox``, ``segm`` or ``keypoints``. Results with boxes are assigned to small, medium and large ones by
            the area of these (pycocotools' rule); results of ``segm`` are better given without boxes.
        max_detections: numbers of detections per image and class, best first, for which recall is computed; the last
            number limits everything else. None: COCO's 1, 10, 100, and 20 for keypoints.
        sigmas: one per keypoint; None: COCO's for its 17.

    Returns:
        ``AP``, ``AP50``, ``AP75``, ``APs``, ``APm``, ``APl``, ``AR1``, ``AR10``, ``AR100``, ``ARs``, ``ARm``, ``ARl``;
        for keypoints ``AP``, ``AP50``, ``AP75``, ``APm``, ``APl``, ``AR``, ``AR50``, ``AR75``, ``ARm``, ``ARl``.
        Scores without ground-truth objects (-1 in pycocotools) are omitted.

    Raises:
        ValueError: a file is not such JSON, ``kind`` is unknown, annotations have no area, or results refer to unknown
            images.
    """
    if kind not in PREFIXES:
        raise ValueError(f"kind {kind!r}: expected one of {', '.join(PREFIXES)}")
    content, detections = _read(ground_truth), _read(results)
    if not isinstance(content, Mapping) or not set(_LISTS) <= set(content):
        raise ValueError(f"ground_truth must be an object with {', '.join(_LISTS)}; results are the second argument")
    if isinstance(detections, Mapping):
        raise ValueError("results must be a list of detections; ground_truth is the first argument")
    # Some files write ids as strings.
    unknown = {str(row["image_id"]) for row in detections} - {str(image["id"]) for image in content["images"]}
    if unknown:
        raise ValueError(f"results refer to images that are not in the ground truth, such as {min(unknown)}")
    numbers = sorted(max_detections or (_MAX_DETECTIONS_WITH_KEYPOINTS if kind == "keypoints" else _MAX_DETECTIONS))
    without = sum("area" not in row for row in content["annotations"])
    if without:
        count = len(content["annotations"])
        raise ValueError(f"{without} of {count} annotations have no area, by which objects are small, medium or large")
    copied = {name: list(map(dict, content[name])) for name in _LISTS}  # the library writes into its arguments
    copied_results = list(map(dict, detections))
    _renumber(copied["images"], [(copied["annotations"], "image_id"), (copied_results, "image_id")])
    _renumber(copied["categories"], [(copied["annotations"], "category_id"), (copied_results, "category_id")])
    _renumber(copied["annotations"], [])
    tables = precision_recall(copied, copied_results, kind, numbers, sigmas)
    return mean_scores(tables, kind, numbers)


def _renumber(rows: Annotations, references: Sequence[tuple[Annotations, str]]) -> None:
    """Replace ids that are not integers, which the library cannot compare, by numbers from 1 in
    the order of their text, which pycocotools sorts by, in place.

    Args:
        rows: objects with an ``id``.
        references: rows that refer to them, and the key.
    """
    keyed = [(rows, "id"), *references]
    if all(isinstance(row[key], int) for keyed_rows, key in keyed for row in keyed_rows):
        return
    number_of = {name: number for number, name in enumerate(sorted({str(row["id"]) for row in rows}), 1)}
    for keyed_rows, key in keyed:
        for row in keyed_rows:
            row[key] = number_of.get(str(row[key]), 0)  # 0: an unknown class


def _read(content: Any) -> Any:
    if not isinstance(content, str | Path):
        return content
    try:
        return json.loads(Path(content).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{content} is no JSON: {error}") from error


def precision_recall(
    ground_truth: dict[str, Annotations],
    results: Annotations,
    kind: Kind,
    max_detections: Sequence[int],
    sigmas: Sequence[float] | None = None,
    *,
    federated: bool = False,
) -> PrecisionRecall:
    """Compute the tables of :func:`evaluate_files`. The library writes into ``ground_truth`` and ``results``.

    Args:
        ground_truth, results, kind, sigmas: as there.
        max_detections: ascending.
        federated: follow LVIS, where an image is annotated for some classes only.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    def evaluate(ground_truth: dict[str, Annotations], results: Annotations) -> PrecisionRecall:
        coco = COCO(ground_truth)
        sigma_list = None if sigmas is None else list(sigmas)
        evaluation = COCOeval_faster(coco, coco.loadRes(results), kind, kpt_oks_sigmas=sigma_list, lvis_style=federated)
        evaluation.params.maxDets = list(max_detections)
        evaluation.evaluate()
        evaluation.accumulate()
        categories = list(map(int, evaluation.params.catIds))
        return PrecisionRecall(evaluation.eval["precision"], evaluation.eval["recall"], categories)

    categories = sorted(ground_truth["categories"], key=lambda category: category["id"])
    size = max(1, _CELLS // max(1, len(ground_truth["images"])))
    if len(categories) <= size:
        return evaluate(ground_truth, results)
    of_category: list[dict[int, Annotations]] = [{}, {}]
    for groups, rows in zip(of_category, (ground_truth["annotations"], results), strict=True):
        for row in rows:
            groups.setdefault(row["category_id"], []).append(row)
    tables = []
    for start in range(0, len(categories), size):
        block = categories[start : start + size]
        annotations, detections = (
            [row for category in block for row in groups.get(category["id"], ())] for groups in of_category
        )
        of_block = {"images": ground_truth["images"], "annotations": annotations, "categories": block}
        tables.append(evaluate(of_block, detections))
    precision, recall, ids = zip(*tables, strict=True)
    return PrecisionRecall(np.concatenate(precision, 2), np.concatenate(recall, 1), list(chain(*ids)))


def mean_scores(tables: PrecisionRecall, kind: Kind, max_detections: Sequence[int]) -> dict[str, float]:
    """Return the means of the tables by name, without those of no objects."""
    precision, recall, _ = tables
    cells = {"AP": precision[..., 0, -1], "AP50": precision[0, ..., 0, -1], "AP75": precision[5, ..., 0, -1]}
    areas = list(enumerate(_AREAS[kind], 1))
    cells |= {f"AP{area}": precision[..., index, -1] for index, area in areas}
    if kind == "keypoints":
        cells |= {"AR": recall[..., 0, -1], "AR50": recall[0, ..., 0, -1], "AR75": recall[5, ..., 0, -1]}
    else:
        cells |= {f"AR{count}": recall[..., 0, index] for index, count in enumerate(max_detections)}
    cells |= {f"AR{area}": recall[..., index, -1] for index, area in areas}
    means = {name: mean_or_none(values) for name, values in cells.items()}
    return {name: value for name, value in means.items() if value is not None}


def score_names(kind: Kind, max_detections: Sequence[int]) -> list[str]:
    """Return the names of a kind's scores, with its prefix."""
    zeros = np.zeros((10, 1, 1, 1 + len(_AREAS[kind]), len(max_detections)))
    scores = mean_scores(PrecisionRecall(zeros, zeros[:, 0], []), kind, max_detections)
    return [PREFIXES[kind] + name for name in scores]


def mean_or_none(values: Floats) -> float | None:
    """Return the mean without the cells of -1; None if there are no others."""
    valid = values[values > -1]
    return float(np.mean(valid)) if valid.size else None


class CocoEvaluator(DetectionEvaluator):
    """Base of the evaluators that use COCO's tables.

    Args:
        dataset_info: facts about the data.
        confidence: minimum score of the detections in the error tables; null: that with the highest F1 of the set.
        max_detections: ascending numbers of detections, for each kind that is evaluated.
    """

    _sigmas: Sequence[float] | None = None
    _federated = False

    def __init__(
        self, dataset_info: DatasetInfo, confidence: float | None, max_detections: Mapping[Kind, Sequence[int]]
    ) -> None:
        super().__init__(dataset_info, confidence, masks="segm" in max_detections)
        self._max_detections = max_detections
        names = [name for kind, numbers in max_detections.items() for name in score_names(kind, numbers)]
        self.better = dict.fromkeys(names, "max")

    def _ground_truth(self, images: Sequence[ImageResult], kind: Kind) -> dict[str, Annotations]:
        return coco_ground_truth(images, self._dataset_info, kind)

    def _evaluate(self, images: Sequence[ImageResult]) -> dict[Kind, PrecisionRecall]:
        """Return the tables of each kind that the detector predicts."""
        if not images:
            return {}
        predicted = {"bbox": True, "segm": images[0].masks is not None, "keypoints": images[0].keypoints is not None}
        tables = {}
        for kind, limits in self._max_detections.items():
            if predicted[kind]:
                data = self._ground_truth(images, kind), coco_results(images, kind)
                tables[kind] = precision_recall(*data, kind, limits, self._sigmas, federated=self._federated)
        return tables

    def _scores(self, tables: PrecisionRecall, kind: Kind) -> dict[str, float]:
        return mean_scores(tables, kind, self._max_detections[kind])

    def compute(self, states: Sequence[list[ImageResult]]) -> dict[str, float]:
        """Return the scores of each kind; those without ground-truth objects are omitted."""
        results = self._results(states)[1].items()
        return {
            PREFIXES[kind] + name: score
            for kind, tables in results
            for name, score in self._scores(tables, kind).items()
        }

    def details(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the tables; null for a class without objects."""
        images, tables = self._results(states)
        classes = self._dataset_info.classes
        if not images:
            return {}
        return {
            "per_class": _per_class(images, classes, tables),
            **error_tables(images, len(classes), self._confidence),
        }

    def resamplings(self, states: Sequence[list[ImageResult]]) -> list[Resampling]:
        """Return ``AP`` and ``AP50`` of boxes, and of masks if they are predicted."""
        images, tables = self._results(states)
        result = []
        for kind in (kind for kind in tables if kind != "keypoints"):
            limit = self._max_detections[kind][-1]
            ranked = rank_by_coco(images, kind, len(self._dataset_info.classes), _IOUS, limit)
            for name, ious in {"AP": slice(None), "AP50": slice(1)}.items():
                full = PREFIXES[kind] + name
                result.append(resampled_precision(full, ranked, ious, len(images), recall_points))
        return result


@register.evaluator
class Coco(CocoEvaluator):
    """COCO's average precision (AP) and average recall (AR) of boxes; of masks (``mask_AP`` ...) and keypoints
    (``keypoint_AP`` ...) if they are annotated and predicted. Equal to pycocotools' numbers.

    ``AP`` is the mean over IoUs from 0.5 to 0.95, ``AP50`` and ``AP75`` are those of one IoU; s, m and l stand for
    objects smaller than 32 x 32 pixels, smaller than 96 x 96, and larger. Scores without ground-truth objects are
    omitted: ``APs`` in data without small objects, all of them in images without any. In images without objects
    every detection is false.

    The tables (``details``): AP of each class, precision over recall, the confusion table and the hundred images with
    most errors (:mod:`opabinia.evaluation.detection.detection_errors`). Results in COCO's format (``files``) are
    ``coco_results.json``, ``coco_mask_results.json`` and ``coco_keypoint_results.json``, one file per kind as COCO's
    server takes them; pycocotools computes the same scores from them.

    An object without a mask is a crowd that fills its box when masks are evaluated. Annotated keypoints are indices
    of pixels, predicted ones positions in the image: half a pixel is subtracted (as in detectron2).

    Args:
        dataset_info: facts about the data.
        max_detections: numbers of detections per image and class, best first, for which recall is computed (``AR1``,
            ``AR10``, ``AR100``); the last number limits everything else. Keypoints are evaluated with 20, as by COCO.
        sigmas: for each keypoint the standard deviation of annotators, in units of the object's size (square root of
            its area); null takes COCO's for its 17 keypoints of people.
        confidence: minimum score of the detections in the error tables; null: that with the highest F1 of the set.

    Raises:
        ValueError: ``max_detections`` is not ascending; the data has keypoints, and ``sigmas`` does not have one each.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        max_detections: Sequence[Count] = _MAX_DETECTIONS,
        sigmas: Sequence[Positive] | None = None,
        confidence: Fraction | None = None,
    ) -> None:
        if not max_detections or any(first >= second for first, second in pairwise(max_detections)):
            raise ValueError(f"max_detections: {list(max_detections)} must be ascending numbers, such as [1, 10, 100]")
        limits: dict[Kind, Sequence[int]] = {"bbox": tuple(max_detections)}
        if dataset_info.masks:
            limits["segm"] = tuple(max_detections)
        if dataset_info.keypoints:
            limits["keypoints"] = _MAX_DETECTIONS_WITH_KEYPOINTS
        super().__init__(dataset_info, confidence, limits)
        self._sigmas, keypoints = sigmas, dataset_info.keypoints
        if sigmas is None and keypoints and tuple(keypoints) != COCO_KEYPOINTS:
            raise ValueError(
                f"sigmas: the data has {len(keypoints)} keypoints ({', '.join(keypoints[:3])} ...), which are not "
                "COCO's 17 of people; give one number for each, such as 0.05 (eyes have 0.025, hips 0.107)"
            )
        if sigmas is not None and len(sigmas) != len(keypoints):
            raise ValueError(f"sigmas: {len(sigmas)} numbers for {len(keypoints)} keypoints; give one for each")

    def details(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the tables; null for a class without objects."""
        images, tables = self._results(states)
        return super().details(states) | ({"precision_recall": _curves(tables["bbox"])} if images else {})

    def files(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the results in COCO's format, with the ids of images and classes in the annotation file."""
        images, tables = self._results(states)
        image_ids = [image.ground_truth.image_id for image in images]
        category_ids = self._dataset_info.category_ids or range(1, len(self._dataset_info.classes) + 1)
        return {
            f"coco_{PREFIXES[kind]}results.json": coco_results(images, kind, image_ids, category_ids) for kind in tables
        }


@register.evaluator
class ProposalRecall(DetectionEvaluator):
    """Average recall of boxes whatever their class, of the detector ``rpn``: ``AR1000`` of the best 1000 boxes of an
    image, ``AR100`` of the best 100, and ``ARs``, ``ARm``, ``ARl`` of small, medium and large objects among 1000.

    These are detectron2's AR@1000, AR@100, ARs@1000 ... as COCO computes them; detectron2's matching differs a little.

    Args:
        dataset_info: facts about the data.
    """

    def __init__(self, dataset_info: DatasetInfo, /) -> None:
        super().__init__(dataset_info, None)
        self.better = dict.fromkeys(["AR1000", "AR100", "ARs", "ARm", "ARl"], "max")

    def _evaluate(self, images: Sequence[ImageResult]) -> dict[str, float]:
        if not images:
            return {}
        ground_truth, results = coco_ground_truth(images, self._dataset_info, "bbox"), coco_results(images, "bbox")
        for row in (*ground_truth["annotations"], *results):
            row["category_id"] = 0
        ground_truth["categories"] = ground_truth["categories"][:1]
        scores = mean_scores(precision_recall(ground_truth, results, "bbox", [100, 1000]), "bbox", [100, 1000])
        return {name: scores[name] for name in self.better if name in scores}

    def compute(self, states: Sequence[list[ImageResult]]) -> dict[str, float]:
        """Return the scores; those without ground-truth objects are omitted."""
        scores: dict[str, float] = self._results(states)[1]
        return scores


def _per_class(
    images: Sequence[ImageResult], classes: Sequence[str], results: Mapping[Kind, PrecisionRecall]
) -> list[dict[str, Any]]:
    """Return for each class its number of objects (crowds excluded), AP, AP50 and AR, and AP of masks and keypoints."""
    counts = count_objects(images, len(classes))
    rows: list[dict[str, Any]] = [
        {"class": name, "objects": count} for name, count in zip(classes, counts, strict=True)
    ]
    for kind, (precision, recall, categories) in results.items():
        for label, row in enumerate(rows):
            column = np.flatnonzero(np.equal(categories, label))
            cells = {"AP": precision[:, :, column, 0, -1]}
            if kind == "bbox":
                cells |= {"AP50": precision[0, :, column, 0, -1], "AR": recall[:, column, 0, -1]}
            row |= {PREFIXES[kind] + name: mean_or_none(values) for name, values in cells.items()}
    return rows


def _curves(tables: PrecisionRecall) -> dict[str, list[float]]:
    """Return precision at recalls from 0 to 1, the mean over classes: at IoUs of 0.5 and 0.75, and over all IoUs."""
    precision = tables.precision[..., 0, -1]
    precision = precision[:, :, (precision > -1).all((0, 1))]
    if not precision.size:
        return {}
    curves = {"0.5": precision[0], "0.75": precision[5], "0.5:0.95": precision.mean(0)}
    recalls = np.linspace(0, 1, precision.shape[1])
    return {"recall": recalls.tolist()} | {name: values.mean(1).tolist() for name, values in curves.items()}
