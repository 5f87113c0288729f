"""Claim: where 5 % of the labels are flipped, at least 85 % of the first 5 % of `opabinia data labels` are such labels,
not fewer than cleanlab's on the same predictions; damaged boxes are ranked beside cleanlab's ObjectLab.

Labels of digits are flipped, three folds are trained on them, and each sample is scored by the model that was not
trained on it. Boxes of digit scenes are damaged in five ways, two folds are trained. cleanlab (AGPL) needs an
environment of its own, whose Python CLEANLAB_PYTHON names; without it only our side is printed. Run:
``CLEANLAB_PYTHON=cleanlab/bin/python python benchmarks/label_errors.py [--runs FOLDER] [digits] [boxes]``.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import opabinia
from opabinia.config.paths import holds_run
from opabinia.data.sources import Digits
from opabinia.data.sources.subset import write_split
from opabinia.evaluation.label_errors.classification import (
    ClassificationCheck,
    neighbor_votes,
    normalized_margin,
    self_confidence,
    suspicion,
)
from opabinia.inference.label_errors.collect import collect
from opabinia.inference.load import RunModel

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


# --- flipped labels of digits -----------------------------------------------------------------------------------------

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


def flipped_digits(folder: Path, seed: int, folds: int = 3) -> tuple[list[Path], set[str]]:
    """Train folds of the digits with flipped labels, and return the runs and the ids of the flipped samples."""
    source, rng = Digits(split="train"), np.random.default_rng(seed)
    labels = source.info.single_labels
    assert labels is not None
    flipped = rng.choice(len(source), round(SHARE * len(source)), replace=False)
    wrong = (labels[flipped] + rng.integers(1, 10, len(flipped))) % 10
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
        given = f"{{name: corrected, source: digits, file: {folder / 'flipped.csv'}}}"
        parts = (f"{{name: subset, source: {given}, file: {split}, split: {part}}}" for part in ("train", "val"))
        words = [f"data.{part}.source={source}" for part, source in zip(("train", "val"), parts, strict=True)]
        runs.append(train("classification/digits", folder, f"fold{number}", ["train.length=6ep", *words]))
    return runs, {source.id(index) for index in flipped}


def digits(folder: Path, python: str | None) -> None:
    """Print the share of flipped labels among the first 5 % of each ranking."""
    precision: dict[str, list[float]] = {}
    for seed in SEEDS:
        runs, flipped = flipped_digits(folder / f"digits{seed}", seed)
        checks = [collect(RunModel(run), None).check for run in runs]
        samples = [check.samples() for check in checks if isinstance(check, ClassificationCheck)]
        ids = [name for part in samples for name in part.ids]
        labels, probabilities = (np.concatenate([part[field] for part in samples]) for field in (1, 2))
        votes = np.concatenate([neighbor_votes(part.labels, part.embeddings, 10) for part in samples])
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
        found = ClassificationCheck.find(checks, [str(label) for label in range(10)]).suspects
        share = np.mean([suspect.id in flipped for suspect in found])
        print(f"  seed {seed}: opabinia lists {len(found)}, {share:.3f} of them flipped; {first} labels are flipped")
        for name, values in scores.items():
            precision.setdefault(name, []).append(is_flipped[np.argsort(values, kind="stable")[:first]].mean())
    print(f"share of flipped labels among the first 5 % of 1,437, seeds {', '.join(map(str, SEEDS))}, and the mean")
    for name, shares in precision.items():
        print(f"  {name:<44}{'  '.join(f'{share:.3f}' for share in shares)}   {np.mean(shares):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["digits"])
    parser.add_argument("--runs", type=Path, help="Keep the runs in this folder, and use those that are there.")
    args = parser.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        for part in args.parts:
            {"digits": digits}[part](args.runs or Path(temporary), os.environ.get("CLEANLAB_PYTHON"))
    print(f"CPU time {time.process_time() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
