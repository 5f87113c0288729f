"""The conclusion of a run for its user: how good the best checkpoint is, compared with what, and what would help."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opabinia.cli.outcome import best_of, metrics_lines, next_commands, print_ending
from opabinia.cli.tables import BOUNDS, score_text
from opabinia.runtime.json_files import InvalidFile, read_json
from opabinia.runtime.slurm import launched_rank
from opabinia.runtime.text import plural
from opabinia.runtime.weighted_scores import score_weights

if TYPE_CHECKING:
    from opabinia.training.baselines import Baseline
    from opabinia.training.learning_curve import LearningCurve

MAX_SECONDS = 120.0
"""Maximum time of the evaluation."""

_PIXEL_SECONDS = 10.0
"""Maximum time for reading images for the baseline of pixels."""

_MAX_LINES = 12
_COMMANDS = ("predict", "report", "export", "train")
"""The commands for a user's first model; the documentation has others."""

_CLASS_SCORES = ("PQ", "IoU", "AP", "recall")
_NOT_BEATEN = "this is not clearly better than without training: train longer, or look for wrong labels or settings"
_ALIKE = (
    "pixels alone are as good: the validation images are like those of training, such as frames of one recording; "
    "validation data of other recordings would show more"
)
_NEARLY_ALL = 0.95
"""Accuracy of a baseline above which hardly any validation image is unlike the training images."""

_WORST = 3
_MIN_EVALUATIONS = 6
_TRAINING_LINES = 3
_CLEARLY_ABOVE = "clearly above: more data would help more"


@dataclass(frozen=True)
class ClassScore:
    """The score of a class, and how many validation images, objects or pixels of it there are: ``24 images``."""

    name: str
    score: float
    count: str


@dataclass(frozen=True)
class Conclusion:
    """Facts about the best checkpoint of a finished run.

    Attributes:
        metric: its main score, such as ``val/top1``.
        score: its value.
        interval: 95 % confidence interval: ``low``, ``high``, and ``unit`` and ``count`` of what was resampled; None if
            the score has none.
        other_sets: the same score of other validation sets, which did not select the checkpoint, with its bounds:
            ``test/top1``, ``test/top1_ci_low`` ...
        baselines: scores without training.
        worst_classes: the classes with the lowest scores, worst first.
        advice: whether more time or more data would help, sentences.
    """

    metric: str
    score: float
    interval: Mapping[str, Any] | None
    other_sets: Mapping[str, float]
    baselines: Sequence[Baseline]
    worst_classes: Sequence[ClassScore]
    advice: Sequence[str]

    def lines(self) -> list[str]:
        """Return the text, a line for each."""
        spread = ""
        if self.interval is not None:
            low, high, count, unit = (self.interval[key] for key in ("low", "high", "count", "unit"))
            spread = f" (95 % confidence: {low:.3f} to {high:.3f}; {plural(count, unit.removesuffix('s'))})"
        lines = [f"{self.metric} {self.score:.4f}{spread}"]
        lines += [f"{name} {score_text(name, self.other_sets)}" for name in _without_bounds(self.other_sets)]
        if self.baselines:
            lines.append("without training: " + "; ".join(f"{base.text}: {base.score:.3f}" for base in self.baselines))
        if self.worst_classes:
            worst = ", ".join(f"{each.name}: {each.score:.2f} ({each.count})" for each in self.worst_classes)
            lines.append(f"worst classes: {worst}")
        return [*lines, *self.advice]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        baselines = [base._asdict() for base in self.baselines]
        return {**asdict(self), "baselines": baselines}


def print_conclusion(folder: Path, conclusion: Conclusion | None) -> None:
    """Print at most twelve lines: the conclusion of a finished run, its best checkpoint and the next commands; on rank
    0 only."""
    lines = [] if conclusion is None else conclusion.lines()
    if not launched_rank(os.environ):
        print(*lines, sep="\n", end="\n" * bool(lines))
    commands = [command for command in next_commands(folder) if command.words[1] in _COMMANDS]
    room = max(2, _MAX_LINES - len(lines) - 2)
    print_ending(folder, [*commands[: room - 1], commands[-1]] if len(commands) > room else commands)


def conclude(folder: Path, *, seconds: float = MAX_SECONDS, curve_seconds: float = 0.0) -> Conclusion | None:
    """Draw the conclusion of a finished run; None if it has no best checkpoint with a score, and on ranks other than 0.

    The best checkpoint is evaluated once more, by rank 0 alone: the tables in the folder are those of the last
    evaluation, without confidence intervals. If that would take longer than ``seconds``, by the times of the run, the
    conclusion is drawn from what is in the folder.

    Args:
        folder: the run folder.
        seconds: maximum time for the evaluation. Reading images for the baseline of pixels takes at most ten seconds in
            addition; 0: without both.
        curve_seconds: maximum time for short runs on parts of the training data, which show whether more data would
            help; 0: without them.

    Raises:
        ConfigError: the run, its checkpoint or its data cannot be read.
    """
    if launched_rank(os.environ):
        return None
    from opabinia.runtime.process_group import single_process

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    with single_process():
        return _conclude(folder, seconds / ranks, curve_seconds / ranks)


