"""Results as tables on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opabinia.runtime.slurm import launched_rank
from opabinia.runtime.text import plural

if TYPE_CHECKING:
    from opabinia.training.schedule_preview import SchedulePreview


def print_table(table: Table | Columns, *lines: str, cut: bool = False) -> None:
    """Print a table to stdout and lines below it; unless it may be ``cut``, a table is wider than the terminal if
    necessary."""
    console = Console(highlight=False)
    if not cut:
        console.width = max(console.width, Console(width=10_000).measure(table).maximum)
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)


def print_cells(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of plain texts."""
    table = Table(*head)
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)


def print_step(folder: Path) -> None:
    """Print the losses and the largest gradient norms of one step, from ``step.json`` in a folder."""
    if launched_rank(os.environ):
        return
    values = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    gradients = values.pop("gradients")
    table = Table("step", str(values.pop("step")))
    for name, value in values.items():
        if not name.startswith(("time/", "samples")):
            table.add_row(name, f"{value}")
    for name in sorted(gradients, key=lambda param: -float(gradients[param]))[:5]:
        table.add_row(f"gradient of {name}", f"{float(gradients[name]):.6g}")
    print_table(table, str(folder), cut=True)


def print_scores(title: str, scores: Mapping[str, float]) -> None:
    """Print scores, and where they come from; on rank 0 only.

    Metrics are rows. Scores of several datasets, or of raw and EMA weights, are columns: ``val``, ``val_ema``. Each
    task of a multi-task run (``boxes/val/AP``) has a table of its own, beside each other as far as there is room.
    Outside a terminal, a line of CSV has all values in their order, for ``grep ^csv log.txt`` and a spreadsheet.
    """
    if launched_rank(os.environ):
        return
    by_task: dict[str, dict[str, float]] = {}
    for name, value in scores.items():
        task = name.split("/")[0] if name.count("/") > 1 else ""
        by_task.setdefault(task, {})[name.removeprefix(f"{task}/")] = value
    csv = [",".join(["csv", *(f"{value:.6g}" for value in scores.values())])]
    tables = [_score_table(task, values) for task, values in by_task.items()]
    shown = tables[0] if len(tables) == 1 else Columns(tables)
    print_table(shown, title, *([] if sys.stdout.isatty() else csv), cut=True)


def _score_table(title: str, scores: Mapping[str, float]) -> Table:
    columns = list(dict.fromkeys(name.rpartition("/")[0] for name in scores))
    texts = {name: score_text(name, scores) for name in scores if not name.endswith(BOUNDS)}
    if len(columns) > 1:
        table = Table("metric", *columns, title=title or None)
        for metric in dict.fromkeys(name.rpartition("/")[2] for name in texts):
            table.add_row(metric, *(texts.get(f"{column}/{metric}", "") for column in columns))
    else:
        table = Table("metric", "value", title=title or None)
        for name, text in texts.items():
            table.add_row(name, text)
    return table


BOUNDS = ("_ci_low", "_ci_high")
"""Ends of the names of the bounds of a score's confidence interval."""


def score_text(name: str, scores: Mapping[str, float]) -> str:
    """Return a score with its confidence interval if that is among the scores: ``0.8123 (95 %: 0.7810 to 0.8420)``."""
    bounds = [scores.get(f"{name}{end}") for end in BOUNDS]
    interval = "" if None in bounds else f" (95 %: {bounds[0]:.4f} to {bounds[1]:.4f})"
    return f"{scores[name]:.4f}{interval}"


def print_benchmark(result: Mapping[str, Any]) -> None:
    """Print the result of ``opabinia benchmark``, and which settings may help."""
    step, throughput, memory = result["step"], result["samples_per_s"], result["memory"]
    processes = f", {result['processes']} processes" if result["processes"] > 1 else ""
    settings = f"{result['device']}{processes}, {result['precision']}, batch {result['batch_size']}"
    table = Table(result["recipe"], settings)
    quartiles = f"{throughput['low']:.4g} to {throughput['high']:.4g}"
    table.add_row("samples/s", f"{throughput['median']:.4g} (half of the steps: {quartiles})")
    table.add_row("  model alone (one repeated batch)", f"{result['model_samples_per_s']:.4g}")
    table.add_row("  loader alone", f"{result['loader_samples_per_s']:.4g} (data.num_workers: {result['workers']})")
    table.add_row("step", _milliseconds(step["seconds"]))
    for name, part in _STEP_PARTS.items():
        table.add_row(f"  {part}", f"{_milliseconds(step[name])}  {step[name] / step['seconds']:.0%}")
    if memory["device"]:
        table.add_row("  until the host has launched it", _milliseconds(step["host"]))
    table.add_row("reading a batch in one process", _milliseconds(result["read"]))
    for name, stream in result["streams"].items():
        reading = f"reading {_milliseconds(stream['read'])}, backbone {_milliseconds(stream['backbone'])}"
        table.add_row(f"stream {name} ({plural(stream['samples'], 'sample')} of a batch)", reading)
        for task, seconds in stream["tasks"].items():
            table.add_row(f"  task {task}", f"{_milliseconds(seconds)} (forward and backward)")
    device = f", on the device {memory['device'] / 2**30:.2f} GB" if memory["device"] else ""
    table.add_row("memory", f"{memory['host'] / 2**30:.2f} GB{device}")
    table.add_row("FLOPs of a step", f"{result['flops'] / 1e9:.4g} GFLOP")
    table.add_row("  measured peak of the device", f"{result['peak_flops'] / 1e9:.4g} GFLOP/s")
    floor = _milliseconds(result["floor"])
    table.add_row("  step time at that peak", f"{floor}; reached: {result['share_of_peak']:.1%}")
    print_table(table, result["advice"])


