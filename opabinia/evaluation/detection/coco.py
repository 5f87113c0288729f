"""COCO's average precision and recall of boxes, masks and keypoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction, Positive
from opabinia.evaluation.detection.base import Floats, Picture, Pictures, in_order
from opabinia.evaluation.detection.coco_format import Annotations, Kind, results_of, truth_of
from opabinia.evaluation.detection.detection_errors import mistakes

PREFIXES: dict[Kind, str] = {"bbox": "", "segm": "mask_", "keypoints": "keypoint_"}
"""Of the names of scores. Boxes come first: theirs is the headline."""

MOST = (1, 10, 100)
_LISTS = ("images", "annotations", "categories")
_MOST_PEOPLE = (20,)  # keypoints are judged with no other number
_CELLS = 1_000_000
_AREAS: dict[Kind, tuple[str, ...]] = {
    "bbox": ("", "s", "m", "l"),
    "segm": ("", "s", "m", "l"),
    "keypoints": ("", "m", "l"),
}

POINTS = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)
"""Those whose sigmas the library knows."""


class Tables(NamedTuple):
    """What COCO's rule gives before means are taken; -1 where there is nothing to be found.

    Attributes:
        precision: at ten overlaps (0.5 to 0.95) and 101 recalls (0 to 1), by class, area and number of things found.
        recall: the same without the recalls.
        categories: ids of the classes.
    """

    precision: Floats
    recall: Floats
    categories: list[int]


def judge(
    ground_truth: Path | str | Mapping[str, Any],
    results: Path | str | Sequence[Mapping[str, Any]],
    kind: Kind = "bbox",
    *,
    max_detections: Sequence[int] | None = None,
    sigmas: Sequence[float] | None = None,
) -> dict[str, float]:
    """Scores of results in COCO's format, as fractions of 1: pycocotools' numbers.

    Args:
        truth: ``images``, ``annotations`` and ``categories``, or the file that they stand in.
        results: what was found, or the file that it stands in.
        kind: ``bbox``, ``segm`` or ``keypoints``. Results that have boxes, too, are sorted into small, medium and large
            ones by these (pycocotools' rule); those of ``segm`` are better told without.
        max_detections: of so many things a picture and class, the best ones, is the recall told; the last number is
            that of everything else. None takes COCO's 1, 10, 100, and 20 of keypoints.
        sigmas: of keypoints, one for each point; None takes COCO's for its 17.

    Returns:
        ``AP``, ``AP50``, ``AP75``, ``APs``, ``APm``, ``APl``, ``AR1``, ``AR10``, ``AR100``, ``ARs``, ``ARm``, ``ARl``;
        of keypoints ``AP``, ``AP50``, ``AP75``, ``APm``, ``APl``, ``AR``, ``AR50``, ``AR75``, ``ARm``, ``ARl``. Those
        of which there is nothing to be found (-1 in pycocotools) are left out.

    Raises:
        ValueError: a file holds no such JSON, the kind is none of these, or results are of pictures that are not there.
    """
    if kind not in PREFIXES:
        raise ValueError(f"kind {kind!r}: expected one of {', '.join(PREFIXES)}")
    content: Any = _read(ground_truth)
    found: Any = _read(results)
    if not isinstance(content, Mapping) or not set(_LISTS) <= set(content):
        raise ValueError(f"truth is an object with {', '.join(_LISTS)}, and results come second")
    if isinstance(found, Mapping):
        raise ValueError("results are a list of what was found, and truth comes first")
    # Some files write numbers as texts.
    unknown = {str(one["image_id"]) for one in found} - {str(one["id"]) for one in content["images"]}
    if unknown:
        raise ValueError(f"results are of pictures that are not there, such as {min(unknown)}")
    most = sorted(max_detections or (_MOST_PEOPLE if kind == "keypoints" else MOST))
    # The library writes into what it is given.
    own = {name: list(map(dict, content[name])) for name in _LISTS}
    return scores(tables(own, list(map(dict, found)), kind, most, sigmas), kind, most)


def tables(
    ground_truth: dict[str, Annotations],
    results: Annotations,
    kind: Kind,
    most: Sequence[int],
    sigmas: Sequence[float] | None = None,
    *,
    federated: bool = False,
    cells: int = _CELLS,
) -> Tables:
    """See :func:`judge`. The library writes into ``ground_truth`` and ``results``.

    Args:
        truth, results, kind, sigmas: as there.
        most: its ``max_detections``, which rise.
        federated: follow LVIS, where a picture is judged for some classes only.
        cells: as many pairs of a picture and a class are judged at once; the library takes some 250 bytes for each.
    """
    categories = sorted(ground_truth["categories"], key=lambda one: one["id"])
    size = max(1, cells // max(1, len(ground_truth["images"])))
    if len(categories) <= size:
        return _judged(ground_truth, results, kind, most, sigmas, federated)
    there, found = (_by_category(things) for things in (ground_truth["annotations"], results))
    parts = []
    for start in range(0, len(categories), size):
        block = categories[start : start + size]
        things, those = ([thing for one in block for thing in by.get(one["id"], ())] for by in (there, found))
        part = {"images": ground_truth["images"], "annotations": things, "categories": block}
        parts.append(_judged(part, those, kind, most, sigmas, federated))
    precision, recall, ids = zip(*parts, strict=True)
    return Tables(np.concatenate(precision, 2), np.concatenate(recall, 1), [one for part in ids for one in part])


def _judged(
    ground_truth: dict[str, Annotations],
    results: Annotations,
    kind: Kind,
    most: Sequence[int],
    sigmas: Sequence[float] | None,
    federated: bool,
) -> Tables:
    from faster_coco_eval import COCO, COCOeval_faster

    there = COCO(ground_truth)
    points = None if sigmas is None else list(sigmas)
    judged = COCOeval_faster(there, there.loadRes(results), kind, kpt_oks_sigmas=points, lvis_style=federated)
    judged.params.maxDets = list(most)
    judged.evaluate()
    judged.accumulate()
    return Tables(judged.eval["precision"], judged.eval["recall"], list(map(int, judged.params.catIds)))


def _by_category(things: Annotations) -> dict[int, Annotations]:
    found: dict[int, Annotations] = {}
    for thing in things:
        found.setdefault(thing["category_id"], []).append(thing)
    return found


def scores(found: Tables, kind: Kind, most: Sequence[int]) -> dict[str, float]:
    """Means of the tables, by name; without those of which there is nothing to be found."""
    precision, recall, _ = found
    cells = {"AP": precision[..., 0, -1], "AP50": precision[0, ..., 0, -1], "AP75": precision[5, ..., 0, -1]}
    sizes = list(enumerate(_AREAS[kind]))[1:]
    cells |= {f"AP{size}": precision[..., number, -1] for number, size in sizes}
    if kind == "keypoints":
        cells |= {"AR": recall[..., 0, -1], "AR50": recall[0, ..., 0, -1], "AR75": recall[5, ..., 0, -1]}
    else:
        cells |= {f"AR{count}": recall[..., 0, number] for number, count in enumerate(most)}
    cells |= {f"AR{size}": recall[..., number, -1] for number, size in sizes}
    means = {name: mean(values) for name, values in cells.items()}
    return {name: value for name, value in means.items() if value is not None}


def names(kind: Kind, most: Sequence[int]) -> list[str]:
    """Names of the scores of a kind, with its prefix."""
    there = np.zeros((10, 1, 1, len(_AREAS[kind]), len(most)))
    return [PREFIXES[kind] + name for name in scores(Tables(there, there[:, 0], []), kind, most)]


def mean(values: Floats) -> float | None:
    """The mean over what is there; None where nothing is (-1)."""
    there = values[values > -1]
    return float(np.mean(there)) if there.size else None


def _read(content: Any) -> Any:
    if not isinstance(content, str | Path):
        return content
    try:
        return json.loads(Path(content).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{content} is no JSON: {error}") from error


@register.evaluator
class Coco(Pictures):
    """COCO's average precision (AP) and recall (AR) of boxes; of masks (``mask_AP`` ...) and keypoints
    (``keypoint_AP`` ...) where the data tells and the detector finds them. Equal to pycocotools' numbers.

    ``AP`` is the mean over overlaps from 0.5 to 0.95, ``AP50`` and ``AP75`` are those of one overlap; s, m and l stand
    for things smaller than 32 x 32 pixels, than 96 x 96, and larger. A score is left out where there is nothing to be
    found: ``APs`` in data without small things, all of them in pictures without any. Pictures without things count:
    what is found there is false.

    The tables (``details``): AP of each class, precision over recall, what is taken for what and the hundred pictures
    with most mistakes (:mod:`opabinia.evaluation.detection.detection_errors`). Results in COCO's format (``files``) are written as
    ``coco_results.json``, ``coco_mask_results.json`` and ``coco_keypoint_results.json``, one file a kind as COCO's
    server takes them; pycocotools finds the same scores in them.

    A thing whose pixels nobody tells is taken for a crowd that fills its box when masks are judged. Points in the file
    are numbers of pixels, those of detectors places in the picture: half a pixel is taken off (as in detectron2).

    Args:
        facts: of the data.
        max_detections: of so many things a picture and class, the best ones, recall is told (``AR1``, ``AR10``,
            ``AR100``); the last number limits everything else. Keypoints are judged with 20, as by COCO.
        sigmas: of each keypoint, how far people are from each other who mark it, in parts of the thing's size (the
            square root of its area); null takes COCO's for its 17 points of people.
        confidence: from which score on a thing counts as found where mistakes are counted.

    Raises:
        ValueError: the numbers of ``max_detections`` do not rise; the data has keypoints, and ``sigmas`` does not have
            one for each.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        max_detections: Sequence[Count] = MOST,
        sigmas: Sequence[Positive] | None = None,
        confidence: Fraction = 0.25,
    ) -> None:
        super().__init__(masks=dataset_info.masks)
        if not max_detections or any(one >= other for one, other in pairwise(max_detections)):
            raise ValueError(f"max_detections: {list(max_detections)} is to be numbers that rise, such as [1, 10, 100]")
        self._facts, self._confidence = dataset_info, confidence
        self._sigmas = sigmas_of(dataset_info.keypoints, sigmas)
        self._most: dict[Kind, tuple[int, ...]] = {"bbox": tuple(max_detections)}
        if dataset_info.masks:
            self._most["segm"] = tuple(max_detections)
        if dataset_info.keypoints:
            self._most["keypoints"] = _MOST_PEOPLE
        every = [name for kind, most in self._most.items() for name in names(kind, most)]
        self.better = dict.fromkeys(every, "max")
        self._last: tuple[Any, list[Picture], dict[Kind, Tables]] | None = None

    def _judged(self, states: Sequence[list[Picture]]) -> tuple[list[Picture], dict[Kind, Tables]]:
        """The pictures in order, and the tables of each kind that is judged; kept for the next question."""
        if self._last is None or self._last[0] is not states:
            pictures = in_order(states)
            found = {
                kind: tables(
                    truth_of(pictures, self._facts, kind), results_of(pictures, kind), kind, most, self._sigmas
                )
                for kind, most in self._most.items()
                if pictures and told(pictures, kind)
            }
            self._last = states, pictures, found
        return self._last[1:]

    def compute(self, states: Sequence[list[Picture]]) -> dict[str, float]:
        """The scores of each kind."""
        _, judged = self._judged(states)
        return {
            PREFIXES[kind] + name: score
            for kind, found in judged.items()
            for name, score in scores(found, kind, self._most[kind]).items()
        }

    def details(self, states: Sequence[list[Picture]]) -> dict[str, Any]:
        """The tables, in plain values; null for a class that is there nowhere."""
        pictures, judged = self._judged(states)
        if not pictures:
            return {}
        return {
            "per_class": by_class(pictures, self._facts.classes, judged),
            "precision_recall": curves(judged["bbox"]),
            **mistakes(pictures, len(self._facts.classes), self._confidence),
        }

    def files(self, states: Sequence[list[Picture]]) -> dict[str, Any]:
        """Results in COCO's format, with the numbers that pictures and classes have in the file."""
        pictures, judged = self._judged(states)
        images = [picture.ground_truth.image_id for picture in pictures]
        categories = self._facts.category_ids or range(1, len(self._facts.classes) + 1)
        named = {f"coco_{PREFIXES[kind]}results.json": kind for kind in judged}
        return {name: results_of(pictures, kind, images, categories) for name, kind in named.items()}


