"""Compared: a planned run and what a user would pick instead, with the same ImageNet weights, data and wall time.

For each dataset and seed ``opabinia train FOLDER --budget`` runs first, nothing else. Then the others run in turn, each
in a process of its own that gets the wall time that ours took: fastai's ``fine_tune``, the ``Trainer`` of Hugging
Face's image classification example, timm's ``train.py``, a plain Lightning module, AutoGluon MultiModal, torchvision's
reference trainings of detection and segmentation, and a plain triplet baseline of re-identification. They are used as
their documentation recommends, with their default hyperparameters (benchmarks/peers/ has a script for each). Those
without a limit of time get as many epochs as fit: the time of a step, or of a short epoch, is measured first, within
the same wall time. Predictions of the others for the validation data are scored here: top-1; AP by pycocotools; mean
IoU of the classes; mAP by our ranking. timm's is the top-1 that it prints. Ours is that of its last evaluation, of the
moving average of the weights if the run has one. CPU time includes that of child processes that have ended; memory is
the peak of the largest process.

Run: ``python benchmarks/peers.py --python PEERS --timm CHECKOUT --autogluon PYTHON`` with the Python of an environment
that has the other libraries (``pip install fastai transformers accelerate datasets lightning timm torchvision``), a
checkout of timm's repository, and the Python of an environment with ``autogluon.multimodal``, which needs other
versions. A side that is not installed is named and skipped. ``--out FOLDER`` keeps results, and runs that are finished
are not repeated. Names of datasets, ``--sides``, ``--budget 10m`` and ``--seeds 0,1,2`` choose. Data of ../shared is
used if it is there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from planning import DATASETS, SHARED, train_command, write_class_folders

from opabinia.runtime.durations import parse_seconds

SCRIPTS = Path(__file__).with_name("peers")
OURS, MODEL = "Opabinia", "tf_efficientnet_lite0"
IGNORED = 255
"""Label of pixels that do not count."""


@dataclass(frozen=True)
class Side:
    """Another system.

    Attributes:
        script: in benchmarks/peers.
        task: of its datasets.
        needs: distributions that must be installed.
        words: further arguments of the script.
        python: option of this script with the Python that runs it.
        checkout: option with the path of a checkout that it needs.
    """

    script: str
    task: str
    needs: tuple[str, ...]
    words: tuple[str, ...] = ()
    python: str = "python"
    checkout: str = ""


DETECTION = Side("torchvision_detection.py", "detection", ("torch", "torchvision", "timm", "pycocotools"), ("320",))
SEGMENTATION = Side("torchvision_segmentation.py", "segmentation", ("torch", "torchvision", "timm"), ("lraspp",))
SIDES = {
    "fastai": Side("fastai_classification.py", "classification", ("torch", "fastai", "timm")),
    "Hugging Face Trainer": Side(
        "hf_trainer.py", "classification", ("torch", "transformers", "accelerate", "datasets", "timm")
    ),
    "timm": Side("timm_train.py", "classification", ("torch", "torchvision"), checkout="timm"),
    "Lightning": Side("lightning_module.py", "classification", ("torch", "lightning", "timm")),
    "AutoGluon": Side(
        "autogluon_multimodal.py", "classification", ("torch", "autogluon.multimodal", "timm"), python="autogluon"
    ),
    "torchvision Faster R-CNN 320": DETECTION,
    "torchvision Faster R-CNN 800": replace(DETECTION, words=("800",)),
    "torchvision LR-ASPP": SEGMENTATION,
    "torchvision LR-ASPP 128": replace(SEGMENTATION, words=("lraspp", "128")),
    "torchvision DeepLabV3": replace(SEGMENTATION, words=("deeplabv3",)),
    "triplet baseline": Side("triplet.py", "reid", ("torch", "torchvision", "timm")),
}


@dataclass(frozen=True)
class Result:
    """A finished run; times in seconds, memory in bytes."""

    dataset: str
    budget: float
    side: str
    seed: int
    score: float
    wall: float
    cpu: float
    memory: int
    note: str


# --- scores -----------------------------------------------------------------------------------------------------------


def top1(folder: Path, out: Path, results: dict[str, Any]) -> float:
    """Return the accuracy of predicted classes by path, or the one that a script has measured."""
    if "score" in results:
        return float(results["score"])
    validation = next(path for name in ("val", "validation") if (path := folder / name).is_dir())
    classes = {path.relative_to(folder).as_posix(): path.parent.name for path in validation.glob("*/*")}
    if classes.keys() != results["classes"].keys():
        raise ValueError(f"{len(results['classes'])} images are predicted, and the validation data has {len(classes)}")
    return mean(results["classes"][name] == label for name, label in classes.items())


def average_precision(folder: Path, out: Path, results: dict[str, Any]) -> float:
    """Return COCO's AP of detections."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not results["detections"]:
        return 0.0
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(folder / "annotations" / "instances_val.json")
        evaluation = COCOeval(truth, truth.loadRes(results["detections"]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def mean_iou(folder: Path, out: Path, results: dict[str, Any]) -> float:
    """Return the mean over the classes of the IoU of all pixels of predicted maps."""
    count = len((folder / "classes.txt").read_text().split())
    confusion = np.zeros((count, count), np.int64)
    for path in sorted((folder / "val" / "labels").iterdir()):
        truth, predicted = _pixels(path), _pixels(out / results["maps"] / path.name)
        known = truth != IGNORED
        cells = truth[known].astype(np.int64) * count + predicted[known]
        confusion += np.bincount(cells, minlength=count**2).reshape(count, count)
    right = np.diag(confusion)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - right
    return float((right[union > 0] / union[union > 0]).mean())


def _pixels(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.array(image)


def mean_average_precision(folder: Path, out: Path, results: dict[str, Any]) -> float:
    """Return the mAP of embeddings of images with Market-1501's names."""
    from opabinia.evaluation.retrieval.retrieval import evaluate

    embeddings = [np.load(out / f"{side}.npy") for side in ("query", "gallery")]
    numbers = [_identities(results["embeddings"][side]) for side in ("query", "gallery")]
    ids, cameras = zip(*numbers, strict=True)
    return evaluate(*embeddings, *ids, *cameras, metric="euclidean")["mAP"]


def _identities(names: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return identities and cameras."""
    matches = [re.match(r"(-?\d+)_c(\d+)", name) for name in names]
    numbers = np.array([match.groups() for match in matches if match], np.int64)
    return numbers[:, 0], numbers[:, 1]


# --- datasets ---------------------------------------------------------------------------------------------------------


def fashion(folder: Path) -> Path:
    """Write Fashion-MNIST as a folder for each class, since not every system reads idx files."""
    from opabinia.data.sources.idx import Idx

    for split, name in (("train", "train"), ("test", "val")):
        write_class_folders(Idx(root=SHARED / "fashion_mnist", split=split), folder / name)  # type: ignore[arg-type]
    return folder


@dataclass(frozen=True)
class Compared:
    """A dataset of planning.py: its task, and how predictions are scored."""

    task: str
    score: Callable[[Path, Path, dict[str, Any]], float]


COMPARED = {
    "clothing": Compared("classification", top1),
    "digits": Compared("classification", top1),
    "fashion": Compared("classification", top1),
    "cells": Compared("detection", average_precision),
    "scenes": Compared("detection", average_precision),
    "maps": Compared("segmentation", mean_iou),
    "grocery": Compared("reid", mean_average_precision),
}


def dataset_folder(name: str, temporary: Path) -> Path | None:
    """Return the folder of a dataset, which may be written below the given one; None if its data is not here."""
    shared = DATASETS[name].folder(temporary / name) if name != "fashion" else SHARED / "fashion_mnist"
    if not shared.is_dir():
        return None
    return fashion(temporary / name) if name == "fashion" else shared


def write_weights(folder: Path) -> None:
    """Write the ImageNet weights of the installed package as timm's files, under its names."""
    import timm
    import torch
    from safetensors.torch import save_file

    from opabinia.models.weights.files import read_weights
    from opabinia.models.weights.packages import installed_package
    from opabinia.models.weights.translation import translate_by_order

    package = installed_package(f"{MODEL}.in1k")
    if package is None or package.path is None:
        raise SystemExit("pip install 'opabinia[weights]': the ImageNet weights are not installed")
    package.check()
    model = timm.create_model(MODEL)
    weights = translate_by_order(read_weights(package.path), model.state_dict())
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    # AutoGluon loads it into a model without a classifier.
    features = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("classifier.")}
    torch.save(features, folder / "pytorch_model.bin")
    config = {
        "architecture": MODEL,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "pretrained_cfg": model.pretrained_cfg,
    }
    (folder / "config.json").write_text(json.dumps(config))


# --- runs -------------------------------------------------------------------------------------------------------------


def measured(command: Sequence[str], folder: Path) -> tuple[str, dict[str, Any]]:
    """Run a command without a network.

    Args:
        command: what to run.
        folder: for caches of libraries.

    Returns: its output, and ``wall``, ``cpu`` and ``memory`` of :class:`Result`.

    Raises:
        RuntimeError: it fails; with the end of its output.
    """
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder)}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env={**os.environ, **offline})
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{(output.read() + errors.read())[-3000:]}")
        cost = {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss * 1024}
        return output.read(), cost


