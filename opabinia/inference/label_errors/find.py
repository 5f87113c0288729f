"""Suspicious labels of one or several runs, and the files that list them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing
from opabinia.contracts import DataMismatch
from opabinia.data.sources.list_files import read_rows
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.inference.label_errors.collect import CollectedRun, collect
from opabinia.inference.label_errors.page import Located, render_page
from opabinia.inference.load import RunModel
from opabinia.runtime.files import write_atomic
from opabinia.runtime.log import logging_to
from opabinia.runtime.text import csv_text, plural

FOLDER, LIST, PAGE = "labels", "labels.csv", "labels.html"

LEARNED = (
    "the model was trained on these labels and tends to agree with them: fewer of the wrong ones are found than with "
    "held-out data or folds"
)


class FoundLabels(NamedTuple):
    """The suspicious labels of runs.

    Attributes:
        suspects: from the most suspicious to the least, each with its run.
        summary: facts by name.
        warnings: for the user.
    """

    suspects: list[Located]
    summary: Mapping[str, str]
    warnings: list[str]


def find_label_errors(models: Sequence[RunModel], split: str | None = None) -> FoundLabels:
    """Predict a dataset of each run and compare its labels with the predictions.

    Args:
        models: models of runs with the same classes, whose datasets have no sample in common.
        split: name of the dataset; None: the first validation set of each run.

    Raises:
        ConfigError: a run cannot be used, or the runs do not fit together.
        DataError: a sample cannot be read.
        DataMismatch: a prediction is not finite.
    """
    with logging_to(None):
        runs = [collect(model, split) for model in models]
    check_same_kind(runs)
    run_of = _run_of_samples(runs)
    classes = runs[0].source.classes
    try:
        found = type(runs[0].check).find([run.check for run in runs], classes)
    except DataMismatch as error:
        raise DataMismatch(f"{', '.join(dict.fromkeys(run.split for run in runs))}: {error}") from error
    summary = {
        "runs": ", ".join(str(run.run) for run in runs),
        "data": ", ".join(dict.fromkeys(run.split for run in runs)),
        "samples": f"{len(run_of):,}",
        **found.facts,
        "suspicious labels in the list": f"{len(found.suspects):,}",
    }
    warnings = [LEARNED] if any(run.trained_on for run in runs) else []
    if skipped := sum(run.skipped for run in runs):
        warnings.append(f"{plural(skipped, 'sample')} could not be read: skipped")
    return FoundLabels([(suspect, run_of[suspect.id]) for suspect in found.suspects], summary, warnings)


def default_folder(runs: Sequence[Path]) -> Path:
    """Return ``labels`` in the single run folder, or in the common folder of several; relative if they are."""
    if len(runs) == 1:
        return runs[0] / FOLDER
    common = os.path.commonpath([run.resolve().parent for run in runs])
    return Path(common if any(run.is_absolute() for run in runs) else os.path.relpath(common)) / FOLDER


def write_files(found: FoundLabels, out: Path) -> None:
    """Write the list and the page into a folder.

    Raises:
        ConfigError: the list there has corrections, which would be lost.
        DiskError: a file cannot be written.
    """
    check_no_corrections(out)
    runs = list(dict.fromkeys(run.run.name for _, run in found.suspects))
    title = f"Labels of {listing(runs, 3)}" if runs else "Labels"
    page = render_page(found.suspects, found.summary, found.warnings, title)
    write_atomic(out / LIST, list_text([suspect for suspect, _ in found.suspects]))
    write_atomic(out / PAGE, page)


def check_no_corrections(out: Path) -> None:
    """Check that the list in a folder, if there is one, has no corrections.

    Raises:
        ConfigError: it has some, or is no such list.
    """
    path = out / LIST
    if not path.is_file():
        return
    try:  # as the source reads it: a spreadsheet may have written semicolons
        count = sum(bool(str(row["corrected"] or "").strip()) for _, row in read_rows(path, ("id", "corrected")))
    except ValueError:
        count = 1
    if count:
        message = f"{path} has corrections, or is another file, which would be lost: move it, or choose another folder"
        raise ConfigError(Problem("command line", "--out", message))


def list_text(suspects: Sequence[Suspect]) -> str:
    """Return the list as CSV: one suspect a line, with an empty column ``corrected``; places only if there are some."""
    places = any(suspect.place for suspect in suspects)
    columns = ["id", "issue", "label", "predicted", "score", *(("left", "top", "right", "bottom") if places else ())]
    rows: list[list[str]] = [[*columns, "reason", "corrected"]]
    for suspect in suspects:
        place = [f"{value:.1f}" for value in suspect.place] if suspect.place else [""] * 4
        values = [suspect.id, suspect.issue, suspect.label, suspect.predicted, f"{suspect.score:.4f}"]
        rows.append([*values, *(place if places else ()), suspect.reason, ""])
    return csv_text(rows)


def check_same_kind(runs: Sequence[CollectedRun]) -> None:
    """Raise ConfigError unless all runs have the same classes and kind of labels."""
    first = runs[0]
    for run in runs[1:]:
        if run.source.classes != first.source.classes:
            message = f"{run.run} has other classes than {first.run}, or another order"
            found, allowed = listing(run.source.classes, 5), f"classes: {listing(first.source.classes, 5)}"
            raise ConfigError(Problem("command line", "RUN", message, found, allowed=allowed))
        if type(run.check) is not type(first.check):
            message = f"{run.run} has another kind of labels than {first.run}"
            raise ConfigError(Problem("command line", "RUN", message))


def _run_of_samples(runs: Sequence[CollectedRun]) -> dict[str, CollectedRun]:
    """Return the run of each sample.

    Raises:
        ConfigError: two runs have a sample in common.
    """
    run_of: dict[str, CollectedRun] = {}
    for run in runs:
        for name in run.check.ids:
            if (other := run_of.setdefault(name, run)) is not run:
                message = f"{run.run} and {other.run} both have {name}: their samples must differ"
                raise ConfigError(Problem("command line", "RUN", message, allowed="the folds of one dataset"))
    return run_of
