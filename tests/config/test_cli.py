import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from opabinia.cli.config import _with_schema, app
from opabinia.config import Catalog
from opabinia.runtime.durations import Duration
from tests.config.toys import CATALOG, RECIPE, Training


@pytest.fixture(autouse=True)
def toy_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the toy catalog, and write a recipe into the working directory."""
    monkeypatch.setattr("opabinia.config.catalog", lambda plugins=(): CATALOG)
    monkeypatch.setattr("opabinia.config.paths.check_run", lambda resolved: None)  # the toys have no run
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(RECIPE)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def lines(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_check_reports_that_there_are_no_problems() -> None:
    old = run("check", "r.yaml", "task.loss.eps=0.1")
    assert "warning: command line: task.loss.eps=0.1: task.loss.eps is deprecated: use task.loss.lab" in old.stderr
    unread = "in the config; no data were read (--build reads annotations, data check everything)"
    assert lines("check", "r.yaml") == [f"r.yaml: no problems {unread}"]


def test_check_reports_all_problems_on_stderr() -> None:
    result = run("check", "r.yaml", "data.batch_size=0", "optimizer.lrr=1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "command line: data.batch_size=0: data.batch_size: expected an integer >= 1 (found 0)",
        "command line: optimizer.lrr=1: optimizer.lrr: unknown key (found 1); did you mean 'lr'? "
        "sgd knows: lr, momentum, nesterov",
    ]


def test_show_prints_a_config_that_shows_the_same() -> None:
    printed = lines("show", "r.yaml", "train.length=3ep")
    assert "train: {length: 3ep, device: auto}" in printed
    Path("complete.yaml").write_text("\n".join(printed))
    assert lines("show", "complete.yaml") == printed


def test_show_origins() -> None:
    origins = {line.split(":")[0]: line.split("#")[1].strip() for line in lines("show", "--origin", "r.yaml", "seed=1")}
    assert origins["train.length"] == "r.yaml:11"
    assert origins["train.device"] == "signature's default"
    assert origins["seed"] == "command line: seed=1"


def test_diff() -> None:
    assert lines("diff", "r.yaml", "r.yaml") == []
    Path("other.yaml").write_text("base: r.yaml\noptimizer: adam\ndata: {batch_size: 8}\n")
    assert lines("diff", "r.yaml", "other.yaml") == [
        "data.batch_size: 32 -> 8",
        "optimizer.name: 'sgd' -> 'adam'",
        "optimizer.lr: 0.1 -> 0.001",
        "optimizer.momentum: 0.0 -> (missing)",
        "optimizer.nesterov: false -> (missing)",
        "optimizer.betas.0: (missing) -> 0.9",
        "optimizer.betas.1: (missing) -> 0.999",
    ]


def test_list() -> None:
    assert "loss       cross_entropy, focal" in lines("list")
    listed = lines("list", "loss")
    assert listed[:2] == ["cross_entropy  Toy cross entropy.", "    label_smoothing: a number >= 0 and <= 1 = 0.0"]
    assert "focal  Toy focal loss." in listed
    assert lines("list", "losses") == listed, "the plural is accepted"
    assert lines("list", "loss", "cross_entropy") == [
        "loss cross_entropy",
        "  Toy cross entropy.",
        "",
        "  label_smoothing: a number >= 0 and <= 1; default 0.0",
        "      spread over all classes.",
        "",
        "  given at run time: logits, target",
        "",
        "  old names: eps (now label_smoothing)",
    ]
    assert "  model: text; required" in lines("list", "backbone", "timm")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "los"], "there is no family 'los'; did you mean 'loss'?"),
        (["list", "loss", "fokal"], "there is no loss 'fokal'; did you mean 'focal'? there are: cross_entropy, focal"),
        (["show", "nothing"], "nothing: there is no such recipe"),
        (["diff", "r.yaml", "s.yaml"], "s.yaml: there is no such file"),
    ],
)
def test_mistakes_exit_with_status_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_schema_as_a_file_and_recipes_that_name_it(tmp_path: Path) -> None:
    assert json.loads("\n".join(lines("schema")))["title"] == "opabinia train"
    path = tmp_path / "recipes" / "opabinia.schema.json"
    printed = lines("schema", "--out", str(path))
    assert printed == [
        "first line of a recipe in the same folder: # yaml-language-server: $schema=opabinia.schema.json"
    ]
    assert json.loads(path.read_text())["title"] == "opabinia train"
    recipe = tmp_path / "recipes" / "a" / "b.yaml"
    assert _with_schema(recipe, "x: 1\n") == "# yaml-language-server: $schema=../opabinia.schema.json\nx: 1\n"
    assert _with_schema(tmp_path / "elsewhere.yaml", "x: 1\n") == "x: 1\n"


def test_mistakes_as_json() -> None:
    assert lines("check", "r.yaml", "--json") == ["[]"]
    result = run("check", "r.yaml", "optimizer.lr=x", "foo=1", "--json")
    assert result.exit_code == 2 and result.stderr == ""
    key_problem, value_problem = json.loads(result.stdout)
    assert (value_problem["place"], value_problem["key"], value_problem["value"]) == (
        "command line: optimizer.lr=x",
        "optimizer.lr",
        "'x'",
    )
    assert (key_problem["key"], key_problem["message"]) == ("foo", "unknown key")


def test_a_plugin_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Catalog(CATALOG.entries, {"my": "ModuleNotFoundError: No module named 'my'"})
    monkeypatch.setattr("opabinia.config.catalog", lambda plugins=(): failed)
    result = run("list", "--plugin", "my")
    assert result.exit_code == 2
    assert "my: cannot be imported: ModuleNotFoundError" in result.stderr


def test_check_build_passes_the_built_parts_to_the_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Mapping[str, Any]] = []

    def dry_run(parts: Mapping[str, Any]) -> None:
        calls.append(parts)
        parts["task"](3)

    run_module = ModuleType("opabinia.training.dry_run")
    run_module.dry_run = dry_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opabinia.training.dry_run", run_module)
    monkeypatch.setattr(sys.modules["opabinia.config.build"], "all_parts", lambda plugins=(): CATALOG)
    assert lines("check", "--build", "r.yaml") == ["r.yaml: no problems"]
    assert calls[0]["train"] == Training(Duration(12, "ep"))
    result = run("check", "--build", "r.yaml", "task.backbone.model=unknown")
    assert result.exit_code == 2
    assert "command line: task.backbone.model=unknown: task.backbone: there is no model 'unknown'" in result.stderr


@pytest.mark.slow
def test_check_build_of_a_packaged_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert lines("check", "--build", "classification/digits") == ["classification/digits: no problems"]
    result = run("check", "--build", "classification/digits", "task.backbone.model=test_resnt")
    assert result.exit_code == 2 and "task.backbone" in result.stderr
