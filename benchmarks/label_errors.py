"""Claim: where 5 % of the labels are flipped, at least 85 % of the first 5 % of `opabinia data labels` are such labels,
not fewer than cleanlab's on the same predictions; damaged boxes are ranked as well by cleanlab's ObjectLab.

Labels of digits, or of photographs of clothes, are flipped, three folds are trained on them (clothes: from ImageNet
weights), and each sample is scored by the model that was not trained on it. Boxes of the validation scenes of digits
are damaged in five ways, and compared with the predictions of a short run on the training scenes. cleanlab (AGPL) needs
an environment of its own, whose Python CLEANLAB_PYTHON names; without it only our side is printed. Run:
``CLEANLAB_PYTHON=cleanlab/bin/python python benchmarks/label_errors.py [--runs FOLDER] [digits] [boxes]``, and
``... label_errors.py clothing --root path/to/clothing_small``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import opabinia
from opabinia.config.paths import holds_run
from opabinia.contracts import Source
from opabinia.data.sources import Digits, DigitScenes
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.sources.subset import write_split
from opabinia.evaluation.classification.multilabel import average_precision
from opabinia.evaluation.detection.base import ImageResult, to_corners
from opabinia.evaluation.label_errors.classification import (
    ClassificationCheck,
    neighbor_votes,
    normalized_margin,
    self_confidence,
    suspicion,
)
from opabinia.evaluation.label_errors.detection import (
    MISPLACED,
    OTHER_CLASS,
    OVERLOOKED,
    TWICE,
    DetectionCheck,
    box_iou,
)
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.inference.label_errors.collect import collect
from opabinia.inference.load import RunModel
from opabinia.visualization.drawing import to_pil

SEEDS, SHARE = (0, 1, 2), 0.05
QUICK = ["train.device=cpu", "train.num_threads=1", "data.num_workers=0"]
Floats = NDArray[np.floating[Any]]


def in_cleanlab(python: str, folder: Path, program: str) -> None:
    """Run a program that reads ``in.npz`` and writes ``out.npz`` in the environment of cleanlab."""
    subprocess.run([python, "-c", program], cwd=folder, check=True)


def train(recipe: str, folder: Path, name: str, words: Sequence[str]) -> Path:
    """Train a run, unless it is there already, and return its folder."""
    run = folder / recipe / name
    if not (run / "results.json").is_file():
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            run, _ = opabinia.train(
                recipe, [*QUICK, *words], out=folder, name=name, resume="auto" if holds_run(run) else None
            )
    return run


# --- flipped labels ---------------------------------------------------------------------------------------------------

CLASSIFICATION = """
import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
data = np.load("in.npz")
labels, probabilities = data["labels"], data["probabilities"]
methods = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
scores = {method: get_label_quality_scores(labels, probabilities, method=method) for method in methods}
issues = find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence")
np.savez("out.npz", issues=issues, **scores)
"""


class Labeled(NamedTuple):
    """Data with labels, some of which are flipped.

    Attributes:
        source: the images.
        config: the source in a config.
        recipe: of the runs.
        words: changes to the recipe.
    """

    source: Source
    config: str
    recipe: str
    words: Sequence[str]


def labeled_digits() -> Labeled:
    return Labeled(Digits(split="train"), "digits", "classification/digits", ["train.length=6ep"])


def labeled_clothes(root: Path) -> Labeled:
    train = root / "train"
    words = [
        *("vars.size=160", "vars.enlarged=182", "task.backbone.model=tf_efficientnet_lite0.in1k"),
        *("task.backbone.pretrained=true", "optimizer.lr=0.0007", "schedule.warmup=16it", "train.length=5ep"),
        *("evaluate.every=5ep", "train.channels_last=true", "ema.decay=0.9"),
    ]
    config = f"{{name: image_folder, root: {train}}}"
    return Labeled(ImageFolder(root=train), config, "classification/image_folder", words)


def flipped_folds(data: Labeled, folder: Path, seed: int, folds: int = 3) -> tuple[list[Path], set[str]]:
    """Train folds of the data with flipped labels, and return the runs and the ids of the flipped samples."""
    source, rng = data.source, np.random.default_rng(seed)
    labels, classes = source.info.single_labels, len(source.classes)
    assert labels is not None
    flipped = rng.choice(len(source), round(SHARE * len(source)), replace=False)
    wrong = (labels[flipped] + rng.integers(1, classes, len(flipped))) % classes
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "flipped.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "corrected"])
        writer.writerows((source.id(index), source.classes[label]) for index, label in zip(flipped, wrong, strict=True))
    fold = rng.permutation(len(source)) % folds
    runs = []
    for number in range(folds):
        split = folder / f"fold{number}.json"
        write_split(split, [source.id(index) for index in np.flatnonzero(fold == number)])
        given = f"{{name: corrected, source: {data.config}, file: {folder / 'flipped.csv'}}}"
        parts = (f"{{name: subset, source: {given}, file: {split}, split: {part}}}" for part in ("train", "val"))
        words = [f"data.{part}.source={source}" for part, source in zip(("train", "val"), parts, strict=True)]
        runs.append(train(data.recipe, folder, f"fold{number}", [*data.words, *words]))
    return runs, {source.id(index) for index in flipped}


def flips(data: Labeled, folder: Path, python: str | None) -> None:
    """Print the share of flipped labels among the first 5 % of each ranking."""
    precision: dict[str, list[float]] = {}
    for seed in SEEDS:
        runs, flipped = flipped_folds(data, folder / f"seed{seed}", seed)
        checks = [collect(RunModel(run), None).check for run in runs]
        samples = [check.samples() for check in checks if isinstance(check, ClassificationCheck)]
        ids = [name for part in samples for name in part.ids]
        labels, probabilities = (np.concatenate([part[field] for part in samples]) for field in (1, 2))
        votes = np.concatenate(
            [neighbor_votes(part.labels, part.embeddings, len(data.source.classes)) for part in samples]
        )
        of_label = votes[np.arange(len(labels)), labels]
        scores = {
            "opabinia: data labels": -suspicion(labels, probabilities, votes),
            "opabinia: normalized margin alone": normalized_margin(labels, probabilities),
            "opabinia: self-confidence alone": self_confidence(labels, probabilities),
            "opabinia: neighbors alone": of_label,
        }
        is_flipped, first = np.array([name in flipped for name in ids]), len(flipped)
        if python is not None:
            np.savez(folder / "in.npz", labels=labels, probabilities=probabilities)
            in_cleanlab(python, folder, CLASSIFICATION)
            out = np.load(folder / "out.npz")
            scores |= {f"cleanlab: {name.replace('_', ' ')}": out[name] for name in out.files if name != "issues"}
            issues = out["issues"]
            print(f"  seed {seed}: cleanlab lists {len(issues)}, {is_flipped[issues].mean():.3f} of them flipped")
        found = ClassificationCheck.find(checks, list(data.source.classes)).suspects
        share = np.mean([suspect.id in flipped for suspect in found])
        print(f"  seed {seed}: opabinia lists {len(found)}, {share:.3f} of them flipped; {first} labels are flipped")
        for name, values in scores.items():
            precision.setdefault(name, []).append(is_flipped[np.argsort(values, kind="stable")[:first]].mean())
    seeds = ", ".join(map(str, SEEDS))
    print(f"share of flipped labels among the first 5 % of {len(data.source):,}, seeds {seeds}, and the mean")
    for name, shares in precision.items():
        print(f"  {name:<44}{'  '.join(f'{share:.3f}' for share in shares)}   {np.mean(shares):.3f}")


# --- damaged boxes of digit scenes ------------------------------------------------------------------------------------

DAMAGES = ("removed", "moved", "resized", "class changed", "duplicated")
DAMAGED = 0.1

Places = dict[str, list[tuple[str, list[float]]]]
"""By damage: the name of the image, and left, top, right and bottom of the box as annotated, or as it was."""


def damaged_scenes(folder: Path, seed: int = 0) -> Places:
    """Write the scenes of digits with damaged boxes in COCO's format, and return the places."""
    source, rng = DigitScenes(split="val"), np.random.default_rng(seed)
    truths = [source[index]["ground_truth"] for index in range(len(source))]
    total = sum(len(truth.labels) for truth in truths)
    chosen = rng.choice(total, round(DAMAGED * total), replace=False)
    damage_of = {int(row): DAMAGES[number % len(DAMAGES)] for number, row in enumerate(chosen)}
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, annotations, row = [], [], 0
    places: Places = {name: [] for name in DAMAGES}
    for index, truth in enumerate(truths):
        name = f"{index:06d}.png"
        to_pil(source[index]["image"]).convert("L").save(folder / "images" / name)
        images.append({"id": index + 1, "file_name": name, "width": 128, "height": 128})
        for (left, top, width, height), label in zip(truth.boxes.tolist(), truth.labels.tolist(), strict=True):
            damage, given = damage_of.get(row), np.array([left, top, left + width, top + height])
            row += 1
            boxes = damaged(given, damage, rng)
            label = (label + int(rng.integers(1, 10))) % 10 if damage == "class changed" else label
            for box in boxes:
                annotation = {"id": len(annotations) + 1, "image_id": index + 1, "category_id": label + 1, "iscrowd": 0}
                size = [box[2] - box[0], box[3] - box[1]]
                annotations.append({**annotation, "bbox": [*box[:2].tolist(), *size], "area": size[0] * size[1]})
            if damage:
                places[damage].append((name, (boxes[-1] if boxes else given).tolist()))
    categories = [{"id": number + 1, "name": str(number)} for number in range(10)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "damaged.json").write_text(json.dumps(content))
    return places


