"""Claim: self-supervised pretraining on the same images without labels gives a detector a better start.

Short trainings on one thread, each with three seeds. Embedded scenes: FCOS with all labels and with every tenth image
(the same 160 for all seeds), from random weights and from a backbone that ``selfsup/crops`` trained on the scenes. With
``--bccd FOLDER`` (blood cells: train/, test/, annotations/) also FCOS from random weights and from such a backbone, and
``detection/finetune`` (D-FINE) from the same one. One pretraining for each dataset. Schedules do not depend on the
number of labelled images.

Results are appended to ``OUT/results.jsonl``; run again after an interruption, it skips what is there. At the end, or
at once with ``--table``, it prints means and standard deviations. Run:
``python benchmarks/unlabelled_to_detector.py --bccd data``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

SEEDS = (0, 1, 2)
BACKBONE = "task.backbone={name: timm, model: resnet10t, options: {stem_width: 8, channels: [16, 32, 64, 128]}}"
COMMON = [
    BACKBONE,
    *("train.num_threads=1", "data.num_workers=0", "loggers=[]", "schedule.warmup=50it", "checkpoint.every=0ep"),
]
NO_EMA = ["ema=null", "evaluate={every: 0ep, weights: raw}", "checkpoint.best=null", "task.validation_loss=false"]
SCENES_VIEW = (
    "[{name: RandomAffine, degrees: 10, translate: [0.1, 0.1], scale: [0.8, 1.25], shear: [-10, 10],"
    " interpolation: bilinear}, {name: ColorJitter, brightness: 0.4, contrast: 0.4}]"
)
D_FINE = (
    "{name: d_fine, channels: 128, num_queries: 100, decoder_layers: 3, ffn_dim: 256, hidden_expansion: 0.5,"
    " depth_multiplier: 0.34, num_denoising: 50, attention_heads: 4}"
)
PRETRAINING = ["train.length=300it", "evaluate.every=300it", "optimizer.lr=0.003", "checkpoint.best=null"]
SCENES = ["task.mean=[0.4]", "task.std=[0.25]"]


class Side(NamedTuple):
    """A row of the table: a detector on a dataset.

    Attributes:
        dataset: ``scenes`` or ``bccd``.
        detector: name in the table.
        labels: share of the labelled images.
        recipe: of the detector.
        overrides: of the recipe.
    """

    dataset: str
    detector: str
    labels: float
    recipe: str
    overrides: list[str]

    @property
    def row(self) -> str:
        return f"{self.dataset} | {self.detector} | {self.labels:.0%}"


def pretraining(dataset: str, root: Path | None) -> list[str]:
    """Overrides of ``selfsup/crops`` for a dataset."""
    if dataset == "bccd":
        return [f"vars.root={root}/train", "vars.short=160", "vars.crop=64", "vars.batch=32"]
    sources = [
        f"data.{part}.source={{name: unlabeled, source: {{name: digit_scenes, split: {part}}}}}"
        for part in ("train", "val")
    ]
    return [*sources, *SCENES, "vars.short=128", "vars.crop=64", "vars.batch=64", f"vars.view={SCENES_VIEW}"]


def sides(root: Path | None) -> list[Side]:
    """The rows of the table; those of bccd if its folder is given."""
    fcos = ["task.detector.neck.channels=32", "task.detector.num_convs=2", "train.length=200it", "data.batch_size=8"]
    tenth = "data.sampler={name: subset, fraction: 0.1, stratified: false}"
    rows = [
        Side("scenes", "FCOS", labels, "detection/digits", [*SCENES, *fcos, *(() if labels == 1 else (tenth,))])
        for labels in (1.0, 0.1)
    ]
    if root is None:
        return rows
    test = f"{{name: coco, root: {root}/test, file: {root}/annotations/instances_test.json, broken: clip}}"
    sizes = {
        "fcos": "{name: resize_shortest_edge, short_edge_length: 160}",
        "d_fine": "{name: Resize, size: [160, 224]}",
    }
    val = {name: f"data.val={{source: {test}, transforms: [{size}]}}" for name, size in sizes.items()}
    small = ["vars.short=[144, 160, 176]", "task.detector.neck.channels=64", "train.length=150it"]
    decoder = ["vars.size=[160, 224]", f"task.detector={D_FINE}", "train.length=200it", "data.batch_size=8"]
    data = f"vars.root={root}"
    return [
        *rows,
        Side("bccd", "FCOS", 1.0, "detection/bccd", [data, val["fcos"], *small]),
        Side("bccd", "D-FINE", 1.0, "detection/finetune", [data, val["d_fine"], *decoder, "optimizer.lr=0.0005"]),
    ]


def jobs(root: Path | None) -> list[tuple[int, Side, bool]]:
    """Seed, row and whether its backbone is pretrained: the scenes first, seed after seed; D-FINE always is."""
    order = [(seed, side, start) for seed in SEEDS for side in sides(root) for start in (False, True)]
    return sorted(
        (job for job in order if job[1].detector == "FCOS" or job[2]), key=lambda job: job[1].dataset == "bccd"
    )


def run(seed: int, side: Side, pretrained: bool, root: Path | None, out: Path) -> dict[str, Any]:
    """Train a detector, after its backbone if that is missing; return a line of the results."""
    from opabinia.training.launch import train

    init = ["init=null"] if side.recipe == "detection/finetune" else []
    if pretrained:
        folder = out / "selfsup" / "crops" / side.dataset
        if not (folder / "results.json").exists():
            overrides = [*COMMON, *PRETRAINING, *pretraining(side.dataset, root)]
            train("selfsup/crops", overrides, out=out, name=folder.name, resume="auto")
        init = [f"init.weights={folder}"]
    began = time.process_time()
    name = "-".join([side.dataset, f"{side.labels:g}", "pretrained" if pretrained else "scratch", str(seed)])
    overrides = [*COMMON, *NO_EMA, *side.overrides, *init, f"seed={seed}"]
    _, scores = train(side.recipe, overrides, out=out, name=name, resume="auto")
    return {
        "row": side.row,
        "pretrained": pretrained,
        "seed": seed,
        **{key: scores[f"val/{key}"] for key in ("AP", "AP50")},
        "cpu_s": round(time.process_time() - began),
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each detector and start."""
    groups: dict[tuple[str, bool], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["row"], line["pretrained"]].append(line)
    rows = ["| data | detector | labels | backbone | seeds | AP | AP50 | CPU s |", "|---|---|---|---|---|---|---|---|"]
    for (row, pretrained), group in sorted(groups.items(), reverse=True):
        cells = []
        for key in ("AP", "AP50"):
            values = [line[key] for line in group]
            deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{deviation}")
        seconds = statistics.mean(line["cpu_s"] for line in group)
        start = "pretrained" if pretrained else "from scratch"
        rows.append(f"| {row} | {start} | {len(group)} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bccd", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/unlabelled_to_detector"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    results = arguments.out / "results.jsonl"
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {(line["row"], line["pretrained"], line["seed"]) for line in lines}
    for seed, side, pretrained in () if arguments.table else jobs(arguments.bccd):
        if (side.row, pretrained, seed) not in done:
            lines.append(run(seed, side, pretrained, arguments.bccd, arguments.out))
            with results.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), file=sys.stderr, flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