def _conclude(folder: Path, seconds: float, curve_seconds: float) -> Conclusion | None:
    from opabinia.training.baselines import constant_baseline, pixel_baseline
    from opabinia.training.launch import evaluate
    from opabinia.training.run_folder import resolve

    best = best_of(folder)
    if best is None or not isinstance(best["score"], float):
        return None
    lines = list(metrics_lines(folder))[::-1]
    evaluations = [line for line in lines if line["step"] == best["step"] and "time/step" not in line]
    predicted = sum(line[key] for line in evaluations for key in line if key.startswith("time/"))
    scores = {key: line[key] for line in evaluations for key in line if isinstance(line[key], float) and "/" in key}
    later = [f"for a confidence interval: opabinia eval {folder} --confidence-intervals (about {predicted:.0f} s)"]
    if predicted < seconds:
        scores, later = evaluate(folder, confidence=True), []
    # The weights that other commands use by default: the better ones of raw and EMA weights.
    metric = next((name for name in _with_counterparts(best["metric"]) if name in scores), None)
    if metric is None:
        return None
    prefix, _, name = metric.rpartition("/")
    tables = _tables(folder / "eval" / prefix, best["step"])
    interval = tables.get("confidence", {}).get(name)
    baselines = [constant_baseline(metric, tables, None if interval is None else interval["count"])]
    if seconds > 0:
        baselines.append(pixel_baseline(resolve(folder), metric, _PIXEL_SECONDS))
    known = [baseline for baseline in baselines if baseline is not None]
    return Conclusion(
        metric=metric,
        score=scores[metric],
        interval=interval,
        other_sets={key: scores[key] for key in _of_other_sets(metric, scores)},
        baselines=known,
        worst_classes=worst_classes(tables, name, "videos" if interval and interval["unit"] == "videos" else "images"),
        advice=[*_advice(folder, lines, metric, scores[metric], interval, known, curve_seconds), *later],
    )


def _with_counterparts(metric: str) -> Iterator[str]:
    """Yield the scores of a weighted sum, each with that of the raw weights instead of the EMA's, or the reverse."""
    for name in score_weights(metric):
        prefix, _, score = name.rpartition("/")
        raw = prefix.removesuffix("_ema")
        yield from (name, f"{raw if prefix != raw else f'{raw}_ema'}/{score}")


def _of_other_sets(metric: str, scores: Collection[str]) -> list[str]:
    """Return the names of the same score of other validation sets, and of its bounds."""
    name = metric.rpartition("/")[2]
    same = [key for key in _without_bounds(scores) if key != metric and key.rpartition("/")[2] == name]
    return [key for key in scores if key.removesuffix(BOUNDS[0]).removesuffix(BOUNDS[1]) in same]


def _without_bounds(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.endswith(BOUNDS)]


def _advice(
    folder: Path,
    lines: Sequence[Mapping[str, Any]],
    metric: str,
    score: float,
    interval: Mapping[str, Any] | None,
    baselines: Sequence[Baseline],
    curve_seconds: float,
) -> list[str]:
    """Return :attr:`Conclusion.advice`."""
    from opabinia.training.learning_curve import learning_curve

    values = [(line["step"], line[metric]) for line in lines if isinstance(line.get(metric), float)]
    sign = direction([value for _, value in values], score)
    uncertainty = None if interval is None else (interval["high"] - interval["low"]) / 2
    low, high = (score, score) if interval is None else (interval["low"], interval["high"])
    best = max((baseline.score for baseline in baselines), default=-math.inf)
    trained = training_score(lines, metric)
    is_above = low > best and bool(values)
    advice = [time_advice(values, sign, uncertainty, trained) if is_above else baseline_advice(high, best)]
    if curve_seconds > 0:
        advice.append(data_advice(learning_curve(folder, lines, metric, curve_seconds), sign, uncertainty))
    return advice


def baseline_advice(high: float, best: float) -> str:
    """Return a remark on a score that is not clearly above the baselines.

    Args:
        high: upper bound of its confidence interval.
        best: score of the best baseline.
    """
    return _ALIKE if high >= best > _NEARLY_ALL else _NOT_BEATEN


def _tables(folder: Path, step: int) -> Mapping[str, Any]:
    """Return the tables of an evaluation of a step: ``details.json`` of a set, or of the step's own folder in it."""
    for file in (folder / "details.json", folder / f"step-{step:08d}" / "details.json"):
        try:
            details = read_json(file, dict[str, Any])
        except InvalidFile:
            continue
        if details.get("step") == step:
            return details
    return {}