def damaged(box: Floats, damage: str | None, rng: np.random.Generator) -> list[Floats]:
    """Return the boxes that are annotated instead of one: none, one or two."""
    center, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
    if damage == "removed":
        return []
    if damage == "moved":  # by 0.3 to 0.6 of its size
        angle = rng.uniform(0, 2 * np.pi)
        center = center + rng.uniform(0.3, 0.6) * size * [np.cos(angle), np.sin(angle)]
    elif damage == "resized":  # to 0.5 to 0.7, or 1.4 to 1.8 of its sides
        size = size * (rng.uniform(0.5, 0.7) if rng.random() < 0.5 else rng.uniform(1.4, 1.8))
    changed = np.clip(np.concatenate([center - size / 2, center + size / 2]), 0, 128)
    if damage != "duplicated":
        return [changed]
    return [box, np.clip(box + rng.normal(0, 0.03, 4) * np.tile(size, 2), 0, 128)]


BOXES = """
import pickle
import numpy as np
from cleanlab.object_detection.rank import (
    compute_badloc_box_scores, compute_overlooked_box_scores, compute_swap_box_scores, get_label_quality_scores,
    pool_box_scores_per_image,
)
data = np.load("in.npz")
def rows(name, image):
    return data[name][data[f"{name}_image"] == image]
labels = [{"bboxes": rows("boxes", i), "labels": rows("labels", i)} for i in range(int(data["count"]))]
predictions = []
for i in range(int(data["count"])):
    detections, classes = rows("detections", i), rows("classes", i)
    predictions.append(np.array([detections[classes == k] for k in range(10)] + [None], dtype=object)[:-1])
options = {"labels": labels, "predictions": predictions}
scores = {"overall": get_label_quality_scores(labels, predictions, verbose=False)}
for name, compute in {
    "overlooked": compute_overlooked_box_scores, "badloc": compute_badloc_box_scores, "swap": compute_swap_box_scores,
}.items():
    for threshold in (None, 0.3):
        low = "low" if name == "badloc" else "high"
        given = {f"{low}_probability_threshold": threshold} if threshold else {}
        pooled = pool_box_scores_per_image(compute(**options, **given))
        scores[f"{name} from score {threshold}" if threshold else name] = pooled
np.savez("out.npz", **scores)
"""