_STEP_PARTS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "other": "hooks and others",
}


def print_export_benchmark(result: Mapping[str, Any]) -> None:
    """Print the result of ``opabinia benchmark`` for an exported model."""
    table = Table(result["file"], f"{result['runtime']}, {plural(result['threads'], 'thread')}")
    table.add_row("input of a sample", result["input"])
    table.add_row("latency of one sample, median", _milliseconds(result["p50"]))
    table.add_row("  95th percentile", _milliseconds(result["p95"]))
    for size, throughput in result["samples_per_s"].items():
        table.add_row(f"samples/s in batches of {size}", f"{throughput:.4g}")
    total = sum(result["stages"].values())
    for name, seconds in result["stages"].items():
        table.add_row(f"  {_EXPORT_STAGES[name]}", f"{_milliseconds(seconds)}  {seconds / total:.0%}")
    table.add_row("file", f"{result['bytes'] / 1e6:.2f} MB")
    table.add_row("peak memory of the process", f"{result['memory'] / 2**20:.0f} MB")
    print_table(table)


_EXPORT_STAGES = {
    "reading": "transforms of an image",
    "graph": "the graph",
    "predictions": "predictions of its outputs",
}


def print_memory(result: Mapping[str, Any]) -> None:
    """Print the result of ``opabinia benchmark --memory``."""
    micro = f" in micro-batches of {result['micro_batch_size']}" if result["micro_batch_size"] else ""
    table = Table(result["recipe"], f"{result['precision']}, batch {result['batch_size']}{micro} of {result['input']}")
    for name, size in result["peak"].items():
        table.add_row(_CATEGORIES.get(name, name), _gib(size), end_section=name == "margin")
    print_table(table)
    if result["largest_batch"]:
        fits = Table("memory of the GPU", "largest batch", "with train.activation_checkpointing")
        for row in result["largest_batch"]:
            recomputing = row["activation_checkpointing"]
            fits.add_row(_gib(row["device_memory"]), _samples(row["plain"]), _samples(recomputing))
        print_table(fits)
    bounds = Table("GPU", f"a step of {result['bounded_batch']} takes at least", "limited by memory bandwidth")
    for bound in result["time_bounds"]:
        bounds.add_row(bound["gpu"], _milliseconds(bound["seconds"]), f"{bound['memory_bound']:.0%}")
    how = "from shapes" if result["method"] == "shapes" else "from two small steps with values, extended as a line"
    print_table(
        bounds,
        *result["notes"],
        f"Predicted in {result['seconds']:.0f} s {how}; not calibrated on a GPU yet: the margin is assumed. Times are "
        "lower bounds at published peaks, not predictions.",
    )


_CATEGORIES = {
    "parameters": "parameters and buffers",
    "inputs": "inputs (this batch and the next)",
    "ema": "EMA of the weights",
    "optimizer": "optimizer state",
    "temporaries": "temporaries of backward pass and update",
    "others": "other tensors",
    "margin": "margin (CUDA context, workspaces, fragmentation)",
}


def _samples(count: int | None) -> str:
    if count is None:
        return "not supported by the backbone"
    return "none fits" if count == 0 else "over 65000" if count > 65000 else f"{count}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**29 else f"{size / 2**20:.3g} MiB"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.4g} ms"


def print_schedule(table: SchedulePreview, *, norms: bool) -> None:
    """Print the batches of a run over time, and their savings; ``norms``: whether batch norms follow them."""
    shown = Table("epochs", "steps", "batches", "learning rate", "norms", "step cost", "share")
    for line in table.rows:
        # The samples over which batch norms take statistics, where that is not a rank's share of the batch.
        ranks, splits = line.stage.processes, line.stage.splits
        over = f"over {ranks} ranks" if ranks > 1 else f"in {splits} parts" if splits > 1 else ""
        # Such as 64 x 8 x 23 x 23.
        batches = Counter(" x ".join(map(str, (batch.samples, *(batch.shape or ())))) for batch in line.stage.cycle)
        shown.add_row(
            f"{line.begin} to {line.end:g}",
            f"{line.steps}",
            "\n".join(f"{text} ({n} times)" if n > 1 else text for text, n in batches.items()),
            f"x {line.stage.lr_factor:g}",
            over if norms else "",
            f"{line.step_cost:.2f}",
            f"{line.cost_share:.1%}",
        )
    if table.plan == table.baseline:
        return print_table(shown)
    plan, baseline = (
        f"{plural(each.total_steps, 'step')}, {plural(each.samples_before(each.total_steps), 'sample')}"
        for each in (table.plan, table.baseline)
    )
    print_table(shown, f"{plan}; the baseline of {table.baseline.length}: {baseline}; {table.savings}")
