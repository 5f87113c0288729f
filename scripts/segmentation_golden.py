"""Write ``tests/golden/segmentation``: random maps, and the scores that the original systems compute for them.

Run ``python scripts/segmentation_golden.py DETECTRON2 PANOPTICAPI BOUNDARY_IOU_API MASK2FORMER`` with checkouts of
facebookresearch/detectron2 and Mask2Former (of which single functions are run, without their compiled parts),
cocodataset/panopticapi and bowenc0221/boundary-iou-api (which needs OpenCV). The tests need none of them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from PIL import Image

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "segmentation"
IGNORED = 255
SEMANTIC = {"usual": (7, range(5), 6), "one_class": (1, range(1), 2), "many_classes": (60, range(0, 60, 2), 3)}
"""Classes, those in the ground truth, and images of each case."""
PANOPTIC = {"usual": (8, (0, 2, 3, 5), 8), "two_classes": (3, (0,), 3)}
"""Classes, those with countable objects, and images of each case. The last class never occurs."""

Random = np.random.Generator
Map = np.ndarray[Any, Any]


def rectangles(values: Map, fills: Sequence[int], random: Random) -> Map:
    """Return a map with a random rectangle of each value in ``fills``."""
    values = values.copy()
    for fill in fills:
        top, left = (int(random.integers(side)) for side in values.shape)
        height, width = random.integers(3, 16, size=2).tolist()
        values[top : top + height, left : left + width] = fill
    return values


def semantic_maps(classes: int, present: Sequence[int], random: Random) -> tuple[Map, Map]:
    """Return ground truth with unlabeled pixels, and a mostly correct prediction."""
    shape = random.integers(24, 70, size=2)
    true = rectangles(np.full(shape, present[0], np.uint8), random.choice(present, 12).tolist(), random)
    predicted = rectangles(true, random.integers(classes, size=6).tolist(), random)
    noise = random.random(shape) < 0.1
    predicted[noise] = random.integers(classes, size=int(noise.sum()))
    return rectangles(true, [IGNORED] * 3, random), predicted


def numbered(segments: Map, labels: Map) -> tuple[Map, Map]:
    """Number the segments that have pixels from 1; return the map and their labels."""
    numbers, inverse = np.unique(segments, return_inverse=True)
    has_void = int(numbers[0] == 0)
    result = inverse.reshape(segments.shape).astype(np.int32) + 1 - has_void
    return result, labels[numbers[has_void:] - 1]


def panoptic_maps(classes: int, countable: Sequence[int], random: Random) -> dict[str, Map]:
    """Return ground truth with crowds and pixels of no segment, and a prediction with segments moved, cut and confused.

    Classes of which no objects are counted have at most one segment in an image, as in COCO.
    """
    count = 14
    labels = random.integers(classes - 1, size=count)
    uncountable = [label for label in range(classes - 1) if label not in countable]
    owner = {label: row for row, label in enumerate(labels.tolist()) if label in uncountable}
    owner |= {-row - 1: row for row, label in enumerate(labels.tolist()) if label not in uncountable}
    order = sorted(owner.values())
    shape = random.integers(30, 80, size=2)
    background = order[0] + 1 if random.random() < 0.5 else 0
    true = rectangles(np.full(shape, background, np.int32), [row + 1 for row in order], random)
    predicted = np.roll(true, random.integers(-2, 3, size=2), (0, 1))
    predicted = rectangles(predicted, random.choice([0, *(row + 1 for row in order)], 4).tolist(), random)
    guessed = np.where(random.random(count) < 0.15, random.integers(classes - 1, size=count), labels)
    true, true_labels = numbered(rectangles(true, [0, 0], random), labels)
    predicted, predicted_labels = numbered(predicted, guessed)
    crowd = np.isin(true_labels, countable) & (random.random(len(true_labels)) < 0.25)
    columns = {"segments": true, "labels": true_labels, "crowd": crowd}
    return columns | {"predicted": predicted, "predicted_labels": predicted_labels}


def published_maps(checkout: Path, random: Random) -> tuple[list[dict[str, Map]], int, list[int]]:
    """Return panopticapi's two images of COCO with made-up predictions, the number of classes, and those with countable
    objects."""
    from panopticapi.utils import rgb2id  # type: ignore[import-not-found]

    folder = checkout / "sample_data"
    content = json.loads((folder / "panoptic_examples.json").read_text())
    countable = {row["id"]: row["isthing"] for row in content["categories"]}
    classes = sorted({row["category_id"] for image in content["annotations"] for row in image["segments_info"]})
    images = []
    for image in content["annotations"]:
        ids = rgb2id(np.array(Image.open(folder / "panoptic_examples" / image["file_name"]), dtype=np.uint32))
        rows = image["segments_info"]
        segments = sum((ids == row["id"]) * number for number, row in enumerate(rows, 1)).astype(np.uint8)
        labels = np.array([classes.index(row["category_id"]) for row in rows])
        guessed = np.where(random.random(len(rows)) < 0.1, labels[::-1], labels)
        predicted, predicted_labels = numbered(np.roll(segments, (3, -4), (0, 1)), guessed)
        crowd = np.array([bool(row["iscrowd"]) for row in rows])
        columns = {"segments": segments, "labels": labels, "crowd": crowd}
        images.append(columns | {"predicted": predicted.astype(np.uint8), "predicted_labels": predicted_labels})
    return images, len(classes), [number for number, label in enumerate(classes) if countable[label]]


def load(name: str, path: Path, package: str = "") -> Any:
    """Return the module in a file, imported under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package
    spec.loader.exec_module(module)
    return module