ISSUES = (
    (("removed",), OVERLOOKED, "overlooked"),
    (("moved",), MISPLACED, "badloc"),
    (("resized",), MISPLACED, "badloc"),
    (("moved", "resized"), MISPLACED, "badloc"),
    (("class changed",), OTHER_CLASS, "swap"),
    (("duplicated",), TWICE, "overall"),
)
"""Damages, our issue and cleanlab's score."""


def boxes(folder: Path, python: str | None, detector: Path | None) -> None:
    """Print the average precision of our ranking, and of cleanlab's, for each damage of boxes."""
    run = detector or train("detection/digits", folder, "clean", ["train.length=2ep", "evaluate.every=2ep"])
    places = damaged_scenes(folder)
    scenes = f"{{name: coco, root: {folder / 'images'}, file: {folder / 'damaged.json'}, channels: 1}}"
    check = collect(RunModel(run, [f"data.val.source={scenes}"]), None).check
    assert isinstance(check, DetectionCheck)
    images, found = check.images, DetectionCheck.find([check], [str(label) for label in range(10)])
    names = [image.name for image in images]
    print(f"{len(images):,} images, {', '.join(f'{len(places[name])} {name}' for name in DAMAGES)}; {found.facts}")
    theirs = cleanlab_boxes(folder, python, images) if python is not None else {}
    print("average precision of images with the damage among all images, and of our listed boxes")
    for damages, issue, score in ISSUES:
        damaged_places = [place for damage in damages for place in places[damage]]
        is_damaged = np.isin(names, [image for image, _ in damaged_places])
        rows = {"ours": image_scores(found.suspects, names, issue)}
        rows |= {f"cleanlab, {key}": -values for key, values in theirs.items() if key.startswith((score, "overall"))}
        text = "  ".join(f"{name} {average_precision(values, is_damaged):.3f}" for name, values in rows.items())
        boxes_found = box_precision(found.suspects, damaged_places, issue)
        print(f"  {' or '.join(damages):<18} {text}  our boxes {boxes_found:.3f}")
    everything = np.isin(names, [image for rows in places.values() for image, _ in rows])
    text = f"ours {average_precision(image_scores(found.suspects, names, None), everything):.3f}"
    text += f"  cleanlab, overall {average_precision(-theirs['overall'], everything):.3f}" if theirs else ""
    print(f"  {'any':<18} {text}")


