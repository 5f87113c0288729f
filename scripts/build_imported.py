"""Import all configs of another system's checkout, and try each on generated data, like `config check --build`.

    python -m scripts.build_imported detectron2 path/to/detectron2 [--limit 60] [--only PATTERN]

Everything is built: the network on the meta device, datasets, transforms, optimizer, schedules, evaluators. One batch
goes through the transforms. The first config of each network of at most ``--limit`` million parameters also loads
weights, trains one step and predicts.

Stand-ins: the generated datasets of :mod:`scripts.small_data` in place of the config's own, batches of at most 16,
random weights in place of files and of pretrained weights, ``resnet18`` where a timm model is to be chosen, and images
of an eighth of the size for detection. A teacher that is a run of another config is omitted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image

from opabinia.config import ConfigError, build, catalog, check, compose
from opabinia.engine.hooks.order import check_hooks
from opabinia.migration import System, convert
from opabinia.training.dry_run import dry_run
from opabinia.training.model import Models, check_model, make_optimizer
from opabinia.training.planning import plan_training
from opabinia.training.samples import first_samples
from opabinia.training.session import TrainingRun, all_schedules
from opabinia.training.validation import make_best, plan_evaluation
from scripts import small_data
from tests.migration.test_own_configs import FILES

CONFIGS = FILES | {
    "paddlevideo": lambda checkout: checkout.glob("configs/recognition/**/*.y*ml"),
    "pyslowfast": lambda checkout: checkout.glob("configs/**/*.yaml"),
}

# --- data -------------------------------------------------------------------------------------------------------------


def write_data(root: Path) -> None:
    """Write a small dataset for each source that imported configs name."""
    small_data.coco2017(root / "coco")
    for name in ("market1501", "msmt17", "veri", "veri_wild", "vehicleid", "class_folders", "in_shop"):
        getattr(small_data, name)(root / name)
    small_data.online_products(root / "online_products")
    small_data.identities(root / "identities")
    small_data.voc(root / "voc")
    for split in ("trainval", "test"):
        shutil.copy(root / "voc/ImageSets/Main/train.txt", root / f"voc/ImageSets/Main/{split}.txt")
    for size in (1600, 2400):
        lists = root / "vehicleid/train_test_split"
        shutil.copy(lists / "test_list_800.txt", lists / f"test_list_{size}.txt")
    for size in (5000, 10000):
        lists = root / "veri_wild/train_test_split"
        for suffix in ("", "_query"):
            shutil.copy(lists / f"test_3000{suffix}.txt", lists / f"test_{size}{suffix}.txt")
    small_data.listed_videos(root / "videos")
    for split, numbers in small_data.VIDEOS.items():
        lines = [f"videos/{number}.mkv,{number % 2}\n" for number in numbers]
        (root / f"videos/{split}.csv").write_text("path,label\n" + "".join(lines), encoding="utf-8")
        frames = [f"frames/{number} 24 {number % 2}\n" for number in numbers]
        (root / f"videos/{split}_frames.txt").write_text("".join(frames), encoding="utf-8")
        for number in numbers:
            for frame, shot in enumerate(shot for repeat in range(6) for shot in small_data.shots([number + 1])):
                small_data.save(root / f"videos/frames/{number}/{frame + 1:05d}.jpg", shot)
    lines = []
    for image in sorted((root / "class_folders").rglob("*.png")):
        folder = root / "image_folder" / image.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(image).resize((64, 48)).save(folder / f"{image.stem}_0.png")
        for number in range(1, 25):  # some samplers take a thousand images
            os.link(folder / f"{image.stem}_0.png", folder / f"{image.stem}_{number}.png")
        lines.append(f"{folder.name}/{image.stem}_0.png,{folder.name}\n")
    paths = [line.partition(",")[0] for line in lines]
    pairs = [f"{paths[0]},{paths[number]},{int(number < 4)}\n" for number in range(1, 8)]
    (root / "image_folder/pairs.csv").write_text("first,second,same\n" + "".join(pairs), encoding="utf-8")
    (root / "image_folder/list.csv").write_text("path,label\n" + "".join(lines), encoding="utf-8")


def stand_in(source: dict[str, Any], root: Path, split: str) -> dict[str, Any]:
    """Return the source's options that name its data, for the generated dataset; with ``name`` it is another source."""
    file = str(source.get("file"))
    folders = {"images": "image_folder", "dukemtmc": "market1501"}
    match source["name"]:
        case "coco":
            kind = "lvis_v0.5_" if "lvis" in file else "person_keypoints_" if "keypoints" in file else "instances_"
            suffix = split if "lvis" in kind else f"{split}2017"
            files = {"root": root / f"coco/{split}2017", "file": root / f"coco/annotations/{kind}{suffix}.json"}
            return files | {"classes": None}
        case "coco_panoptic":
            maps = root / f"coco/annotations/panoptic_{split}2017"
            return {"root": root / f"coco/{split}2017", "maps": maps, "file": maps.with_suffix(".json")}
        case "market1501_attributes" | "dukemtmc_attributes" | "pa100k":
            return {"name": "table", "file": root / "image_folder/list.csv", "multi_label": True}
        case "image_pairs":
            return {"file": root / "image_folder/pairs.csv"}
        case "identities":
            return {"file": root / "identities/list.csv"}
        case "table":
            return {"file": root / "image_folder/list.csv"}
        case "video_list":
            files = {"file": root / f"videos/{split}.csv", "root": root / "videos", "class_file": None, "suffix": ""}
            return files | {"flip_sensitive_classes": None}  # these have other names
        case "frame_folders":
            files = {"file": root / f"videos/{split}_frames.txt", "root": root / "videos", "pattern": "{:05}.jpg"}
            return files | {"flip_sensitive_classes": None}
        case name:
            return {"root": root / folders.get(name, name)}


