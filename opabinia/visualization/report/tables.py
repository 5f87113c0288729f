"""Tables of an evaluation (``eval/<set>/details.json``) as blocks of a page; unknown formats become notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from opabinia.visualization.report.blocks import Block, Chart, Line, Matrix, Table
from opabinia.visualization.report.tracking import tracking_blocks
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, finite, number_of

MAX_CLASSES = 30
"""A confusion matrix of more classes is too fine to read; the most frequent errors are then a table only."""

MAX_PAIRS, MAX_ROWS = 50, 2000
BACKGROUND = "(background)"

Classes = Sequence[str]


def blocks_of(details: Mapping[str, Any], classes: Classes, notes: list[str], dataset: str) -> list[Block]:
    """Return the blocks of one dataset.

    Args:
        details: content of the file.
        classes: class names by number.
        notes: receives a note for each table in an unknown format.
        dataset: its name, for notes.
    """
    names = [str(row["class"]) for row in dicts_of(details.get("per_class")) if "class" in row] or list(classes)
    blocks: list[Block] = []
    counted = _counted_detections(details.get("counted"))
    for key, make in MAKERS.items():
        if not details.get(key):
            continue
        try:
            made = make(details[key], names)
            blocks += [_with_note(block, counted) for block in made] if key in ("confusion", "worst") else made
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            message = f"eval/{dataset}/details.json: the format of {key} is unknown ({type(error).__name__}); omitted"
            notes.append(message)
    return blocks


def _counted_detections(value: Any) -> str:
    """Return which detections the tables of errors count; empty for classifiers and older runs."""
    counted = dict_of(value)
    min_score, min_iou, f1 = (number_of(counted.get(name)) for name in ("min_score", "min_iou", "F1"))
    if min_score is None or min_iou is None or f1 is None:
        return ""
    reason = " (the highest on this data)" if counted.get("selected_by") == "highest F1" else ""
    least = f"a score of at least {min_score:.3g} and an IoU of at least {min_iou:g}"
    return f"Counts detections with {least}: F1 {f1:.3f}{reason}."


def _with_note(block: Block, note: str) -> Block:
    return replace(block, note=note) if isinstance(block, Table | Matrix) else block


def _confusion(cells: Any, classes: Classes) -> list[Block]:
    counts = {(int(row), int(column)): int(count) for row, column, count in cells}
    size = max([len(classes), *(max(cell) + 1 for cell in counts)])
    totals: Counter[int] = Counter()
    for (row, _), count in counts.items():
        totals[row] += count

    def name(label: int) -> str:
        """Return the name of a class; the number behind the last one is the background."""
        return classes[label] if 0 <= label < len(classes) else BACKGROUND if label == len(classes) else str(label)

    errors = sorted(((-count, row, column) for (row, column), count in counts.items() if row != column))
    pairs = [
        (name(row), name(column), -count, -count / max(1, totals[row])) for count, row, column in errors[:MAX_PAIRS]
    ]
    blocks: list[Block] = []
    if size <= MAX_CLASSES + 1:
        labels = range(size)
        names = [name(label) for label in labels]
        blocks.append(Matrix("Confusion", names, names, [[counts.get((row, c), 0) for c in labels] for row in labels]))
    if pairs:
        columns = ("true class", "predicted class", "times", "share of the class")
        blocks.append(Table("Most confused", columns, pairs, frozenset({3})))
    return blocks


def _rows(
    rows: Any, classes: Classes, title: str, is_share: Callable[[str, Sequence[Any]], bool] = lambda name, values: False
) -> list[Block]:
    """Return a table of rows as they are; ``is_share`` selects the columns with bars by name and values."""
    shown = list(dicts_of(rows))[:MAX_ROWS]
    columns = [name for name in dict.fromkeys(name for row in shown for name in row) if name != "image_id"]
    values = [
        [row.get(name) if isinstance(row.get(name), str) else number_of(row.get(name)) for name in columns]
        for row in shown
    ]
    shares = {index for index, name in enumerate(columns) if is_share(name, [row[index] for row in values])}
    return [Table(title, [name.replace("_", " ") for name in columns], values, frozenset(shares))] if shown else []


def _is_class_share(name: str, values: Sequence[Any]) -> bool:
    numbers = [value for value in values if value is not None]
    counts = name in ("samples", "objects")
    return bool(numbers) and not counts and all(isinstance(n, int | float) and 0 <= n <= 1 for n in numbers)


def _calibration(rows: Any, classes: Classes) -> list[Block]:
    bins = sorted((finite(row["confidence"]), finite(row["accuracy"])) for row in dicts_of(rows))
    lines = [
        Line("measured", [y for _, y in bins], [x for x, _ in bins]),
        Line("perfect", [0.0, 1.0], [0.0, 1.0], style=1),
    ]
    return [Chart("Calibration: accuracy", lines, "confidence", (0.0, 1.0))]


def _precision_recall(value: Any, classes: Classes) -> list[Block]:
    table = dict_of(value)
    x = [finite(recall) for recall in table["recall"]]
    lines = [
        Line(f"IoU {name}", [number_of(precision) for precision in table[name]], x, style=style)
        for style, name in enumerate(name for name in table if name != "recall")
    ]
    return [Chart("Precision over recall, mean over classes", lines, "recall", (0.0, 1.0))]


def _retrieval(value: Any, classes: Classes) -> list[Block]:
    table = dict_of(value)
    shares = [number_of(share) for share in table.get("cmc") or []]
    blocks: list[Block] = []
    if shares:
        line = Line("queries with a match", shares, [float(k) for k in range(1, len(shares) + 1)])
        blocks.append(Chart("CMC: share of queries with a match among the first k", [line], "k", (0.0, 1.0)))
    counts = [(name.replace("_", " "), table[name]) for name in ("queries", "queries_without_match", "gallery")]
    blocks.append(Table("Images", ("images", "number"), counts))
    worst = [
        (str(row["query"]), number_of(row["AP"]), number_of(row["first_match"])) for row in dicts_of(table.get("worst"))
    ]
    if worst:
        columns = ("query", "average precision", "first match at")
        blocks.append(Table("Worst queries", columns, worst, frozenset({1})))
    return blocks


def _low_shot(rows: Any, classes: Classes) -> list[Block]:
    values = [(row["shots"], number_of(row["mean"]), number_of(row["deviation"])) for row in dicts_of(rows)]
    return [Table("Few shots", ("images per class", "mean", "deviation"), values, frozenset({1}))]


def _clusters(rows: Any, classes: Classes) -> list[Block]:
    values = []
    for number, row in enumerate(dicts_of(rows), 1):
        counts = Counter(dict_of(row["classes"])).most_common()
        samples = sum(count for _, count in counts)
        if counts:
            text = ", ".join(f"{name} {count}" for name, count in counts[:5])
            values.append((number, samples, counts[0][1] / samples, text))
    return [Table("Clusters", ("cluster", "samples", "share of its first class", "classes"), values, frozenset({2}))]


MAKERS: dict[str, Callable[[Any, Classes], list[Block]]] = {
    "tracking": tracking_blocks,
    "confusion": _confusion,
    "precision_recall": _precision_recall,
    "retrieval": _retrieval,
    "per_class": partial(_rows, title="By class", is_share=_is_class_share),
    "worst": partial(_rows, title="Worst", is_share=lambda name, values: name.startswith("of_")),
    "calibration": _calibration,
    "class_thresholds": partial(_rows, title="Best thresholds of scores"),
    "linear_probe": lambda value, classes: _rows(dict_of(value)["layers"], classes, "Linear probes"),
    "low_shot": _low_shot,
    "linear_svm": partial(_rows, title="Linear SVM"),
    "clusters": _clusters,
}
"""Functions for the tables by name, in the order of the page."""
