"""Results of a finished command: JSON, the best checkpoint, and the next commands."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from opabinia.runtime.json_files import InvalidFile, MetricsLine, read_json_lines
from opabinia.runtime.slurm import launched_rank
from opabinia.runtime.weighted_scores import weighted_score


def words_of(quiet: bool, as_json: bool) -> list[str]:
    """Return the same options as words, for the ranks that a command launches."""
    return ["--quiet"] * quiet + ["--json"] * as_json


def print_json(values: Any) -> None:
    """Print plain values to stdout; on rank 0 only."""
    if not launched_rank(os.environ):
        print(json.dumps(values, indent=1))


def in_json(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores as JSON values: infinities and NaN, which JSON does not have, are null."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def outcome(folder: Path, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return what ``train --json`` prints.

    Returns:
        ``run``: the folder; ``scores``: after the last step; ``best``: ``checkpoint``, and ``step``, ``metric`` and
        ``score`` if a score has selected it, or None; ``report``: the HTML file, or None.
    """
    report = folder / "report.html"
    return {
        "run": str(folder),
        "scores": in_json(scores),
        "best": best_of(folder),
        "report": str(report) if report.is_file() else None,
    }


def best_of(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the best checkpoint of a run with the score that selected it; None if there is none.

    The score is ``checkpoint.best``, or the first score of the evaluation.

    Raises:
        ConfigError: the saved config with these overrides is wrong.
    """
    from opabinia.engine.checkpointing.manager import read_pointer, step_of
    from opabinia.training.run_folder import resolve

    checkpoint = read_pointer(folder / "checkpoints", "best")
    if checkpoint is None:
        return None
    step = step_of(checkpoint)
    metric, score = _score_at(folder, step, resolve(folder, overrides).config["checkpoint"]["best"])
    return {"checkpoint": str(checkpoint), "step": step, "metric": metric, "score": score}


def best_text(best: Mapping[str, Any]) -> str:
    """Return a text such as ``best val/top1 0.9967 at step 288``, of :func:`best_of`."""
    score = f"{best['metric']} {best['score']:.4f}" if isinstance(best["score"], float) else "checkpoint"
    return f"best {score} at step {best['step']}"


def _score_at(folder: Path, step: int, metric: str | None) -> tuple[str | None, float | None]:
    """Read the score ``metric`` (None: the first one) of a step from the metrics log."""
    newest = takewhile(lambda line: line["step"] >= step, metrics_lines(folder))
    lines = [line for line in newest if line["step"] == step and "time/step" not in line]
    scores = {name: value for line in lines for name, value in line.items() if isinstance(value, float)}
    metric = metric or next((name for line in reversed(lines) for name in line if "/" in name), None)
    return metric, None if metric is None else weighted_score(metric, scores)


def training_metrics(folder: Path) -> dict[str, float]:
    """Return the last values of the training metrics (``train/loss`` ...) in a run's metrics log."""
    last: Mapping[str, Any] = next((line for line in metrics_lines(folder) if "train/loss" in line), {})
    return {name: value for name, value in last.items() if name.startswith("train/")}


def metrics_lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of the metrics log, newest first; with a warning none from a damaged one on."""
    try:
        yield from read_json_lines(folder / "metrics.jsonl", MetricsLine)
    except InvalidFile as error:
        from opabinia.runtime.log import log

        log.warning("%s", error)


def _has_labels(folder: Path) -> bool:
    """Return whether the training data had classes, as the last checkpoint says."""
    from opabinia.engine.checkpointing.checkpoint import read_state
    from opabinia.engine.checkpointing.manager import read_pointer

    last = read_pointer(folder / "checkpoints", "last")
    if last is None:
        return False
    dataset_info = read_state(last)["facts"]
    return any(info.classes for info in (dataset_info, *dataset_info.streams.values()))


def print_ending(folder: Path, commands: Sequence[NextCommand] | None = None) -> None:
    """Print the best checkpoint of a finished run, and the next commands (None: all of them); on rank 0 only."""
    if launched_rank(os.environ):
        return
    best = best_of(folder)
    if best is not None:
        print(f"{best_text(best)}: {best['checkpoint']}")
    print("next:")
    texts = [(shlex.join(command.words), command.purpose) for command in commands or next_commands(folder)]
    width = max(len(command) for command, _ in texts)
    lines = [f"  {command:<{width}}  # {purpose}" for command, purpose in texts]
    if sys.stdout.isatty() and max(map(len, lines)) > shutil.get_terminal_size().columns:
        lines = [f"  # {purpose}\n  {command}" for command, purpose in texts]
    print("\n".join(lines))


class NextCommand(NamedTuple):
    """A command worth trying with a finished run.

    Attributes:
        words: the command line; ``RUN`` stands for the run folder.
        purpose: what it is for, in a few words.
        needs: the data that the run must have: ``validation`` or ``labels``; empty: none.
    """

    words: Sequence[str]
    purpose: str
    needs: Literal["", "validation", "labels"] = ""


NEXT_COMMANDS = {
    "eval": NextCommand(["eval", "RUN"], "evaluate the best checkpoint", "validation"),
    "linear probe": NextCommand(["eval", "RUN", "--evaluator", "linear_probe"], "train a linear probe", "labels"),
    "predict": NextCommand(["predict", "RUN", "IMAGES/"], "predict images and draw the results"),
    "predict videos": NextCommand(["predict", "RUN", "VIDEOS/"], "predict videos and draw the results"),
    "compare": NextCommand(["predict", "RUN", "--split", "auto"], "draw predictions and ground truth", "validation"),
    "search": NextCommand(
        ["predict", "RUN", "QUERIES/", "--gallery", "GALLERY/"], "find the images of a gallery nearest to each query"
    ),
    "map": NextCommand(["map", "RUN"], "draw the embeddings in two dimensions", "validation"),
    "report": NextCommand(["report", "RUN"], "write a page with curves and images"),
    "export": NextCommand(["export", "RUN"], "write the model as ONNX"),
    "export for timm": NextCommand(["export", "RUN", "--format", "huggingface"], "write the backbone for timm"),
    "extract": NextCommand(["extract", "RUN"], "write embeddings as NumPy files", "validation"),
}
"""Commands by the names in :attr:`opabinia.contracts.Task.next_commands`."""


def next_commands(folder: Path) -> list[NextCommand]:
    """Return the commands worth trying with a finished run: those of its task that its data allows, tensorboard and a
    longer training."""
    from opabinia.config import catalog
    from opabinia.config.datasets import validation_sets
    from opabinia.contracts import Task
    from opabinia.training.run_folder import resolve

    config = resolve(folder).config
    parts = catalog(config.get("plugins") or ())
    entry = parts.find("task", str(config["task"]["name"]))
    part = None if entry is None else parts.load(entry)
    task = part if isinstance(part, type) and issubclass(part, Task) else Task
    validation = validation_sets(config)
    has = {"": True, "validation": bool(validation), "labels": bool(validation) and _has_labels(folder)}
    commands = []
    for name in task.next_commands:
        words, purpose, needs = NEXT_COMMANDS[name]
        if has[needs] and (name != "extract" or task.features is not Task.features):
            if name == "export" and not find_spec("onnx"):
                purpose += " (needs pip install 'opabinia[export]')"
            words = ["opabinia", *(str(folder) if word == "RUN" else word for word in words)]
            commands.append(NextCommand(words, purpose))
    return [
        *commands,
        NextCommand(["tensorboard", "--logdir", str(folder)], "watch the curves"),
        NextCommand(["opabinia", "train", str(folder), "--resume", "train.length=LONGER"], "train longer"),
    ]
