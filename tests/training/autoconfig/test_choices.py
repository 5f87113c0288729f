"""Recipes that are chosen for a situation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import catalog, check, compose
from opabinia.data.layouts.layout import TASK_NAMES, TaskName
from opabinia.evaluation.detection.coco import COCO_KEYPOINTS
from opabinia.training.autoconfig.choices import choose
from opabinia.training.autoconfig.recipe import recipe_text
from opabinia.training.autoconfig.rules import REFERENCE
from opabinia.training.autoconfig.situation import GIB, Machine, Speed
from tests.training.autoconfig.situations import CPU, DATA, GPU, situation


def values(**options: Any) -> dict[str, Any]:
    """Return the chosen values by key."""
    return {choice.key: choice.value for choice in choose(situation(**options), DATA).choices}


@pytest.mark.parametrize("samples", [300, 1_000_000])
@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("task", TASK_NAMES)
def test_recipes_are_valid(task: TaskName, machine: Machine, samples: int, tmp_path: Path) -> None:
    chosen = choose(situation(task, machine=machine, val_samples=samples), DATA)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(chosen, ["opabinia train recipe.yaml"]), encoding="utf-8")
    tree = compose(recipe)
    config = check(tree, catalog(tree.plugins)).config
    assert config["train"]["length"] == f"{chosen.steps}it"
    assert config["data"]["train"]["source"]["root"] == "data/train"


def test_equal_situations_give_equal_recipes() -> None:
    first, second = (recipe_text(choose(situation("detection"), DATA), []) for _ in range(2))
    assert first == second


def test_recipe_has_reasons_and_short_lines() -> None:
    text = recipe_text(choose(situation(), DATA), ["opabinia train x.yaml"])
    assert text.startswith("# opabinia train x.yaml\n\nbase: classification/image_folder\n")
    assert "# 2 class folders in train/ and val/" in text
    assert max(map(len, text.splitlines())) <= 120


def test_paths_with_references_are_escaped(tmp_path: Path) -> None:
    data = replace(DATA, train={"name": "image_folder", "root": "a${b}"})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_text(choose(situation(), data), []), encoding="utf-8")
    assert compose(recipe).root.plain()["data"]["train"]["source"]["root"] == "a${b}"


def test_of_much_validation_data_a_part_is_evaluated() -> None:
    few, many = values(), values(val_samples=1_000_000)
    source = many["data.val.source"]
    assert source["name"] == "random_part" and source["source"] == few["data.val.source"]
    assert source["fraction"] < 0.01
    assert int(many["train.length"][:-2]) > 0.8 * int(few["train.length"][:-2])


def test_without_validation_data() -> None:
    choices = {choice.key: choice.value for choice in choose(situation("detection"), replace(DATA, val=None)).choices}
    assert choices["data.val"] is None
    assert not any(key.startswith(("data.val.", "checkpoint.best")) for key in choices)


@pytest.mark.parametrize(("task", "best"), [("instance_segmentation", "mask_AP"), ("keypoints", "keypoint_AP")])
def test_the_score_of_the_task_selects_the_best_checkpoint(task: Any, best: str) -> None:
    choices = {choice.key: choice.value for choice in choose(situation(task), DATA).choices}
    assert choices["checkpoint.best"] == f"val_ema/{best}" and choices["ema"]


def test_larger_budgets_choose_larger_images_and_longer_runs() -> None:
    sizes = [values(budget=budget)["vars.size"] for budget in (60.0, 600.0, 6000.0)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] <= 224


def test_measured_speed_decides() -> None:
    fast, slow = (
        Speed(model=REFERENCE, size=224, train=seconds, evaluate=seconds / 3, threads=2) for seconds in (0.01, 1.0)
    )
    assert values(speeds=(fast,))["vars.size"] > values(speeds=(slow,))["vars.size"] == 96
    assert values(speeds=(fast,))["train.num_threads"] == 2


@pytest.mark.parametrize(
    "classes, flip",
    [
        (("cat", "dog"), True),
        (("phone", "someone", "charger"), True),
        (("number_plate", "car", "bus"), True),
        (tuple("0123456789"), False),
        (("12", "30"), False),
        (("character01", "character02"), False),
        (("Letter_a", "Letter_b"), False),
        (("one", "two", "three"), False),
        (("turn left", "turn right"), False),
    ],
)
def test_mirroring(classes: tuple[str, ...], flip: bool) -> None:
    transforms = values(classes=classes)["data.train.transforms"]
    assert ({"name": "RandomHorizontalFlip"} in transforms) == flip


@pytest.mark.parametrize(
    ("keypoints", "flip"),
    [(("nose", "left_eye", "right_eye"), True), (("nose", "tail"), False), (("keypoint_0", "keypoint_1"), False)],
)
def test_keypoints_without_sides_are_not_mirrored(keypoints: tuple[str, ...], flip: bool) -> None:
    transforms = values(task="keypoints", classes=("cat",), keypoints=keypoints)["data.train.transforms"]
    assert ({"name": "RandomHorizontalFlip"} in transforms) == flip


def test_tiny_images_of_different_sizes_are_scaled_before_they_are_cropped() -> None:
    chosen = values(short_sides=(17.0, 22.0, 30.0, 40.0, 111.0), long_sides=(30.0, 40.0, 60.0, 80.0, 200.0))
    assert chosen["vars.size"] == 32
    first, second, *_ = chosen["data.train.transforms"]
    assert first == {"name": "Resize", "size": "${vars.size}"}
    assert (second["name"], second["size"]) == ("RandomCrop", "${vars.size}")


def test_tiny_images_keep_their_size() -> None:
    chosen = values(short_sides=(28.0,) * 5, long_sides=(28.0,) * 5)
    assert (chosen["vars.size"], chosen["task.backbone.model"]) == (28, "resnet10t")
    assert chosen["task.backbone.options"]["replace_stem_pool"] is False


def test_without_weights_training_starts_from_scratch() -> None:
    chosen = values(weights=())
    assert chosen["task.backbone.model"] == "resnet10t" and "task.backbone.pretrained" not in chosen


def test_small_objects_need_larger_images() -> None:
    small, large = (
        values(task="detection", budget=36_000.0, object_sides=(5.0, side, 2 * side, 3 * side, 400.0))["vars.test"]
        for side in (20.0, 100.0)
    )
    assert small > large


def test_large_objects_get_more_pixels_where_the_budget_allows_many_epochs() -> None:
    sides = (50.0, 120.0, 150.0, 200.0, 400.0)
    short, long = (
        values(task="detection", budget=budget, object_sides=sides)["vars.test"] for budget in (60.0, 36_000.0)
    )
    assert short == 128 and long == 320


@pytest.mark.parametrize(
    "task, facts, detector",
    [
        ("detection", {}, "fcos"),
        ("detection", {"oriented": True}, "rotated_fcos"),
        ("instance_segmentation", {}, "mask_rcnn"),
        ("keypoints", {}, "keypoint_rcnn"),
    ],
)
def test_detectors(task: TaskName, facts: dict[str, Any], detector: str) -> None:
    assert values(task=task, **facts)["task.detector"]["name"] == detector


def test_half_of_the_objects_stay_visible() -> None:
    def size(median: float, budget: float = 600.0) -> Any:
        sides = (4.0, 9.0, median, 60.0, 80.0)
        return values(task="detection", budget=budget, samples=50_000, object_sides=sides)["vars.test"]

    assert size(40.0) == 128  # of 400 pixels
    assert size(20.0) == 256
    assert 256 < size(10.0) <= 416
    assert size(20.0, 10.0) == 128  # the budget is for less than 500 samples


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_many_objects_of_an_image_are_kept_and_counted(machine: Machine) -> None:
    def planned(most: float, task: TaskName = "detection", **facts: Any) -> dict[str, Any]:
        return values(task=task, machine=machine, objects_per_image=(1.0, 2.0, 5.0, 9.0, most), **facts)

    assert planned(150.0)["task.detector"]["max_detections"] == 300
    assert planned(150.0)["task.evaluator"] == {"name": "coco", "max_detections": [1, 10, 300]}
    assert planned(9000.0)["task.detector"]["max_detections"] == 1000
    few = planned(50.0)
    assert "max_detections" not in few["task.detector"] and "task.evaluator" not in few
    oriented = planned(150.0, oriented=True)
    assert "max_detections" not in oriented["task.detector"] and "task.evaluator" not in oriented
    masks = planned(150.0, "instance_segmentation")["task.detector"]
    assert masks["box"]["max_detections"] == 300
    if machine == CPU:
        assert masks["proposals"]["post_nms_topk_test"] == 300 and masks["proposals"]["pre_nms_topk_test"] == 600
        assert planned(40.0, "instance_segmentation")["task.detector"]["proposals"]["post_nms_topk_test"] == 80


def test_keypoints_are_evaluated_at_the_distances_of_coco_or_at_the_same() -> None:
    other = values(task="keypoints", keypoints=("left tip", "right tip"))
    assert other["task.evaluator"] == {"name": "coco", "sigmas": [0.05, 0.05]}
    assert "task.evaluator" not in values(task="keypoints", keypoints=COCO_KEYPOINTS)
    assert "task.evaluator" not in values(task="detection", keypoints=("tip",))


def test_short_runs_of_detectors_have_small_batches_and_frozen_norms() -> None:
    machine = replace(CPU, memory=16 * GIB)
    short, long = (values(task="detection", machine=machine, budget=budget) for budget in (20.0, 36_000.0))
    assert (short["data.batch_size"], long["data.batch_size"]) == (2, 8)
    assert short["task.freeze_norms"] and short["optimizer.lr"] < long["optimizer.lr"] == 0.001
    assert "task.freeze_norms" not in values(task="detection", weights=())


def test_batches_of_identities() -> None:
    chosen = values(task="reid", identities=40, images_per_identity=(2.0, 4.0, 5.0, 9.0, 20.0))
    assert chosen["data.sampler"] == {"name": "identities", "instances": 4}
    assert chosen["data.batch_size"] == 32


def test_rare_classes_are_drawn_more_often() -> None:
    assert values(per_class=(10, 2990))["data.sampler"] == {"name": "weighted", "weighting": "sqrt"}
    assert "data.sampler" not in values(per_class=(1000, 2000))


def test_files_that_cannot_be_read_are_skipped() -> None:
    assert "data.on_error" not in values(examined=3000)
    assert values(examined=3000, unreadable=("cat/3.jpg",))["data.on_error"] == "skip"
    assert values(examined=2000)["data.on_error"] == "skip"


def test_batches_fit_into_the_memory() -> None:
    small, large = (
        values(machine=replace(GPU, memory=gib * 2**30), budget=36_000.0)["data.batch_size"] for gib in (4, 80)
    )
    assert small < large


@pytest.mark.parametrize(
    "model, decay", [("convnext_tiny.in12k_ft_in1k", 0.9), ("resnet50.a1_in1k", None), (None, None)]
)
def test_layers_of_large_pretrained_networks_have_their_own_learning_rates(
    model: str | None, decay: float | None
) -> None:
    chosen = values(machine=GPU, budget=36_000.0, weights=() if model is None else (model,))
    assert chosen["param_groups"].get("layer_decay") == decay


def tiny_objects(median: float = 16.0, large: float = 18.0, short: float = 2000.0, **facts: Any) -> dict[str, Any]:
    """Return the values for large images with small objects."""
    sides = (14.0, 15.0, median, large, 2 * large)
    defaults = {"object_sides": sides, "short_sides": (short,) * 5, "long_sides": (short * 1.2,) * 5}
    return values(**{"task": "detection", "budget": 36_000.0, **defaults, **facts})


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_small_objects_in_large_images_are_found_in_tiles(machine: Machine) -> None:
    chosen = tiny_objects(machine=machine)
    size = chosen["vars.tile"]
    assert chosen["data.train.transforms"][0]["name"] == "random_crop" and chosen["data.val.transforms"] == []
    assert chosen["task.tiles"]["overlap"] == pytest.approx(2 * 18 / size, abs=0.01)
    assert not {"vars.test", "vars.short", "vars.longest"} & chosen.keys()


@pytest.mark.parametrize(
    "facts",
    [
        {"median": 60.0, "large": 80.0},  # wide enough in a resized image
        {"short": 600.0},  # hardly larger than resized ones
        {"large": 900.0},  # larger than a tile
        {"budget": 60.0},  # an evaluation takes longer
        {"object_sides": None},
    ],
)
def test_other_images_are_resized(facts: dict[str, Any]) -> None:
    chosen = tiny_objects(**facts)
    assert "task.tiles" not in chosen and "vars.test" in chosen


def test_checkpoints_are_saved_with_each_evaluation_and_nothing_stops_the_run_early() -> None:
    chosen = values()
    assert chosen["checkpoint.every"] == chosen["evaluate"]["every"]
    assert "early_stop" not in str(chosen)
