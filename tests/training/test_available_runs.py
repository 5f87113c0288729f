"""Runs whose weights other runs can start from."""

from pathlib import Path

from opabinia.training.available_runs import RunWeights, available_runs

CONFIG = "task:\n  name: classification\n  backbone: {name: timm, model: resnet18}\n"


def make_run(folder: Path, config: str = CONFIG, pointer: str | None = "best") -> None:
    checkpoint = folder / "checkpoints" / "step-00000010"
    checkpoint.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (checkpoint / "model.safetensors").write_bytes(b"123")
    if pointer is not None:
        (folder / "checkpoints" / pointer).write_text(checkpoint.name)


def test_runs_are_listed_with_their_recipe_and_task(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root / "flowers" / "default")
    make_run(root / "video" / "digits" / "first", "task: video\n", pointer="last")
    make_run(root / "broken" / "default", "task: [")
    make_run(root / "unsaved" / "default", pointer=None)
    assert available_runs(root) == [
        RunWeights(root / "broken" / "default", "broken", "", "", 3),
        RunWeights(root / "flowers" / "default", "flowers", "classification", "resnet18", 3),
        RunWeights(root / "video" / "digits" / "first", "video/digits", "video", "", 3),
    ]
    assert available_runs(root)[1].summary == "classification, resnet18, recipe flowers"


def test_sharded_checkpoints_are_summed(tmp_path: Path) -> None:
    make_run(tmp_path / "mine" / "default")
    checkpoint = tmp_path / "mine" / "default" / "checkpoints" / "step-00000010"
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model").mkdir()
    for shard in ("0.safetensors", "1.safetensors"):
        (checkpoint / "model" / shard).write_bytes(b"12")
    assert [run.size for run in available_runs(tmp_path)] == [4]


def test_no_folder_has_no_runs(tmp_path: Path) -> None:
    assert available_runs(tmp_path / "runs") == []