def cleanlab_boxes(folder: Path, python: str, images: Sequence[ImageResult]) -> dict[str, Floats]:
    """Return cleanlab's quality scores of images by name."""
    columns: dict[str, list[Any]] = {"boxes": [], "labels": [], "detections": [], "classes": []}
    for image in images:
        columns["boxes"].append(to_corners(image.ground_truth.boxes))
        columns["labels"].append(image.ground_truth.labels)
        columns["detections"].append(np.concatenate([image.boxes, image.scores[:, None]], 1))
        columns["classes"].append(image.labels)
    arrays = {name: np.concatenate(rows) for name, rows in columns.items()}
    owners = {
        f"{name}_image": np.repeat(np.arange(len(images)), list(map(len, rows))) for name, rows in columns.items()
    }
    np.savez(folder / "in.npz", count=len(images), **arrays, **owners)
    in_cleanlab(python, folder, BOXES)
    return dict(np.load(folder / "out.npz"))


def image_scores(suspects: Sequence[Suspect], names: Sequence[str], issue: str | None) -> Floats:
    """Return the highest score of each image's suspects of an issue, of any if it is None; 0 without one."""
    scores = dict.fromkeys(names, 0.0)
    for suspect in suspects:
        if issue in (None, suspect.issue):
            scores[suspect.id] = max(scores[suspect.id], suspect.score)
    return np.array([scores[name] for name in names])


def box_precision(suspects: Sequence[Suspect], places: Sequence[tuple[str, list[float]]], issue: str) -> float:
    """Return the average precision of the suspects of an issue; right ones overlap a damaged place by an IoU of 0.5 or
    more, each place counts once, and places that are not listed are missed."""
    left = list(places)
    hits = []
    for suspect in suspects:
        if suspect.issue != issue:
            continue
        match = next(
            (place for place in left if place[0] == suspect.id and overlap(place[1], suspect.place) >= 0.5), None
        )
        hits.append(match is not None)
        if match is not None:
            left.remove(match)
    found = np.cumsum(hits)
    return float((found / np.arange(1, len(hits) + 1))[np.array(hits, dtype=bool)].sum() / len(places))


def overlap(first: Sequence[float], second: Sequence[float] | None) -> float:
    """Return the IoU of two boxes."""
    return float(box_iou(np.array([first, second]))[0, 1]) if second is not None else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["digits", "boxes"])
    parser.add_argument("--runs", type=Path, help="Keep the runs in this folder, and use those that are there.")
    parser.add_argument("--detector", type=Path, help="Use this run of detection/digits instead of training one.")
    parser.add_argument("--root", type=Path, help="Folder of clothing_small, for `clothing`.")
    args = parser.parse_args()
    if "clothing" in args.parts and args.root is None:
        parser.error("clothing: --root is missing")
    python = os.environ.get("CLEANLAB_PYTHON")
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        for part in args.parts:
            folder = (args.runs or Path(temporary)) / part
            if part == "boxes":
                boxes(folder, python, args.detector)
            else:
                flips(labeled_digits() if part == "digits" else labeled_clothes(args.root), folder, python)
    print(f"CPU time {time.process_time() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