def semantic_scores(checkout: Path, maps: Sequence[tuple[Map, Map]], classes: int) -> dict[str, float | None]:
    """Return the scores of detectron2's ``SemSegEvaluator``; None instead of NaN."""
    for name in ("", ".data", ".utils", ".utils.comm", ".utils.file_io", ".evaluation"):
        sys.modules[f"detectron2{name}"] = MagicMock()
    sys.modules["detectron2.evaluation.evaluator"] = ModuleType("evaluator")
    sys.modules["detectron2.evaluation.evaluator"].DatasetEvaluator = object  # type: ignore[attr-defined]
    file = checkout / "detectron2" / "evaluation" / "sem_seg_evaluation.py"
    module = load("detectron2.evaluation.sem_seg_evaluation", file, "detectron2.evaluation")
    meta = SimpleNamespace(stuff_classes=[str(label) for label in range(classes)], ignore_label=IGNORED)
    module.MetadataCatalog.get = lambda name: meta
    module.DatasetCatalog.get = lambda name: [
        {"file_name": str(row), "sem_seg_file_name": row} for row in range(len(maps))
    ]
    evaluator = module.SemSegEvaluator(
        "maps", distributed=False, sem_seg_loading_fn=lambda row, dtype: maps[row][0].astype(dtype)
    )
    evaluator.reset()
    for row, (_, predicted) in enumerate(maps):
        logits = torch.nn.functional.one_hot(torch.from_numpy(predicted).long(), classes).permute(2, 0, 1)
        evaluator.process([{"file_name": str(row)}], [{"sem_seg": logits}])
    scores = evaluator.evaluate()["sem_seg"]
    names_kept = (name for name in scores if not name.startswith(("Boundary", "min")))
    return {name: None if np.isnan(scores[name]) else scores[name] / 100 for name in names_kept}


def boundary_scores(checkout: Path, maps: Sequence[tuple[Map, Map]], classes: int) -> list[float | None]:
    """Return each class's Boundary IoU from the boundary masks of the paper's code; None without boundary pixels."""
    utils = load("boundary_utils", checkout / "boundary_iou" / "utils" / "boundary_utils.py")
    scores: list[float | None] = []
    for label in range(classes):
        common = union = 0
        for true, predicted in maps:
            masks = [(true == label), (predicted == label) & (true != IGNORED)]
            first, second = (utils.mask_to_boundary(mask.astype(np.uint8)) > 0 for mask in masks)
            common, union = common + int((first & second).sum()), union + int((first | second).sum())
        scores.append(common / union if union else None)
    return scores


def panoptic_scores(images: Sequence[dict[str, Map]], classes: int, countable: Sequence[int]) -> dict[str, Any]:
    """Return the scores of panopticapi's ``pq_compute``."""
    from panopticapi.evaluation import pq_compute  # type: ignore[import-not-found]
    from panopticapi.utils import id2rgb

    categories = [{"id": label, "name": str(label), "isthing": int(label in countable)} for label in range(classes)]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for kind, names in {"gt": ("segments", "labels"), "pred": ("predicted", "predicted_labels")}.items():
            (Path(folder) / kind).mkdir()
            annotations = []
            for number, image in enumerate(images):
                segments, labels = (image[name] for name in names)
                Image.fromarray(id2rgb(segments.astype(np.uint32))).save(Path(folder) / kind / f"{number}.png")
                crowd = image["crowd"].tolist() if kind == "gt" else [False] * len(labels)
                info = [
                    {"id": row, "category_id": label, "iscrowd": int(is_crowd), "area": int((segments == row).sum())}
                    for row, (label, is_crowd) in enumerate(zip(labels.tolist(), crowd, strict=True), 1)
                ]
                annotations.append({"image_id": number, "file_name": f"{number}.png", "segments_info": info})
            files.append(Path(folder) / f"{kind}.json")
            files[-1].write_text(json.dumps({"categories": categories, "annotations": annotations}))
        scores: dict[str, Any] = pq_compute(*map(str, files))
    return scores


def functions_of(path: Path) -> dict[str, Any]:
    """Return the functions and methods in a file by name, without its imports."""
    namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    namespace |= {"Instances": lambda size: SimpleNamespace(), "Boxes": lambda boxes: None}
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for node in nodes:
        node.decorator_list = []
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        exec(compile(ast.Module([node], []), str(path), "exec"), namespace)
    return namespace


