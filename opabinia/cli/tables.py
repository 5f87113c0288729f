"""Numbers as tables."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from opabinia.runtime.slurm import told_rank

if TYPE_CHECKING:
    from opabinia.contracts import Stage
    from opabinia.training.schedule_preview import Timetable


def print_step(folder: Path) -> None:
    """Print what ``step.json`` in a folder says of one step: losses, and the largest gradients."""
    if told_rank(os.environ):
        return
    said = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    gradients = said.pop("gradients")
    table = Table("step", str(said.pop("step")))
    for name, value in said.items():
        if not name.startswith(("time/", "samples")):
            table.add_row(name, f"{value}")
    for name in sorted(gradients, key=lambda one: -float(gradients[one]))[:5]:
        table.add_row(f"gradient of {name}", f"{float(gradients[name]):.6g}")
    console = Console(highlight=False)
    console.print(table)
    console.print(str(folder), soft_wrap=True)


def print_scores(title: str, scores: Mapping[str, float]) -> None:
    """Print scores to stdout, one a row, and where they come from; of many processes the first does."""
    if told_rank(os.environ):
        return
    table = Table("score", "value")
    for name, value in scores.items():
        table.add_row(name, f"{value:.4f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(title, soft_wrap=True)
    # One line to paste into a sheet, with the columns of the table above.
    console.print(",".join(["csv", *(f"{value:.6g}" for value in scores.values())]), soft_wrap=True)


def print_bench(found: Mapping[str, Any]) -> None:
    """Print what ``bench`` has found, and what to change."""
    step, pace, memory = found["step"], found["samples_per_s"], found["memory"]
    processes = f", {found['processes']} processes" if found["processes"] > 1 else ""
    table = Table(found["recipe"], f"{found['device']}{processes}, {found['precision']}, batch {found['batch_size']}")
    table.add_row("samples/s", f"{pace['median']:.4g} (half of the steps: {pace['low']:.4g} to {pace['high']:.4g})")
    table.add_row("  one batch again and again", f"{found['model_samples_per_s']:.4g}")
    table.add_row("  reading alone", f"{found['loader_samples_per_s']:.4g} (data.workers: {found['workers']})")
    table.add_row("a step", _milliseconds(step["seconds"]))
    for name, part in _OF_A_STEP.items():
        table.add_row(f"  {part}", f"{_milliseconds(step[name])}  {step[name] / step['seconds']:.0%}")
    if memory["device"]:
        table.add_row("  until the host has given it away", _milliseconds(step["host"]))
    table.add_row("reading a batch, in one process", _milliseconds(found["read"]))
    device = f", on the device {memory['device'] / 2**30:.2f} GB" if memory["device"] else ""
    table.add_row("memory", f"{memory['host'] / 2**30:.2f} GB{device}")
    table.add_row("arithmetic of a step", f"{found['flops'] / 1e9:.4g} GFLOP")
    table.add_row("  measured peak of the device", f"{found['peak_flops'] / 1e9:.4g} GFLOP/s")
    table.add_row("  a step at that peak", f"{_milliseconds(found['floor'])}; reached: {found['share_of_peak']:.1%}")
    console = Console(highlight=False)
    console.width = max(console.width, Console(width=10_000).measure(table).maximum)
    console.print(table)
    console.print(found["advice"], soft_wrap=True)


_OF_A_STEP = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "other": "hooks and all else",
}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.4g} ms"


def print_timetable(table: Timetable, *, norms: bool) -> None:
    """Print the batches of a run over time, and what is saved by them; ``norms``: whether batch norms follow them."""
    shown = Table("epochs", "steps", "batches", "learning rate", "norms", "cost of a step", "of all")
    for line in table.lines:
        shown.add_row(
            f"{line.begin} to {line.end:g}",
            f"{line.steps}",
            "\n".join(f"{text} ({n} times)" if n > 1 else text for text, n in Counter(_cycle(line.stage)).items()),
            f"x {line.stage.lr_factor:g}",
            _norms(line.stage) if norms else "",
            f"{line.a_step:.2f}",
            f"{line.in_all:.1%}",
        )
    console = Console(highlight=False)
    console.width = max(console.width, Console(width=10_000).measure(shown).maximum)
    console.print(shown)
    if table.plan == table.baseline:
        return
    ours, theirs = (
        f"{one.total_steps} steps, {one.samples_before(one.total_steps)} samples"
        for one in (table.plan, table.baseline)
    )
    saved = f"{table.fewer_steps:.2f} times fewer steps, {table.cheaper:.2f} times fewer pixels"
    console.print(f"{ours}; the baseline of {table.baseline.length}: {theirs}; {saved}", soft_wrap=True)


def _cycle(stage: Stage) -> list[str]:
    """The batches of a stage in turn, such as ``64 x 8 x 23 x 23``."""
    return [" x ".join(map(str, (one.samples, *(one.shape or ())))) for one in stage.cycle]


def _norms(stage: Stage) -> str:
    """Over what batch norms take their statistics, where that is not a process's share of the batch."""
    if stage.processes > 1:
        return f"over {stage.processes} processes"
    return f"in {stage.splits} parts" if stage.splits > 1 else ""
