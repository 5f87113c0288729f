"""``opabinia plan``, and ``opabinia train`` on a folder of data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.data.layouts.unlabeled import UnlabeledImages
from tests.cli.conftest import CommandResult

Command = Callable[..., CommandResult]
QUICK = ("train.length=4it", "train.num_threads=1", "data.num_workers=0", "data.batch_size=8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 30 images of 24 x 24 pixels for each of two classes: bright and dark noise."""
    folder = tmp_path_factory.mktemp("data") / "shades"
    generator = np.random.default_rng(0)
    for name, mean in (("bright", 180), ("dark", 70)):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            pixels = generator.normal(mean, 20, (24, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def planned(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe for the folder, for another machine: nothing is measured."""
    from opabinia.cli import main

    recipe = tmp_path_factory.mktemp("plan") / "mine.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(data), "--budget", "30m", "--device-memory", "24GiB", "--gpus", "2", "--out", str(recipe)])
    assert ended.value.code == 0
    return recipe


def test_a_plan_holds_out_samples_and_can_be_checked(opabinia: Command, planned: Path, data: Path) -> None:
    text = planned.read_text()
    assert "2 x GPU with 24 GiB" in text and "12 of 60 samples are held out" in text
    held_out = json.loads((planned.parent / "mine.split.json").read_text())["val"]
    assert len(held_out) == 12 and sum(name.startswith("dark") for name in held_out) == 6
    assert opabinia("config", "check", planned).status == 0


def test_the_same_arguments_give_the_same_recipe(opabinia: Command, planned: Path, data: Path, tmp_path: Path) -> None:
    words = ["plan", data, "--budget", "30m", "--device-memory", "24GiB", "--gpus", "2"]
    assert opabinia(*words, "--out", tmp_path / "mine.yaml").status == 0
    texts = [recipe.read_text().partition("\nbase: ")[2] for recipe in (planned, tmp_path / "mine.yaml")]
    assert texts[1] == texts[0].replace(str(planned.parent), str(tmp_path))


def test_explanations(opabinia: Command, planned: Path) -> None:
    result = opabinia("plan", planned, "--explain", "optimizer.lr")
    assert result.status == 0
    assert "rule: Peak learning rate" in result.out and "source: " in result.out and "with " in result.out
    result = opabinia("plan", planned, "--explain", "optimizer.lrr")
    assert result.status == 2 and "did you mean 'optimizer.lr'?" in result.err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--budget", "soon"], "--budget: not a time such as 30m, 1.5h or 2d (found 'soon')"),
        (["--budget", "3s"], "--budget: at least 30s are needed (found '3s')"),
        (["--task", "clasification"], "did you mean 'classification'?"),
        (["--gpus", "4"], "--gpus: is for another machine: give --device-memory, too"),
        (["--device-memory", "big"], "--device-memory: 'big' is no memory of a GPU"),
        (["--device-memory", "8GiB", "--search", "4"], "search: the short runs are made on this machine"),
        (["--budget", "30s", "--search", "6"], "a third of 0:30 is too short for 6 runs of at least 20 steps each"),
        (["--out", "taken.yaml"], "--out: taken.yaml exists; give another name"),
    ],
)
def test_wrong_options(
    opabinia: Command, data: Path, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opabinia.training.autoconfig.probe.MOST_STEPS", 3)
    monkeypatch.chdir(tmp_path)
    Path("taken.yaml").write_text("base: classification/digits\n")
    result = opabinia("plan", data, *words)
    assert result.status == 2 and message in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken.yaml"]


@pytest.mark.parametrize(
    "recipe, message",
    [
        (
            "classification/digits",
            "--budget: is for a folder of data, and classification/digits is a recipe; remove it",
        ),
        ("no/data", "there is no file or folder no/data"),
    ],
)
def test_options_for_data_are_refused_for_recipes(opabinia: Command, recipe: str, message: str) -> None:
    result = opabinia("train", recipe, "--budget", "5m")
    assert result.status == 2 and message in result.err


def test_small_objects_in_large_images_are_planned_in_tiles(opabinia: Command, tmp_path: Path) -> None:
    """Images of 2000 pixels with objects of 16 pixels."""
    (tmp_path / "annotations").mkdir()
    boxes = [
        {"bbox": [x, y, 16, 16], "area": 256, "iscrowd": 0} for x in range(0, 2000, 400) for y in range(0, 2000, 400)
    ]
    for split, count in (("train", 3), ("val", 1)):
        (tmp_path / split).mkdir()
        for number in range(count):
            Image.new("RGB", (2000, 2000), (90 + number, 90, 90)).save(tmp_path / split / f"{number}.jpg")
        images = [{"id": at, "file_name": f"{at}.jpg", "width": 2000, "height": 2000} for at in range(count)]
        annotations = [
            {"id": at * len(boxes) + number, "image_id": at, "category_id": 1, **box}
            for at in range(count)
            for number, box in enumerate(boxes)
        ]
        content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "sign"}]}
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    recipe = tmp_path / "mine.yaml"
    words = ["--budget", "1h", "--device-memory", "24GiB", "--out", recipe]
    assert opabinia("plan", tmp_path, *words).status == 0
    text = recipe.read_text()
    assert "tile: 800  # half of the objects would be narrower than 6.4 pixels" in text
    assert "tiles: {size: '${vars.tile}', overlap: 0.04}" in text
    assert opabinia("config", "check", recipe).status == 0


def test_many_images_without_labels_are_trained_on_first(
    opabinia: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = UnlabeledImages("more/unlabeled", 5000)
    monkeypatch.setattr("opabinia.training.autoconfig.plan.unlabeled_images", lambda *options: found)
    words = ["--budget", "2h", "--device-memory", "24GiB", "--out", tmp_path / "mine.yaml"]
    result = opabinia("plan", data, *words)
    assert result.status == 0 and "5,000 images without labels beside 48 with labels" in result.err
    first, second = (line for line in (tmp_path / "mine.yaml").read_text().splitlines() if line.startswith("#   opab"))
    assert first == "#   opabinia train more/unlabeled --task selfsup --budget 60m --name pretraining"
    assert second.endswith("--budget 60m 'init={weights: runs/unlabeled/pretraining, target_prefix: backbone}'")


def test_several_machines_do_not_plan(opabinia: Command, data: Path, tmp_path: Path) -> None:
    words = ["--nproc", "1", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "localhost:29500"]
    result = opabinia("train", data, "--out", tmp_path, *words)
    assert result.status == 2 and "write a recipe first (opabinia plan" in result.err


def test_train_on_a_folder(opabinia: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans, measures, trains and concludes; the same command refuses to overwrite, and resumes the same plan."""
    monkeypatch.setattr("opabinia.training.autoconfig.probe.MOST_STEPS", 3)
    result = opabinia("train", data, "--budget", "30s", "--out", tmp_path, *QUICK)
    assert result.status == 0, result.err
    assert "2 class folders" in result.err and "samples/s in training" in result.err
    assert "without training: always answering" in result.out and "95 % confidence" in result.out
    run, recipe = tmp_path / "shades" / "default", tmp_path / "shades" / "default.plan" / "shades.yaml"
    assert (run / "results.json").is_file()
    before = recipe.read_bytes()
    assert "holds a run" in opabinia("train", data, "--out", tmp_path, *QUICK).err
    resumed = opabinia("train", data, "--out", tmp_path, *QUICK, "train.length=6it", "--resume")
    assert resumed.status == 0 and "from step 4" in resumed.err
    assert recipe.read_bytes() == before


def test_folds_of_a_folder_have_one_plan(
    opabinia: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opabinia.training.autoconfig.probe.MOST_STEPS", 3)
    words = ["train", data, "--budget", "30s", "--folds", "2", "--out", tmp_path, *QUICK]
    result = opabinia(*words, "--json")
    assert result.status == 0, result.err
    (recipe,) = tmp_path.rglob("*.plan/*.yaml")
    written = recipe.stat().st_mtime_ns
    held_out = [set(json.loads((recipe.parents[1] / f"default-folds/fold{n}.json").read_text())["val"]) for n in (1, 2)]
    own = set(json.loads(recipe.with_suffix(".split.json").read_text())["val"])
    assert all(held_out) and not held_out[0] & held_out[1], "each sample is held out once"
    assert not own & set.union(*held_out), "the validation data of the plan is not trained on"
    assert opabinia(*words).status == 0
    assert recipe.stat().st_mtime_ns == written


def test_fit(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import opabinia

    monkeypatch.setattr("opabinia.training.autoconfig.probe.MOST_STEPS", 3)
    with pytest.raises(opabinia.ConfigError, match="budget: not a time"):
        opabinia.fit(data, budget="soon", out=tmp_path)
    run = opabinia.fit(data, budget="30s", overrides=QUICK, out=tmp_path)
    assert max(score for name, score in run.scores.items() if name.endswith("/top1")) >= 0.5
    assert run.predictor(data / "dark" / "0.png").readable["top"][0]["class"] in ("bright", "dark")


def test_search(opabinia: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short runs are trained, listed with the plan and not repeated by a resumed run; nothing else is left."""
    monkeypatch.setattr("opabinia.training.autoconfig.probe.MOST_STEPS", 3)
    monkeypatch.setattr("opabinia.training.autoconfig.search.START_SECONDS", 0.0)
    monkeypatch.setattr("opabinia.training.autoconfig.search.LEAST_STEPS", 0)
    monkeypatch.setattr("opabinia.training.autoconfig.search.first_run_seconds", lambda *options: 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    words = ["train", data, "--budget", "30s", "--search", "2", "--out", tmp_path / "runs", *QUICK]
    result = opabinia(*words)
    assert result.status == 0, result.err
    assert result.err.count("\nsearch  ") == 3 and "steps: val/top1" in result.err
    recipe = tmp_path / "runs" / "shades" / "default.plan" / "shades.yaml"
    assert "in a short run; none of 2" in recipe.read_text() and "of short runs and then" in recipe.read_text()
    explained = opabinia("plan", recipe, "--explain", "optimizer.lr").out
    assert explained.count("short run with vars.size 24, optimizer.lr ") == 2
    resumed = opabinia(*words, "train.length=6it", "--resume")
    assert resumed.status == 0 and "\nsearch  " not in resumed.err
    assert not list((tmp_path / "temporary").iterdir())


def test_an_interrupted_search_writes_no_recipe(
    opabinia: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opabinia.runtime.signals import Stopped

    def interrupted(*arguments: object, **options: object) -> None:
        raise Stopped("SIGINT", 130)

    monkeypatch.setattr("opabinia.training.autoconfig.probe.MOST_STEPS", 3)
    monkeypatch.setattr("opabinia.training.autoconfig.plan.run_search", interrupted)
    result = opabinia("plan", data, "--budget", "30m", "--search", "2", "--out", tmp_path / "mine.yaml")
    assert result.status == 130 and "stopped in the search: no recipe is written" in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_each_broken_file_is_a_warning_once(opabinia: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources of both splits are made several times, and each has a map without an image."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(9):
            for name, most in (("images", 256), ("labels", 2)):
                pixels = generator.integers(0, most, (32, 32), dtype=np.uint8)
                file = Path("data") / split / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)
        Path("data", split, "images", "8.png").unlink()
    result = opabinia("train", "data", "--budget", "30s", *QUICK)
    assert result.status == 0
    for split in ("train", "val"):
        warning = f"data/{split}: 1 label map without an image (labels/8.png: not used)"
        assert result.err.count(warning) == 1
        assert warning in Path("runs", "data", "default", "train.log").read_text()
