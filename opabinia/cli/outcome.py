"""What a command says when it is done: scores as a table or as JSON, and what to do next."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from opabinia.runtime.slurm import told_rank

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Tell warnings, errors and the final scores only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout; all else goes to stderr.")]


def words_of(quiet: bool, as_json: bool) -> list[str]:
    """The same options as words, for the processes that a command starts."""
    return ["--quiet"] * quiet + ["--json"] * as_json


def print_json(values: Any) -> None:
    """Print plain values to stdout; of many processes the first does."""
    if not told_rank(os.environ):
        print(json.dumps(values, indent=1))


def in_json(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Scores by name; JSON knows neither infinities nor NaN, so these are null."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def outcome(folder: Path, scores: Mapping[str, float]) -> dict[str, Any]:
    """What ``train --json`` prints.

    Returns:
        ``run``: the folder; ``scores``: after the last step; ``best``: ``checkpoint``, and ``step``, ``metric`` and
        ``score`` where a score has chosen it, or None; ``report``: the page, or None.
    """
    report = folder / "report.html"
    return {
        "run": str(folder),
        "scores": in_json(scores),
        "best": best_of(folder),
        "report": str(report) if report.is_file() else None,
    }


def best_of(folder: Path) -> dict[str, Any] | None:
    """The best checkpoint of a run, with the score that chooses it (the first one unless ``checkpoint.best`` says
    which) as it was measured then; None where there is none."""
    pointer = folder / "checkpoints" / "best"
    if not pointer.is_file():
        return None
    checkpoint = folder / "checkpoints" / pointer.read_text(encoding="utf-8").strip()
    step = int(checkpoint.name.removeprefix("step-"))
    metric, score = _measured(folder, step, _config_of(folder)["checkpoint"]["best"])
    return {"checkpoint": str(checkpoint), "step": step, "metric": metric, "score": score}


def _measured(folder: Path, step: int, metric: str | None) -> tuple[str | None, float | None]:
    """A score and its value at a step, by the journal; of no name the first one."""
    for text in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["step"] == step and "time/step" not in line:
            for name, value in line.items():
                if name == metric or (metric is None and "/" in name):
                    return name, value
    return metric, None


def _config_of(folder: Path) -> dict[str, Any]:
    from opabinia.config import compose

    found: dict[str, Any] = compose(folder).root.plain()
    return found


def print_ending(folder: Path) -> None:
    """Print the best checkpoint of a run that has ended, and commands that go on with it; the first process does."""
    if told_rank(os.environ):
        return
    best = best_of(folder)
    if best is not None:
        score = f" ({best['metric']} {best['score']:.4f})" if isinstance(best["score"], float) else ""
        print(f"best: step {best['step']}{score}, {best['checkpoint']}")
    print("next:")
    for words in next_commands(folder, str(_config_of(folder)["task"]["name"])):
        print(f"  {shlex.join(words)}")


def next_commands(folder: Path, task: str) -> list[list[str]]:
    """What one may want to do with a run that has ended, as the words of commands."""
    run = str(folder)
    return [
        ["opabinia", "eval", run],
        *(["opabinia", command, run, *words] for command, *words in _LOOKING.get(task, _WITHOUT_LABELS)),
        ["opabinia", "report", run],
        ["tensorboard", "--logdir", run],
        ["opabinia", "train", run, "--resume", "train.length=LONGER"],
    ]


_LOOKING: dict[str, list[list[str]]] = {
    "classification": [["predict", "PICTURES/"]],
    "detection": [["predict", "PICTURES/"], ["predict", "--split", "val"]],
    "mgn": [["predict", "QUERIES/", "--gallery", "GALLERY/"]],
    "reid": [["predict", "QUERIES/", "--gallery", "GALLERY/"]],
    "video": [["predict", "FILMS/"]],
}
"""By task: a command, and what follows the run."""
_WITHOUT_LABELS = [["eval", "--measure", "linear_probe"], ["map"], ["extract"]]
"""Of all other tasks."""