def sigmas_of(points: Sequence[str], sigmas: Sequence[float] | None) -> tuple[float, ...] | None:
    """One number for each point; None for COCO's points, of which they are known.

    Raises:
        ValueError: there are none, or too few or too many.
    """
    if sigmas is None:
        if points and tuple(points) != POINTS:
            raise ValueError(
                f"sigmas: the data has {len(points)} keypoints ({', '.join(points[:3])} ...), which are not COCO's 17 "
                "of people; give one number for each, such as 0.05 (0.025 is that of eyes, 0.107 that of hips)"
            )
        return None
    if len(sigmas) != len(points):
        raise ValueError(f"sigmas: {len(sigmas)} numbers for {len(points)} keypoints; give one for each")
    return tuple(sigmas)


def told(pictures: Sequence[Picture], kind: Kind) -> bool:
    """Whether the detector finds such."""
    return kind == "bbox" or (pictures[0].masks if kind == "segm" else pictures[0].keypoints) is not None


# --- tables for people ----------------------------------------------------------------------------------------------


def by_class(
    pictures: Sequence[Picture], classes: Sequence[str], judged: Mapping[Kind, Tables]
) -> list[dict[str, Any]]:
    """For each class the number of things that are not crowds, AP, AP50 and AR, and AP of masks and keypoints."""
    labels = [picture.ground_truth.labels[~picture.ground_truth.crowd] for picture in pictures]
    things = np.bincount(np.concatenate(labels), minlength=len(classes)).tolist()
    rows = [{"class": name, "things": count} for name, count in zip(classes, things, strict=True)]
    for kind, (precision, recall, categories) in judged.items():
        places = {category: place for place, category in enumerate(categories)}
        for number, row in enumerate(rows):
            column = [places[number]] if number in places else []
            cells = {"AP": precision[:, :, column, 0, -1]}
            if kind == "bbox":
                cells |= {"AP50": precision[0, :, column, 0, -1], "AR": recall[:, column, 0, -1]}
            row |= {PREFIXES[kind] + name: mean(values) for name, values in cells.items()}
    return rows


def curves(found: Tables) -> dict[str, list[float]]:
    """Precision at recalls from 0 to 1, the mean over classes: at overlaps of 0.5 and 0.75, and over all overlaps."""
    there = found.precision[..., 0, -1]
    there = there[:, :, (there > -1).all((0, 1))]
    if not there.size:
        return {}
    kept: dict[str, NDArray[Any]] = {"0.5": there[0], "0.75": there[5], "0.5:0.95": there.mean(0)}
    recalls = np.linspace(0, 1, there.shape[1])
    return {"recall": recalls.tolist()} | {name: values.mean(1).tolist() for name, values in kept.items()}
