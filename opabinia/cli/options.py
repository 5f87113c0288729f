"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A packaged recipe, a YAML file or a run folder.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the config, such as optimizer.lr=0.1")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or s3://... and the like.")]
RunOrRecipe = Annotated[
    str,
    typer.Argument(
        metavar="RUN|RECIPE",
        help="A run folder, s3://... or hf:OWNER/NAME; with --weights FILE a recipe.",
        show_default=False,
    ),
]
RunsFolder = Annotated[Path, typer.Option(help="Folder of the runs: OUT/RECIPE/NAME.")]

Seeds = Annotated[
    str | None, typer.Option(metavar="0,1,2", help="One run per seed (NAME-seed0 ...), and the mean of all.")
]
Folds = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        min=2,
        help="Cross-validation: one run per fold of the training data (NAME-fold1 ...), evaluated on this fold and "
        "trained on the others, and the mean of all. The recipe's validation data is not used.",
    ),
]
GroupBy = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="With --folds: samples with the same folder, sequence, camera or view are in one fold, or those with "
        "the same match of a regular expression in their names, such as '(patient[0-9]+)'.",
        show_default=False,
    ),
]

Checkpoint = Annotated[str, typer.Option(help="best, last, or the path of a checkpoint.")]
Weights = Annotated[
    Literal["raw", "ema"] | None, typer.Option(help="Raw weights or their EMA; default: the better ones in the run.")
]
WeightsOrFile = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="raw|ema|FILE",
        help="Raw weights or their EMA; default: the better ones in the run. FILE: weights for the model of a recipe.",
    ),
]
Classes = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Class names of --weights FILE, one a line; default: of the data.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A change to the config, such as data.val.transforms=[]."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto; default: as in training.")]
Gallery = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Report the most similar images of this folder for each image.")
]
Rerank = Annotated[
    bool, typer.Option("--rerank", help="Re-rank the nearest 100 images by shared neighbors (k-reciprocal).")
]
Nearest = Annotated[int, typer.Option(min=1, help="Number of gallery images to report.")]

AnnotationTool = Annotated[
    Literal["cvat", "label_studio", "labelme"] | None,
    typer.Option("--export", help="Also write the images and draft annotations for this annotation tool."),
]

Tracker = Annotated[
    str | None,
    typer.Option(
        "--tracker",
        metavar="NAME",
        help="Track the objects in the validation videos, and evaluate the tracks: sort, bytetrack, ocsort, botsort.",
        show_default=False,
    ),
]
Reid = Annotated[
    str | None,
    typer.Option("--reid", metavar="RUN", help="The run of a re-identification model, for the appearance of objects."),
]
ReidTask = Annotated[
    str | None,
    typer.Option(
        "--reid-task", metavar="NAME", help="Task of --reid, a multi-task run; default: its only re-identification."
    ),
]

TrackerWords = Annotated[
    list[str] | None,
    typer.Argument(metavar="tracker.KEY=VALUE", help="Options of --tracker.", show_default=False),
]
TrackedScore = Annotated[
    float | None,
    typer.Option(
        "--score",
        min=0,
        max=1,
        show_default="0.1",
        help="With --tracker: lowest score of the detections that are tracked.",
    ),
]

Tasks = Annotated[
    str, typer.Option("--task", metavar="A,B", help="Tasks of a multi-task run; default: all.", show_default=False)
]

Budget = Annotated[
    str | None,
    typer.Option(metavar="30m|8h", help="Wall time of training with its evaluations; default: 1h.", show_default=False),
]
Search = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=2,
        help="First try N learning rates and image sizes in short runs, in a third of the budget.",
        show_default=False,
    ),
]
DataTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="classification, detection, instance_segmentation, keypoints, segmentation, panoptic, reid, video or "
        "selfsup; default: what the data is for.",
        show_default=False,
    ),
]
DataLayout = Annotated[
    str | None, typer.Option("--layout", metavar="NAME", help="Layout of the data, if it has several.")
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings, errors and the final scores only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout; everything else to stderr.")]

Nproc = Annotated[
    str | None, typer.Option(metavar="N|auto", help="Ranks (processes) on this machine; auto: one for each GPU.")
]
Nnodes = Annotated[int | None, typer.Option(metavar="N", min=1, help="Machines; run the same command on each.")]
ElasticNodes = Annotated[
    str | None, typer.Option(metavar="N|MIN:MAX", help="Machines; MIN:MAX: they may leave and join meanwhile.")
]
NodeRank = Annotated[int | None, typer.Option(metavar="R", min=0, help="Number of this machine, from 0.")]
Endpoint = Annotated[
    str | None, typer.Option(metavar="HOST:PORT|auto", help="Rendezvous of the machines: an address of machine 0.")
]
MaxRestarts = Annotated[
    int, typer.Option(metavar="N", min=0, help="Restarts of crashed ranks, from the last checkpoint.")
]


def split_names(text: str) -> list[str]:
    """Return the names in a text with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]
