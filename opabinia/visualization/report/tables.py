"""Tables of an evaluation (``eval/<set>/details.json``) as blocks of a page. A table that is not understood is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opabinia.visualization.report.blocks import Block, Chart, Line, Matrix, Table
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, number_of

MOST_CLASSES = 30
"""A confusion matrix of more would be too fine to read; the most frequent mistakes are then a table alone."""

MOST_PAIRS, MOST_ROWS = 50, 2000
BACKGROUND = "(background)"

Details = Mapping[str, Any]
Classes = Sequence[str]


def blocks_of(details: Details, classes: Classes, notes: list[str], of: str) -> list[Block]:
    """The blocks of one data set.

    Args:
        details: what stands in the file.
        classes: names of classes by number.
        notes: gets what is not understood.
        of: the name of the set, for notes.
    """
    names = [str(row["class"]) for row in dicts_of(details.get("per_class")) if "class" in row] or list(classes)
    blocks: list[Block] = []
    for key, make in MAKERS.items():
        if not details.get(key):
            continue
        try:
            blocks += make(details[key], names)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            notes.append(f"eval/{of}/details.json: {key} is not understood ({type(error).__name__}) and left out")
    return blocks


def _confusion(cells: Any, classes: Classes) -> list[Block]:
    counts = {(int(row), int(column)): int(count) for row, column, count in cells}
    size = max([len(classes), *(max(cell) + 1 for cell in counts)])
    mistakes = sorted(
        ((n, cell) for cell, n in counts.items() if cell[0] != cell[1]), key=lambda one: (-one[0], one[1])
    )
    of_row: dict[int, int] = {}
    for (row, _), count in counts.items():
        of_row[row] = of_row.get(row, 0) + count
    pairs = [
        (_name(row, classes), _name(column, classes), n, n / max(1, of_row[row]))
        for n, (row, column) in mistakes[:MOST_PAIRS]
    ]
    blocks: list[Block] = []
    if size <= MOST_CLASSES + 1:
        rows = range(size)
        shown = [_name(number, classes) for number in rows]
        blocks.append(Matrix("Confusion", shown, shown, [[counts.get((row, c), 0) for c in rows] for row in rows]))
    if pairs:
        columns = ("is", "taken for", "times", "share of the class")
        blocks.append(Table("Most confused", columns, pairs, frozenset({3})))
    return blocks


def _name(number: int, classes: Classes) -> str:
    """Of a class; the number behind the last one stands for the background."""
    return classes[number] if 0 <= number < len(classes) else BACKGROUND if number == len(classes) else str(number)


def _per_class(rows: Any, classes: Classes) -> list[Block]:
    found = list(dicts_of(rows))[:MOST_ROWS]
    columns = list(dict.fromkeys(name for row in found for name in row))
    values = [[_plain(row.get(name)) for name in columns] for row in found]
    shares = {place for place, name in enumerate(columns) if _are_shares([row[place] for row in values])}
    shares -= {place for place, name in enumerate(columns) if name in ("samples", "things")}
    return [Table("By class", columns, values, frozenset(shares))] if found else []


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else number_of(value)


def _are_shares(values: Sequence[Any]) -> bool:
    numbers = [one for one in values if one is not None]
    return bool(numbers) and all(isinstance(one, int | float) and 0 <= one <= 1 for one in numbers)


def _calibration(rows: Any, classes: Classes) -> list[Block]:
    bins = sorted((float(one["confidence"]), float(one["accuracy"])) for one in dicts_of(rows))
    lines = [
        Line("as found", [y for _, y in bins], [x for x, _ in bins]),
        Line("perfect", [0.0, 1.0], [0.0, 1.0], style=1),
    ]
    return [Chart("Calibration: accuracy", lines, "confidence", (0.0, 1.0))]


def _precision_recall(value: Any, classes: Classes) -> list[Block]:
    table = dict_of(value)
    x = [float(one) for one in table["recall"]]
    lines = [
        Line(f"overlap {name}", [number_of(one) for one in table[name]], x, style=number)
        for number, name in enumerate(name for name in table if name != "recall")
    ]
    return [Chart("Precision over recall, mean over classes", lines, "recall", (0.0, 1.0))]


def _retrieval(value: Any, classes: Classes) -> list[Block]:
    table = dict_of(value)
    shares = [number_of(one) for one in table.get("cmc") or []]
    blocks: list[Block] = []
    if shares:
        x = [float(k) for k in range(1, len(shares) + 1)]
        line = Line("queries with a match", shares, x)
        blocks.append(Chart("CMC: share of queries with a match among the first k", [line], "k", (0.0, 1.0)))
    counts = [(name.replace("_", " "), table[name]) for name in ("queries", "queries_without_match", "gallery")]
    blocks.append(Table("Searched", ("what", "how many"), counts))
    worst = [
        (str(one["query"]), number_of(one["AP"]), number_of(one["first_match"])) for one in dicts_of(table.get("worst"))
    ]
    if worst:
        columns = ("query", "average precision", "first match at")
        blocks.append(Table("Worst queries", columns, worst, frozenset({1})))
    return blocks


def _worst(rows: Any, classes: Classes) -> list[Block]:
    found = list(dicts_of(rows))[:MOST_ROWS]
    columns = [name for name in dict.fromkeys(name for row in found for name in row) if name != "image_id"]
    shares = frozenset(place for place, name in enumerate(columns) if name.startswith("of_"))
    titles = [name.replace("_", " ") for name in columns]
    return [Table("Worst", titles, [[_plain(row.get(name)) for name in columns] for row in found], shares)]


def _low_shot(rows: Any, classes: Classes) -> list[Block]:
    found = [(row["shots"], number_of(row["mean"]), number_of(row["deviation"])) for row in dicts_of(rows)]
    return [Table("Few shots", ("images of a class", "mean", "deviation"), found, frozenset({1}))]


def _linear_probe(value: Any, classes: Classes) -> list[Block]:
    return _rows_as_they_are("Linear probes", dict_of(value)["layers"])


def _linear_svm(rows: Any, classes: Classes) -> list[Block]:
    return _rows_as_they_are("Linear SVM", rows)


def _clusters(rows: Any, classes: Classes) -> list[Block]:
    found = []
    for number, row in enumerate(dicts_of(rows), 1):
        counts = sorted(dict_of(row["classes"]).items(), key=lambda one: -one[1])
        samples = sum(count for _, count in counts)
        if counts:
            words = ", ".join(f"{name} {count}" for name, count in counts[:5])
            found.append((number, samples, counts[0][1] / samples, words))
    return [Table("Clusters", ("cluster", "samples", "share of its first class", "classes"), found, frozenset({2}))]


def _rows_as_they_are(title: str, rows: Any) -> list[Block]:
    found = list(dicts_of(rows))[:MOST_ROWS]
    columns = list(dict.fromkeys(name for row in found for name in row))
    return [Table(title, columns, [[_plain(row.get(name)) for name in columns] for row in found])] if found else []


MAKERS: dict[str, Callable[[Any, Classes], list[Block]]] = {
    "confusion": _confusion,
    "precision_recall": _precision_recall,
    "retrieval": _retrieval,
    "per_class": _per_class,
    "worst": _worst,
    "calibration": _calibration,
    "linear_probe": _linear_probe,
    "low_shot": _low_shot,
    "linear_svm": _linear_svm,
    "clusters": _clusters,
}
"""What is made of the tables of these names, in the order of the page."""