def combined_instances(checkout: Path, random: Random) -> tuple[dict[str, Map], dict[str, Any]]:
    """Return instances and a semantic map of an image, and the result of Panoptic FPN; class 0 is an object."""
    combine = functions_of(checkout / "detectron2" / "modeling" / "meta_arch" / "panoptic_fpn.py")
    semantic = rectangles(np.zeros((40, 40), np.uint8), random.integers(5, size=9).tolist(), random)
    empty = np.zeros((40, 40), np.uint8)
    masks = np.stack([rectangles(empty, [1] * random.integers(1, 4), random) for _ in range(11)] + [empty])
    scores = np.round(random.random(12), 2).astype(np.float32)
    labels = random.integers(5, 8, size=12)
    instances = SimpleNamespace(
        pred_masks=torch.from_numpy(masks), scores=torch.from_numpy(scores), pred_classes=torch.from_numpy(labels)
    )
    function = combine["combine_semantic_and_instance_outputs"]
    segments, info = function(instances, torch.from_numpy(semantic).long(), 0.5, 40, 0.3)
    arrays = {"semantic": semantic, "masks": masks, "scores": scores, "labels": labels}
    return arrays, {"segments": segments.tolist(), "info": info}


def classified_masks(checkout: Path, random: Random) -> tuple[dict[str, Map], dict[str, Any]]:
    """Return logits of classes and masks of an image, and the result of Mask2Former."""
    functions = functions_of(checkout / "mask2former" / "maskformer_model.py")
    queries, classes, countable = 20, 4, [1, 3]
    class_logits = (5 * random.normal(size=(queries, classes + 1))).round(2)
    corners, centers = np.mgrid[:24, :32], random.random((queries, 2, 1, 1)) * [[[24]], [[32]]]
    radii = random.uniform(3, 12, size=(queries, 1, 1))
    mask_logits = (radii - np.sqrt(((corners - centers) ** 2).sum(1)) + random.normal(size=(queries, 24, 32))).round(1)
    arrays = {"class_logits": class_logits.astype(np.float32), "mask_logits": mask_logits.astype(np.float32)}
    task = SimpleNamespace(
        sem_seg_head=SimpleNamespace(num_classes=classes),
        metadata=SimpleNamespace(thing_dataset_id_to_contiguous_id=dict(enumerate(countable))),
        **{"object_mask_threshold": 0.6, "overlap_threshold": 0.7, "num_queries": queries, "test_topk_per_image": 20},
        **{"panoptic_on": True, "device": "cpu"},
    )
    inputs = [torch.from_numpy(values) for values in arrays.values()]
    semantic = functions["semantic_inference"](task, *inputs)
    segments, info = functions["panoptic_inference"](task, *inputs)
    instances = functions["instance_inference"](task, *inputs)
    outputs = {
        "semantic": semantic.mean((1, 2)).tolist(),
        "segments": segments.tolist(),
        "labels": [row["category_id"] for row in info],
        "instance_labels": instances.pred_classes.tolist(),
        "instance_scores": instances.scores.tolist(),
        "instance_areas": instances.pred_masks.sum((1, 2)).tolist(),
    }
    return arrays, outputs


def main() -> None:
    """Write the maps and the scores."""
    detectron2, panopticapi, boundary_iou, mask2former = map(Path, sys.argv[1:5])
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    expected: dict[str, Any] = {"semantic": {}, "panoptic": {}}
    for name, (classes, present, count) in SEMANTIC.items():
        maps = [semantic_maps(classes, present, random) for _ in range(count)]
        for row, pair in enumerate(maps):
            arrays |= dict(zip((f"semantic/{name}/{row}/true", f"semantic/{name}/{row}/predicted"), pair, strict=True))
        scores = {"scores": semantic_scores(detectron2, maps, classes)}
        expected["semantic"][name] = scores | {"boundary": boundary_scores(boundary_iou, maps, classes)}
    sys.path.insert(0, str(panopticapi))
    cases = {
        name: ([panoptic_maps(classes, countable, random) for _ in range(count)], classes, countable)
        for name, (classes, countable, count) in PANOPTIC.items()
    }
    for name, (images, classes, countable) in (cases | {"published": published_maps(panopticapi, random)}).items():
        for row, image in enumerate(images):
            arrays |= {f"panoptic/{name}/{row}/{key}": value for key, value in image.items()}
        scores = panoptic_scores(images, classes, countable)
        expected["panoptic"][name] = scores | {"countable": list(countable)}
    for name, (values, scores) in {
        "instances": combined_instances(detectron2, random),
        "queries": classified_masks(mask2former, np.random.default_rng(1)),
    }.items():
        arrays |= {f"{name}/{key}": value for key, value in values.items()}
        expected[name] = scores
    GOLDEN.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(GOLDEN / "maps.npz", **arrays)
    (GOLDEN / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
