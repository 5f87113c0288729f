"""The command that evaluates a planned run on the test data of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from opabinia.config import catalog, check, compose
from opabinia.data.layouts.recognition import recognize
from opabinia.training.autoconfig.plan import _test_options, _tolerant, open_source, plan
from opabinia.training.autoconfig.situation import GIB, other_machine
from opabinia.training.evaluation_data import redirect_source
from tests.data.layouts.cases import CASES
from tests.data.layouts.folders import Case, Maker, coco

WITH_TEST = [case for case in CASES if case.test and case.task != "reid"]


@pytest.mark.parametrize("case", WITH_TEST, ids=lambda case: case.name)
def test_the_test_data_of_every_layout_is_evaluated(case: Case, tmp_path: Path) -> None:
    root = tmp_path / "my data"
    root.mkdir()
    case.make(Maker(root))
    layout = _tolerant(recognize(root))
    assert layout.test is not None
    val = layout.val or {"name": "subset", "source": dict(layout.train), "file": "split.json", "split": "val"}
    options = _test_options(layout.test, val)
    if options[0] == "--data":
        given = check(compose({"source": val}), catalog(), "opened_source").config["source"]
        source = open_source(redirect_source(given, Path(options[1]), ""))
    else:
        assert options[:2] == ["--name", "test"]
        override = options[2].removeprefix("data.val.")
        tree = compose({"source": val}, [override])
        source = open_source(check(tree, catalog(), "opened_source").config["source"])
    assert (len(source), source.classes) == (case.test, open_source(layout.test).classes)


def test_annotations_are_read_once_for_the_data_and_its_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = Maker(tmp_path)
    make.images("data/images/{1..12}.jpg")
    content = coco([f"images/{number}.jpg" for number in range(1, 13)])
    content["annotations"][0]["bbox"][2] = 1000
    make.json("data/annotations.json", content)
    machine = other_machine(1, 24 * GIB)
    saved = plan(str(tmp_path / "data"), tmp_path / "recipe.yaml", budget=600, machine=machine)
    assert saved.data.val is not None and saved.data.val["name"] == "subset"
    assert caplog.text.count("1 box that extends beyond the image") == 1