@dataclass(frozen=True)
class Trial:
    """What the sides of a comparison have in common.

    Attributes:
        name: of the dataset.
        folder: its data.
        budget: of our run, in seconds.
        seed: of the runs.
    """

    name: str
    folder: Path
    budget: float
    seed: int

    def result(self, side: str, score: float, note: str, cost: dict[str, Any]) -> Result:
        return Result(self.name, self.budget, side, self.seed, score, note=note, **cost)


def run_ours(trial: Trial, out: Path) -> Result:
    dataset = DATASETS[trial.name]
    words = [str(trial.folder), "--budget", f"{trial.budget:.0f}s", *dataset.options]
    printed, cost = measured(train_command(words, trial.seed, out / "run"), out)
    scores = json.loads(printed)["scores"]
    averaged, last = (scores.get(f"{kind}/{dataset.score}") for kind in ("val_ema", "val"))
    return trial.result(OURS, last if averaged is None else averaged, "", cost)


def run_other(trial: Trial, side: str, start: Start, seconds: float, out: Path) -> Result:
    """Run a script.

    Args:
        trial: the comparison.
        side: name of the other system.
        start: how it is started.
        seconds: its wall time.
        out: an empty folder.
    """
    python, weights, *words = start.words
    script = str(SCRIPTS / SIDES[side].script)
    command = [python, script, str(trial.folder), weights, f"{seconds:.1f}", str(trial.seed), str(out), *words]
    _, cost = measured(command, out)
    results = json.loads((out / "results.json").read_text())
    score = COMPARED[trial.name].score(trial.folder, out, results)
    return trial.result(side, score, results["note"], cost)


