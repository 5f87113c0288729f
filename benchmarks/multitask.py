"""Claim: one multi-task run costs at most 60 % of the runs of its tasks alone, and each task loses at most two points.

``multitask/digits`` is compared with a run of each of its tasks with the same network, optimizer, number of steps and
images per step, hence equally many images; three seeds. Time is that of the whole command on the CPU: start, training,
evaluation and report. With ``--partly``: every scene has either boxes or maps, not both; both tasks on one backbone are
compared with each alone on its half.

Results are appended to ``OUT/results.jsonl``; run again after an interruption, it skips what is there. Run:
``python benchmarks/multitask.py``; ``--table`` prints what is there, ``--set KEY=VALUE`` changes the multi-task config.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from opabinia.config.datasets import validation_sets
from opabinia.training.run_folder import resolve

SEEDS = (0, 1, 2)
HEADLINE = {
    "boxes": "AP",
    "maps": "mIoU",
    "present": "mAP",
    "identities": "mAP",
    "unlabeled": "knn_top1",
}
SLOW = ("unlabeled",)
"""Tasks that train better alone without the larger learning rate of the shared backbone; others train worse."""
QUIET = {"loggers": [], "checkpoint": {"every": "0ep", "keep": 1, "best": None}}


def multi_config(overrides: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the complete multi-task config, with some of its tasks only; no names: all."""
    config = copy.deepcopy(resolve("multitask/digits", overrides).config)
    tasks = config["task"]["tasks"]
    for name in [name for name in tasks if names and name not in names]:
        del tasks[name]
    return {**config, **QUIET}


def single_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the config of one task alone: its stream, and as many images in each step."""
    multi, data = config["task"], config["data"]
    task = {**multi["tasks"][name]["task"], **{key: multi[key] for key in ("backbone", "mean", "std")}}
    stream = multi["tasks"][multi["tasks"][name]["stream"] or name]
    val = next({**val, "prefix": "val", "task": None} for val in validation_sets(config) if val["task"] == name)
    own = {
        **data,
        "train": stream["data"]["train"],
        "val": val,
        "sampler": stream["data"]["sampler"],
        "batch_size": round(stream["batch_share"] * data["batch_size"]),
    }
    if name in SLOW:
        config = {**config, "param_groups": None}
    for part in (own["train"], val):
        if task["name"] == "classification" and part["source"]["name"] == "image_labels":
            part["source"] = {**part["source"], "objects": False}
    return {**config, "task": task, "data": own}


def partly_configs(overrides: Sequence[str], scenes: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the configs of both tasks on one backbone and of each alone, where a scene has boxes or maps.

    Args:
        overrides: of the multi-task config.
        scenes: use only so many of the 1,600.
    """
    config = multi_config(overrides, ["boxes", "maps"])
    tasks = config["task"]["tasks"]
    data = tasks["boxes"]["data"]
    for first, name in enumerate(("boxes", "maps")):
        half = {"name": "every_other", "first": first, "samples": scenes}
        tasks[name] |= {"data": {**data, "sampler": half}, "batch_share": 0.5, "stream": None, "weight": 1.0}
    config["task"]["norms"] = "shared"  # the streams have images of one kind
    config["plugins"] = ["every_other"]
    config["data"]["batch_size"] = 16
    yield "partly/multi", config
    for name in ("boxes", "maps"):
        yield f"partly/{name}", single_config(config, name)


def measure(name: str, config: Mapping[str, Any], seed: int, out: Path) -> dict[str, Any]:
    """Train a config with the command line; return its scores and the CPU seconds of the whole command."""
    file = out / "configs" / f"{name.replace('/', '-')}-{seed}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({**config, "seed": seed}, sort_keys=False))
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "opabinia", "train", str(file), "--out", str(out / "runs")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))}, check=True)
    assert done.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    scores = json.loads((out / "runs" / file.stem / "default" / "results.json").read_text())
    return {"name": name, "seed": seed, "cpu_seconds": seconds, "scores": scores}


def mean(results: Sequence[Mapping[str, Any]], name: str, score: str) -> tuple[float, str]:
    """Return the mean of a score (or ``cpu_seconds``) over seeds, and it with the standard deviation as text."""
    values = [
        result["cpu_seconds"] if score == "cpu_seconds" else result["scores"][score]
        for result in results
        if result["name"] == name
    ]
    if not values:
        return float("nan"), "-"
    digits = 0 if score == "cpu_seconds" else 3
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return statistics.mean(values), f"{statistics.mean(values):.{digits}f}{deviation}"


def print_table(results: Sequence[Mapping[str, Any]], prefix: str, tasks: Sequence[str]) -> None:
    """Print the scores and seconds of the tasks alone and together."""
    print("| task | score | alone | together | difference | alone, CPU s |\n|---|---|---|---|---|---|")
    total = 0.0
    for name in tasks:
        score = HEADLINE[name]
        alone, alone_text = mean(results, prefix + name, f"val/{score}")
        joint, joint_text = mean(results, f"{prefix}multi", f"{name}/val/{score}")
        seconds, seconds_text = mean(results, prefix + name, "cpu_seconds")
        total += seconds
        print(f"| {name} | {score} | {alone_text} | {joint_text} | {joint - alone:+.3f} | {seconds_text} |")
    seconds, text = mean(results, f"{prefix}multi", "cpu_seconds")
    print(f"\ntogether {text} CPU s, alone {total:.0f} in all: ratio {seconds / total:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/multitask_benchmark"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--partly", action="store_true")
    parser.add_argument("--scenes", type=int, help="with --partly: use only so many of the 1,600")
    parser.add_argument("--only", nargs="*", help="names of runs: multi, boxes ...")
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    file = arguments.out / "results.jsonl"
    results = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if arguments.partly:
        prefix, configs = "partly/", dict(partly_configs(arguments.overrides, arguments.scenes))
    else:
        whole = multi_config(arguments.overrides)
        prefix, configs = "", {"multi": whole, **{name: single_config(whole, name) for name in whole["task"]["tasks"]}}
    for seed in SEEDS[: arguments.seeds]:
        for name, config in configs.items():
            done = any((result["name"], result["seed"]) == (name, seed) for result in results)
            if done or arguments.table or (arguments.only and name.removeprefix(prefix) not in arguments.only):
                continue
            results.append(measure(name, config, seed, arguments.out))
            with file.open("a") as log:
                log.write(json.dumps(results[-1]) + "\n")
    print_table(results, prefix, [name.removeprefix(prefix) for name in configs if not name.endswith("multi")])


if __name__ == "__main__":
    main()
