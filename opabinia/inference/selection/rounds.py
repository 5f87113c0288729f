"""The rounds of a selection: a folder of numbered folders, each with the record of what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from opabinia.runtime.files import write_atomic
from opabinia.runtime.json_files import read_json
from opabinia.runtime.text import csv_text

RECORD, ROUNDS = "round.json", "rounds.csv"


class Round(TypedDict):
    """The record of a round.

    Attributes:
        round: its number, from 1.
        run: the run folder.
        checkpoint: name of the checkpoint.
        labeled: number of samples that the run was trained on; None if its data is not here.
        scores: last scores of the run by name.
        strategy, measure, seed: how the images were chosen.
        candidates: number of images to choose from.
        chosen: real paths of the chosen images.
    """

    round: int
    run: str
    checkpoint: str
    labeled: int | None
    scores: dict[str, float]
    strategy: str
    measure: str
    seed: int
    candidates: int
    chosen: list[str]


def read_rounds(out: Path) -> list[Round]:
    """Return the records in a folder of rounds, from the first.

    Raises:
        InvalidFile: a record is damaged.
    """
    numbers = sorted(int(path.parent.name) for path in out.glob(f"*/{RECORD}") if path.parent.name.isdecimal())
    return [read_json(out / str(number) / RECORD, Round) for number in numbers]


def rounds_table(rounds: Sequence[Round], scores: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return a row for each round: the points of learning curves.

    Args:
        rounds: the records.
        scores: names of scores to include.
    """
    return [
        {
            "round": record["round"],
            "run": record["run"],
            "labeled": record["labeled"],
            **{name: record["scores"].get(name) for name in scores},
            "strategy": record["strategy"],
            "measure": record["measure"],
            "seed": record["seed"],
            "chosen": len(record["chosen"]),
        }
        for record in rounds
    ]


def write_table(rounds: Sequence[Round], out: Path) -> None:
    """Write ``rounds.csv`` with all scores of the runs.

    Raises:
        DiskError: it cannot be written.
    """
    names = list(dict.fromkeys(name for record in rounds for name in record["scores"]))
    rows = rounds_table(rounds, names)
    write_atomic(out / ROUNDS, csv_text([rows[0], *(row.values() for row in rows)]))
