"""The logger for the terminal: plain lines; the progress bar is in :mod:`opabinia.engine.hooks.progress`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.runtime.durations import format_seconds
from opabinia.runtime.progress import shows_progress_bars
from opabinia.runtime.quiet import is_quiet

_HIDDEN = ("step", "epoch", "samples", "sample_ids", "lr", "samples_per_s")
"""Values that are not shown among the losses and scores."""
_OF_TASKS = ("loss", "weight")
"""Training values of each task of a multi-task run that are shown, such as ``boxes/loss``."""
_DATA_WAIT_SHARE = 0.1
"""Waiting for data is shown if it takes more than this share of a step."""


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_shown(name: str, line: Mapping[str, Any]) -> bool:
    """Return whether a value is shown among the losses and scores."""
    if name in _HIDDEN or name.startswith(("time/", "memory/")):
        return False
    if name == "train/total_loss" and line[name] == line.get("train/loss"):
        return False
    of_task = name.startswith("train/") and name.count("/") > 1
    return not of_task or name.rpartition("/")[2] in _OF_TASKS


def _scores(line: Mapping[str, Any]) -> dict[str, str]:
    """Return losses and scores by the names that are shown; metrics.jsonl has all."""
    return {name.removeprefix("train/"): _format(value) for name, value in line.items() if _is_shown(name, line)}


def _waiting(line: Mapping[str, Any]) -> str:
    """Return the share of a step that waits for data if it is large, otherwise an empty text."""
    data, step = line["time/data"], line["time/step"]
    return f"waits for data {data / step:.0%}" if data > _DATA_WAIT_SHARE * step else ""


def _memory(line: Mapping[str, Any]) -> str:
    """Return the memory of the GPU or the host; empty if it is unknown."""
    memory = line.get("memory/device_mb", line.get("memory/host_mb"))
    return f"{memory / 1024:.1f} GB" if memory else ""


def bar_metrics(line: Mapping[str, Any]) -> list[str]:
    """Return the texts of a training line that a progress bar shows, the most important first: loss, learning rate,
    epoch, the other values."""
    scores = _scores(line)
    first = {"loss": scores.pop("loss", ""), "lr": _format(line["lr"]), "epoch": f"{line['epoch']:.2f}"}
    texts = [f"{name} {value}" for name, value in {**first, **scores}.items() if value]
    return [*texts, *filter(None, (_waiting(line), _memory(line)))]


@register.logger(name="terminal")
class Terminal:
    """Progress on stderr: a bar on a terminal, plain lines in a pipe or on a dumb terminal; nothing in quiet mode."""

    def __init__(self, folder: Path, clock: Clock, /) -> None:
        self._total, self._first_step, self._started = clock.total_steps, clock.step, time.monotonic()
        self._quiet, self._has_bar = is_quiet(), shows_progress_bars()

    def _training(self, line: Mapping[str, Any]) -> list[str]:
        """Return learning rate, throughput, waiting for data, memory and the time left."""
        step, waiting, left = line["time/step"], _waiting(line), "?"
        if waiting and "time/read" in line:
            rest = step - line["time/data"]
            waiting += f" (reading a batch takes {line['time/read']:.2g} s, training {rest:.2g} s)"
        if (done := line["step"] - self._first_step) > 0:
            left = format_seconds((time.monotonic() - self._started) / done * (self._total - line["step"]))
        speed = f"{line.get('samples_per_s', 0):.0f}/s"
        return [f"lr {_format(line['lr'])}", speed, waiting, _memory(line), f"ETA {left}"]

    def write(self, line: Mapping[str, Any]) -> None:
        """Print a line, unless the bar shows its values."""
        is_training = "time/step" in line
        if self._quiet or (is_training and self._has_bar):
            return
        position = [f"epoch {line['epoch']:.2f}", f"step {line['step']}/{self._total}"]
        scores = [f"{name} {value}" for name, value in _scores(line).items()]
        texts = [*position, *scores, *(self._training(line) if is_training else ())]
        print("  ".join(filter(None, texts)), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is open."""
