"""The plug-ins in docs/examples: a new task works with every command, without a change inside the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from opabinia.data.sources import Digits, DigitScenes
from tests.faults.programs import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

COMMANDS = """
import sys
from opabinia.cli import main

sys.path.insert(0, sys.argv[1])
config, run, images, out = sys.argv[2:]
small = ["data.num_workers=0", "train.length=4it", "data.batch_size=8", "loggers=[]", "evaluate.every=4it"]
for words in (
    ["train", config, *small, "--out", out],
    ["eval", run],
    ["predict", run, images],
    ["report", run],
    ["export", run, "--format", "torch"],
    *([["predict", run, "--split", "val", "--max-images", "3"]] if "segmentation" in config else []),
):
    sys.argv = ["opabinia", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.mark.parametrize("name", ["image_regression", pytest.param("semantic_segmentation", marks=pytest.mark.slow)])
def test_all_commands_work(name: str, tmp_path: Path, warm_server: Server) -> None:
    """Run in a new process: plug-ins register their parts for the whole process."""
    images = tmp_path / "images"
    images.mkdir()
    source = Digits(split="val") if name == "image_regression" else DigitScenes(split="val")
    for number in range(3):
        pixels = Image.fromarray(source[number]["image"][0].numpy())
        pixels.resize((32, 32) if name == "image_regression" else (128, 128)).save(images / f"{number}.png")
    run = tmp_path / "runs" / name / "default"
    arguments = map(str, [EXAMPLES, EXAMPLES / f"{name}.yaml", run, images, tmp_path / "runs"])
    result = warm_server.run(*arguments, code=COMMANDS)
    scores = json.loads((run / "results.json").read_text())
    assert set(scores) == ({"val/mae"} if name == "image_regression" else {"val/miou", "val/accuracy"})
    lines = [json.loads(line) for line in (run / "predictions" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 3 and (run / "predictions" / "sheet-1.png").is_file()
    assert (run / "export" / "model.pt2").is_file()
    index = json.loads((run / "pictures" / "index.json").read_text())
    titles = [group["title"] for group in index["groups"]]
    assert not index["missing"] and titles[0] == "Some of the training data"
    assert "opabinia export" in result.out and "linear_probe" not in result.out, "the next commands"
    if name == "image_regression":
        assert all(isinstance(line["value"], float) for line in lines)
        assert titles[1:] == ["Predictions"]
    else:
        assert sorted(path.name for path in (run / "predictions" / "images").iterdir()) == [
            f"{number:05d}-{number}.png" for number in range(3)
        ]
        assert titles[1:] == ["Ground truth and predictions"]
        assert len(list((run / "predictions" / "val" / "images").iterdir())) == 3