def worst_classes(tables: Mapping[str, Any], score: str, samples: str) -> list[ClassScore]:
    """Return the classes with the lowest scores below 1, at most three and fewer than there are.

    Args:
        tables: ``details.json`` of an evaluation.
        score: name of the main score, which classes may have, too; otherwise their own.
        samples: name of its samples, ``images`` or ``videos``.
    """
    rows = tables.get("per_class") or []
    key = next((name for name in (score, *_CLASS_SCORES) if rows and name in rows[0]), None)
    if key is None:
        return []
    pixels = max(1, sum(row.get("pixels", 0) for row in rows))
    scored = sorted((row for row in rows if _has_samples(row) and row[key] is not None), key=lambda row: row[key])
    worst = [row for row in scored[: min(_WORST, len(scored) - 1)] if row[key] < 1]
    return [ClassScore(row["class"], row[key], _count_of(row, samples, pixels)) for row in worst]


def _has_samples(row: Mapping[str, Any]) -> bool:
    return any(row.get(key) for key in ("samples", "objects", "pixels", "matched", "missed"))


def _count_of(row: Mapping[str, Any], samples: str, pixels: int) -> str:
    if "samples" in row:
        return plural(row["samples"], samples.removesuffix("s"))
    if row.get("objects"):
        return plural(row["objects"], "object")
    if "pixels" in row:
        return f"{row['pixels'] / pixels:.1%} of the pixels"
    return plural(row["matched"] + row["missed"], "segment")


def direction(values: Sequence[float], best: float) -> int:
    """Return 1 if high values of a score are better, and -1 if low ones are, by that of the best checkpoint."""
    return -1 if values and abs(best - min(values)) < abs(best - max(values)) else 1


def time_advice(
    values: Sequence[tuple[int, float]], sign: int, uncertainty: float | None, trained: float | None = None
) -> str:
    """Return a sentence: whether a longer training would help, as far as the metrics log shows it.

    It compares the medians of the score in the last and in the middle third of the run, and the last score with that of
    training samples; what the same recipe would have reached with another length is not known.

    Args:
        values: step and score of each evaluation.
        sign: 1 if high scores are better, else -1.
        uncertainty: half of the width of the score's confidence interval; None: as much as it changes from one
            evaluation to the next.
        trained: the same score of the last training batches, with their augmentation; None: unknown.
    """
    total, final = values[-1]
    if sign > 0 and final == 1:
        return "more time: the score is 1; only other validation data can show what is left to learn"
    thirds = [[score for step, score in values if low < step / total <= low + 1 / 3] for low in (1 / 3, 2 / 3)]
    middle, last = (sorted(scores)[len(scores) // 2] if scores else None for scores in thirds)
    if uncertainty is None:
        uncertainty = max((abs(new - old) for (_, old), (_, new) in pairwise(values[-len(values) // 3 :])), default=0.0)
    known = "" if trained is None else f"training samples score {trained:.3f}"
    fits = trained is not None and sign * (trained - final) > uncertainty
    if len(values) < _MIN_EVALUATIONS or middle is None or last is None:
        few = f"more time: too few evaluations ({len(values)}) to see a trend"
        if trained is None:
            return few
        return f"{few}; {known}, {_CLEARLY_ABOVE if fits else 'not clearly above: a longer training may help'}"
    change = f"more time: from the middle to the last third of the run the score changed by {last - middle:+.3f}"
    gain = sign * (last - middle)
    if gain > uncertainty:
        return f"{change}: a longer training is worth a try (train.length)"
    if gain < -uncertainty:
        return f"{change}: it overfits; more data or stronger augmentation would help, not time"
    flat = f"{change}, within its uncertainty of {uncertainty:.3f}: a longer training would add little"
    if trained is None:
        return flat
    return f"{flat}; {known}, {_CLEARLY_ABOVE if fits else 'not clearly above: a larger model may help'}"


def training_score(lines: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Return the mean of a score (``train/top1``) in the last training lines of the metrics log; None without any."""
    name = f"train/{metric.rpartition('/')[2]}"
    scores = [line[name] for line in lines if isinstance(line.get(name), float)][-_TRAINING_LINES:]
    return sum(scores) / len(scores) if scores else None


def data_advice(curve: LearningCurve | None, sign: int, uncertainty: float | None) -> str:
    """Return a sentence: whether more training data would help.

    Args:
        curve: scores of runs on parts of the training data; None: there was no time for them.
        sign: 1 if high scores are better, else -1.
        uncertainty: half of the width of the confidence interval of a score; None: unknown.
    """
    if curve is None:
        return "more data: not measured, for lack of time or of data"
    runs = f"{curve.samples[0]} to {curve.samples[-1]} samples, {curve.steps} steps each"
    change = f"more data: twice the training data changed the score by {curve.gain:+.3f} ({runs})"
    spread = None if uncertainty is None else curve.gain_uncertainty(uncertainty)
    if spread is None or sign * curve.gain <= spread:
        within = "" if spread is None else f", within its uncertainty of {spread:.3f}"
        return f"{change}{within}: that does not show whether more data would help"
    return f"{change}, more than its uncertainty of {spread:.3f}: more data would help"