def versions(python: str, distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of those distributions that an environment has.

    Raises:
        OSError: there is no such Python.
    """
    program = (
        "import json, sys; from importlib.metadata import distributions; "
        "found = {d.name: d.version for d in distributions()}; "
        "print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"
    )
    result = subprocess.run([python, "-c", program, *distributions], check=True, capture_output=True, text=True)
    return json.loads(result.stdout)


@dataclass(frozen=True)
class Start:
    """How a side is started.

    Attributes:
        words: Python, folder of the weights, and further arguments of the script.
        versions: of what it needs.
        reason: why it cannot run; empty if it can.
    """

    words: tuple[str, ...] = ()
    versions: str = ""
    reason: str = ""


def start_of(side: Side, arguments: argparse.Namespace, weights: Path) -> Start:
    for option in filter(None, (side.python, side.checkout)):
        if not getattr(arguments, option):
            return Start(reason=f"no --{option}")
    python = getattr(arguments, side.python)
    found = versions(python, side.needs)
    missing = [name for name in side.needs if name not in found]
    if missing:
        return Start(reason=f"{' and '.join(missing)} not installed")
    checkout = (str(Path(getattr(arguments, side.checkout)).resolve()),) if side.checkout else ()
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    return Start((python, str(weights), *side.words, *checkout), listed)


class Results:
    """Finished runs, kept in a file of one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.results = [Result(**json.loads(line)) for line in lines]

    def add(self, result: Result) -> Result:
        self.results.append(result)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        return result

    def find(self, **values: Any) -> list[Result]:
        return [result for result in self.results if values.items() <= asdict(result).items()]


def row(results: Sequence[Result]) -> str:
    """Return a line of the table."""
    scores = [result.score for result in results]
    deviation = f" ± {stdev(scores):.3f}" if len(scores) > 1 else ""
    wall, cpu = (mean(getattr(result, name) for result in results) for name in ("wall", "cpu"))
    memory = max(result.memory for result in results) / 2**30
    notes = "; ".join(dict.fromkeys(result.note for result in results))
    score = f"{mean(scores):.3f}{deviation}"
    return f"| {score} | {len(scores)} | {wall:.0f} s | {cpu:.0f} s | {memory:.1f} GiB | {notes} |"


def compare(trial: Trial, starts: dict[str, Start], results: Results) -> bool:
    """Run what is not in the results yet; return whether no side has failed."""
    key = {"dataset": trial.name, "budget": trial.budget, "seed": trial.seed}
    known = results.find(side=OURS, **key)
    with tempfile.TemporaryDirectory() as out:
        ours = known[0] if known else results.add(run_ours(trial, Path(out)))
    good = True
    for side, start in starts.items():
        if start.reason or results.find(side=side, **key):
            continue
        with tempfile.TemporaryDirectory() as out:
            try:
                results.add(run_other(trial, side, start, ours.wall, Path(out)))
            except (RuntimeError, ValueError) as error:
                print(f"{side}: {error}", file=sys.stderr)
                good = False
    return good


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(COMPARED))
    parser.add_argument("--python", default=sys.executable, help="Python with the other libraries")
    parser.add_argument("--autogluon", help="Python with autogluon.multimodal")
    parser.add_argument("--timm", help="checkout of timm's repository")
    parser.add_argument("--sides", default=",".join(SIDES), help="only these; ours always runs")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, help="folder for results.jsonl; finished runs in it are not repeated")
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    for given, known in ((arguments.names, COMPARED), (arguments.sides, SIDES)):
        for name in given:
            if name not in known:
                parser.error(f"{name} is none of {', '.join(known)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    budget, good = parse_seconds(arguments.budget), True
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    print("| dataset | side | score | seeds | wall time | CPU time | peak memory | |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        temporary = Path(scratch)
        write_weights(temporary / "weights")
        out = arguments.out or temporary
        out.mkdir(parents=True, exist_ok=True)
        results, used = Results(out / "results.jsonl"), dict[str, str]()
        for name in arguments.names:
            folder = dataset_folder(name, temporary)
            if folder is None:
                print(f"| {name} | no data here | | | | | | |")
                continue
            sides = [side for side in arguments.sides if SIDES[side].task == COMPARED[name].task]
            starts = {side: start_of(SIDES[side], arguments, temporary / "weights") for side in sides}
            used |= {side: start.versions for side, start in starts.items() if start.versions}
            for seed in seeds:
                good &= compare(Trial(name, folder, budget, seed), starts, results)
            for side in (OURS, *sides):
                found = [result for result in results.find(dataset=name, budget=budget, side=side)
                         if result.seed in seeds]  # fmt: skip
                cells = row(found) if found else f"| {starts[side].reason or 'failed'} | | | | | |"
                print(f"| {name}: {DATASETS[name].score} | {side}", cells, flush=True)
    print("\n" + "\n".join(f"- {side}: {listed}" for side, listed in used.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
