"""``opabinia eval``"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import (
    AsJson,
    Checkpoint,
    Endpoint,
    Nnodes,
    NodeRank,
    Nproc,
    Overrides,
    Quiet,
    Reid,
    ReidTask,
    RunOrRecipe,
    Tracker,
    WeightsOrFile,
    split_names,
)
from opabinia.cli.outcome import best_of, best_text, in_json, print_json, words_of
from opabinia.cli.processes import layout, run_in_many
from opabinia.cli.weights import open_run
from opabinia.runtime.quiet import quiet_terminal


def evaluate(
    run: RunOrRecipe,
    overrides: Overrides = None,
    split: Annotated[
        str, typer.Option(metavar="A,B", help="Evaluate only these validation sets; default: all of the run.")
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Other data in the same layout: a folder or an annotation file."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of other data's scores; default: of the folder or file.", metavar="NAME")
    ] = None,
    checkpoint: Checkpoint = "best",
    weights: WeightsOrFile = None,
    evaluator: Annotated[
        list[str] | None,
        typer.Option("--evaluator", metavar="NAME", help="An additional evaluator, such as knn; may be repeated."),
    ] = None,
    confidence_intervals: Annotated[
        bool, typer.Option("--confidence-intervals", help="Add 95 % bootstrap confidence intervals of the main scores.")
    ] = False,
    tracker: Tracker = None,
    reid: Reid = None,
    reid_task: ReidTask = None,
    nproc: Nproc = None,
    nnodes: Nnodes = None,
    node_rank: NodeRank = None,
    rdzv_endpoint: Endpoint = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint of a run, or a recipe with weights from a file, on its validation data, or on other data.

    opabinia eval runs/classification/digits/default --checkpoint last

    opabinia eval runs/classification/image_folder/default --data path/to/test

    opabinia eval runs/classification/digits/default --confidence-intervals

    opabinia eval runs/classification/digits/default --nproc 2

    opabinia eval detection/coco/mask_rcnn_r50_1x --weights model_final.pkl vars.root=coco

    opabinia eval runs/classification/digits/default --evaluator linear_probe --evaluator knn

    opabinia eval runs/detection/mot/default --tracker botsort --reid runs/reid/mot/default tracker.keep_lost=2
    """
    with report_errors(), quiet_terminal(quiet):
        overrides = [*(overrides or []), *(f"evaluate.evaluators.{name}.evaluator={name}" for name in evaluator or [])]
        from opabinia.cli.tracking import evaluate_tracks, split_options
        from opabinia.config.paths import check_input_paths, check_run_data

        tracker_words, overrides = split_options(overrides, tracker, reid, evaluator, confidence_intervals, reid_task)
        check_input_paths([data] if data else [])
        folder, chosen, overrides = open_run(run, overrides, None if weights == "both" else weights)
        which = "both" if weights == "both" else chosen
        check_run_data(folder, overrides, [] if data else ["data.val"])
        ranks = layout(nproc, nnodes, node_rank, rdzv_endpoint, max_restarts=0)
        given = {"--checkpoint": checkpoint, "--split": split, "--data": data, "--name": name, "--weights": which}
        given |= {"--tracker": tracker, "--reid": reid, "--reid-task": reid_task}
        words = [word for option, value in given.items() if value for word in (option, str(value))]
        words += ["--confidence-intervals"] * confidence_intervals
        run_in_many(ranks, ["eval", str(folder), *overrides, *tracker_words, *words, *words_of(quiet, as_json)])
        splits = split_names(split)
        if tracker:
            model, part = (folder, overrides, checkpoint, chosen), (splits, data, name)
            return evaluate_tracks(model, part, tracker, tracker_words, reid, reid_task, as_json=as_json)
        from opabinia.training.launch import evaluate as scores_of

        scores = scores_of(
            *(folder, overrides),
            checkpoint=checkpoint, weights=which, splits=splits, data=data, name=name, confidence=confidence_intervals,
        )  # fmt: skip
        _print(folder, overrides, checkpoint, scores, as_json=as_json)


def _print(
    folder: Path, overrides: Sequence[str], checkpoint: str, scores: Mapping[str, float], *, as_json: bool
) -> None:
    from opabinia.cli.tables import print_scores

    if as_json:
        return print_json({"run": str(folder), "checkpoint": checkpoint, "scores": in_json(scores)})
    best = best_of(folder, overrides) if checkpoint == "best" else None
    print_scores(f"{folder} ({best_text(best) if best else checkpoint})", scores)