def replace_sources(value: Any, root: Path, split: str) -> Any:
    """Return a config section whose sources have generated data."""
    if isinstance(value, list):
        return [replace_sources(item, root, split) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: replace_sources(item, root, split) for key, item in value.items()}
    if value.keys() & {"root", "file"} and "name" in value:
        options = stand_in(value, root, split)
        value = {} if "name" in options else value  # another source
        value |= {key: str(item) if isinstance(item, Path) else item for key, item in options.items()}
    return value


# --- networks ---------------------------------------------------------------------------------------------------------


def changed(value: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """Return a tree whose leaves went through ``change``, which also receives the key of each."""
    if isinstance(value, dict):
        return {name: changed(item, change, name) for name, item in value.items()}
    return [changed(item, change, key) for item in value] if isinstance(value, list) else change(key, value)


def with_random_teacher(distill: dict[str, Any] | None, root: Path) -> dict[str, Any] | None:
    """Return the config section with a teacher of random weights; None without, or if the teacher is a run."""
    if not distill or not distill.get("weights"):
        return None
    classes = len(list((root / "image_folder").glob("*/")))
    torch.save(timm.create_model(distill["backbone"]["model"], num_classes=classes).state_dict(), root / "teacher.pth")
    return distill | {"weights": str(root / "teacher.pth")}


def small(config: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return a complete config with stand-ins for its data and weights."""
    data = dict(config["data"])
    for split in ("train", "val"):
        data[split] = replace_sources(data[split], root, split)
        if config["task"]["name"] == "detection":
            data[split] = changed(data[split], lambda _, v: v // 8 if type(v) is int and v >= 100 else v)
    data |= {"batch_size": min(data["batch_size"], 16), "num_workers": 0}
    changes = {
        "data": data,
        "task": changed(config["task"], lambda key, value: False if key == "pretrained" else value),
        "train": config["train"] | {"micro_batch_size": None},
        "distill": with_random_teacher(config["distill"], root),
    }
    return {key: value for key, value in config.items() if key != "vars"} | changes


def try_config(config: dict[str, Any], origins: Any, root: Path, limit: int) -> str:
    """Build a complete config and train a step if the network has at most ``limit`` parameters; return the outcome.

    Raises:
        ConfigError: a run would end with this error.
    """
    changed_config = small(config, root)
    run = TrainingRun(**build(changed_config | {"init": None}, origins=origins).keywords)
    batches = plan_training(run.task, run.data, run.train.length, run.shapes, 0)
    with torch.device("meta"):
        model = run.task(batches.dataset_info)
    if sum(param.numel() for param in model.parameters()) <= limit:
        init = config["init"]
        if init or model.needs_weights or changed_config["task"] != config["task"]:
            torch.save(run.task(batches.dataset_info).state_dict(), root / "weights.pth")
            init = (init or {}) | {"weights": str(root / "weights.pth")}
        dry_run(build(changed_config | {"init": init}, origins=origins).keywords)
        return "trained"
    check_model(model, run.train, batches.plan, run.data)
    check_hooks(run.hooks or {})
    make_optimizer(run.optimizer, model, run.param_groups, run.train, run.data.batch_size)
    all_schedules(run.schedule, run.schedules, batches.plan)
    for stream in (run.data.train, *run.data.validation):
        first_samples(stream, 2, size_multiple=model.size_multiple)
    models = Models(model, model if run.ema else None)
    device, info = torch.device("cpu"), batches.dataset_info
    evaluation = plan_evaluation(
        models, run.data, batches.datasets(), run.evaluate, 0, device, run.train.precision, info
    )
    make_best(run.checkpoint.best, evaluation.scores)
    return "built"


def results(system: System, checkout: Path, only: str, root: Path, limit: int) -> Iterator[tuple[Path, str]]:
    """Yield each config with ``trained``, ``built``, ``refused`` or an error."""
    parts, networks = catalog(), set[str]()
    for file in sorted(CONFIGS[system](checkout)):
        if not re.search(only, str(file)):
            continue
        try:
            recipe = convert(system, file)
        except ConfigError:
            yield file, "refused"
            continue
        (root / "recipe.yaml").write_text(recipe.text(), encoding="utf-8")
        overrides = ["vars.model=resnet18"] if "${vars.model}" in recipe.text() else []
        try:
            resolved = check(compose(root / "recipe.yaml", overrides), parts)
            network = json.dumps(
                {key: resolved.config["task"].get(key) for key in ("name", "backbone", "detector")}
                | {"distill": resolved.config["distill"]},
                default=str,
            )
            step = limit * 10**6 * (network not in networks)
            networks.add(network)
            yield file, try_config(resolved.config, resolved.origins, root, step)
        except ConfigError as error:
            yield file, str(error).replace(str(root), "")
        except Exception as error:  # a defect: the table shows it
            yield file, f"{type(error).__name__}: {error}".replace(str(root), "")


def main() -> None:
    """Print the result of each config, and a table of how many have each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=sorted(CONFIGS))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", default="", help="a regular expression that paths match")
    parser.add_argument("--limit", type=int, default=60, help="millions of parameters; larger networks train no step")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for file, result in results(options.system, options.checkout, options.only, Path(folder), options.limit):
            print(f"{file.relative_to(options.checkout)}: {result}", flush=True)
            counts[" ".join(result.split())[:120]] += 1
    print(f"\n{options.system}: {counts.total()} configs\n| result | configs |\n|---|---|")
    for result, count in counts.most_common():
        print(f"| {result} | {count} |")


if __name__ == "__main__":
    main()
