"""The page of the report: a single file, robust to damaged run folders, without injected markup or scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from opabinia.cli.commands import app
from opabinia.config import ConfigError
from opabinia.training.run_folder import resolve
from opabinia.visualization import report as report_package
from opabinia.visualization.report import default_path, write_report
from opabinia.visualization.report.charts import chart_of
from opabinia.visualization.report.page import page_of
from opabinia.visualization.report.run_data import read_run
from opabinia.visualization.report.tables import MAKERS
from tests.visualization.report.conftest import CONFIG, rows_of

Make = Callable[..., Path]


class Elements(HTMLParser):
    """Names and attributes of all elements, and text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def data_of(page: str) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(data)


def test_a_run_is_reported(make: Make) -> None:
    folder = make(state={"format": 1, "total_steps": 20, "dataset_info": {"samples": 80, "classes": ["cat", "dog"]}})
    page = page_of([folder])
    text = Elements(page).text
    for words in ("val/top1", "0.7500", "Most confused", "python", "3.11.7", "optimizer.lr", "the loader is slow"):
        assert words in text
    charts = {chart["title"]: chart for chart in data_of(page)["charts"]}
    assert {"top1", "loss", "learning rate", "samples per second", "gradient norm"} <= set(charts)
    assert [line["name"] for line in charts["top1"]["lines"]] == ["train", "val"]
    assert data_of(page)["places"][charts["loss"]["lines"][0]["x"]]["step"] == [10, 20]


def test_the_page_loads_no_external_resources(make: Make) -> None:
    page = page_of([make()])
    for name, attributes in Elements(page).elements:
        address = attributes.get("src") or attributes.get("href") or ""
        assert address.startswith(("data:", "#")) or not address, (name, address)
    assert "default-src 'none'" in page
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_batches_over_time(make: Make) -> None:
    run = make()
    lines = [[[0, 4], [2, 4], [2, 8], [3, 8]], [[0, 2], [3, None]], "?", [[1]]]
    batches = {"note": "2 times fewer steps", "charts": [{"title": "frames", "lines": lines}, 3, {"lines": 5}]}
    (run / "pictures").mkdir()
    (run / "pictures" / "index.json").write_text(json.dumps({"batches": batches}))
    page = page_of([run])
    data = data_of(page)
    (chart,) = (chart for chart in data["charts"] if chart["title"] == "frames")
    assert [line["y"] for line in chart["lines"]] == [[4, 4, 8, 8], [2]]
    assert data["places"][chart["lines"][0]["x"]] == [0, 2, 2, 3] and chart["across"] == "epochs"
    assert "2 times fewer steps" in page


@pytest.mark.parametrize("now", [{"ema": None}, {"ema": {"decay": 0.9}, "evaluate": {"weights": "raw"}}])
def test_scores_of_ema_weights_end_when_a_run_is_resumed_without_ema(make: Make, now: dict[str, Any]) -> None:
    early = {"step": 10, "epoch": 1, "samples": 80, "val_ema/top1": 0.0023}
    folder = make(rows=[early, *rows_of(20)], config=CONFIG | now, results=None)
    (folder / "eval/val_ema").mkdir()
    (folder / "eval/val_ema/details.json").write_text(json.dumps({"per_class": [{"class": "cat", "recall": 0.1}]}))
    run = read_run(folder)
    assert (run.scores, list(run.details)) == ({"val/top1": 0.75}, ["val"])
    (folder / "config.yaml").write_text(json.dumps(CONFIG | {"ema": {"decay": 0.9}}))
    run = read_run(folder)
    assert (list(run.scores), list(run.details)) == (["val_ema/top1", "val/top1"], ["val", "val_ema"])


def test_runs_of_several_tasks_have_a_table_of_scores_each(make: Make) -> None:
    runs = [make(name, config={"task": {"name": name}}, results={f"val/{name}": 0.5}) for name in ("reid", "video")]
    (scores,) = re.findall(r'<section id="scores">(.*?)</section>\s*<section id="curves">', page_of(runs), re.S)
    assert re.findall(r"<h4>(.*?)</h4>", scores) == ["reid", "video"]
    assert re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", scores) == [
        *("score", "A: after the last step"),
        *("score", "B: after the last step"),
    ]


def test_scores_measured_once_are_in_the_table_only(make: Make) -> None:
    rows = [{"step": 20, "epoch": 2, "samples": 9, "val/AP": 0.5, "train/loss": 1.0}]
    page = page_of([make(rows=rows, results={"val/AP": 0.5})])
    assert "val/AP" in Elements(page).text
    assert next(chart["title"] for chart in data_of(page)["charts"]) == "loss"


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_every_section_is_listed(make: Make, names: list[str]) -> None:
    state = {"format": 1, "total_steps": 20, "dataset_info": {"samples": 80, "classes": ["cat", "dog"]}}
    page = page_of([make(name, state=state) for name in names])
    (navigation,) = re.findall("<nav.*?</nav>", page, re.S)
    links = re.findall(r'<a [^>]*href="#([^"]+)">', navigation)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(links) == len(set(links)) and set(links) <= set(ids), "every link has a target"
    # The nearest id before or in a heading belongs to it.
    for match in re.finditer(r"<h[23][^>]*>(.*?)</h[23]>", page):
        id_ = re.findall(r' id="([^"]+)"', page[: match.end()])[-1]
        assert id_ in links, match[1]
    texts = re.sub("<[^>]*>", "", navigation)
    for text in ("Scores", "Curves", "Evaluation on val", "Warnings", "Environment", "Config"):
        assert text in texts


def test_the_best_checkpoint_is_named_with_its_scores(make: Make) -> None:
    early = {"step": 10, "epoch": 1, "samples": 80, "val/top1": 0.25, "val/top5": 0.875}
    folder = make(rows=[early, *rows_of(20)], results={"val/top1": 0.75, "val/top5": 0.9})
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "best").write_text("step-00000010\n")
    for name, step in (("val", 10), ("test", 20)):
        (folder / "eval" / name).mkdir(parents=True, exist_ok=True)
        scores = {"checkpoint": f"step-{step:08d}", f"{name}/top1": 0.5}
        (folder / "eval" / name / "scores.json").write_text(json.dumps(scores))
    headings = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page_of([folder]))
    assert headings[:4] == ["score", "after the last step", "step 20", "best (step 10)"]
    assert read_run(folder).evaluated_scores == {
        "step 20": {"val/top1": 0.75, "test/top1": 0.5},
        "best (step 10)": {"val/top1": 0.5, "val/top5": 0.875},
    }


def test_config_keys_that_were_set_are_marked(make: Make) -> None:
    folder = make()
    origins = resolve("classification/digits", ["optimizer.lr=0.1"]).origins
    (folder / "origins.json").write_text(json.dumps(origins))
    page = page_of([folder])
    (rows,) = re.findall(r'<details class="part config".*?<tbody>(.*?)</tbody>', page, re.S)
    given = re.findall(r"<tr class=given><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", rows)
    assert ("optimizer.lr", "0.01", "command line: optimizer.lr=0.1") in given
    assert "task.dropout" in rows and "task.dropout" not in {key for key, *_ in given}


NASTY = "<img src=x onerror=alert(1)>\"'&</script>"


def test_names_from_the_run_folder_are_escaped(make: Make) -> None:
    details = {"per_class": [{"class": NASTY, "samples": 1, NASTY: NASTY}], "confusion": [[0, 1, 2]]}
    rows = [{"step": step, f"val/{NASTY}": 0.5, NASTY: 1.0, "train/loss": 1.0} for step in (1, 2)]
    config = {"task": {"name": NASTY}, NASTY: NASTY}
    folder = make('it\'s <b> & "co"', rows=rows, config=config, details=details, results={NASTY: 0.5})
    (folder / "train.log").write_text(f"11-22 08:04:11 W {NASTY}\n")
    page = page_of([folder])
    parsed = Elements(page)
    assert not [tag for tag, attributes in parsed.elements if tag == "img" and "onerror" in attributes]
    assert not [tag for tag, attributes in parsed.elements if tag == "b" and not attributes]
    assert page.count("</script>") == page.count("<script")
    assert parsed.text.count(NASTY) > 4
    assert any(NASTY in chart["title"] for chart in data_of(page)["charts"])


@pytest.mark.parametrize("selector", [".chart > figcaption", ".legend button", "dt", "dd", "h1", "h5"])
def test_long_names_do_not_widen_the_page(selector: str) -> None:
    """tests/visualization/report/test_browser.py measures it, where there is a browser."""
    style = (Path(str(report_package.__file__)).parent / "templates" / "style.css").read_text()
    (rule,) = re.findall(rf"^{re.escape(selector)} {{(.*)}}", style, re.MULTILINE)[:1]
    assert "overflow-wrap: anywhere" in rule and "max-content" not in style


def test_an_unfinished_run(make: Make) -> None:
    folder = make(results=None, details=None, state={"format": 1, "total_steps": 500})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "trai')
    text = Elements(page_of([folder])).text
    assert "not finished: it is at step 20 of 500" in text
    assert "classification · step 20, epoch" in text
    assert "1 line of metrics.jsonl could not be read" in text
    assert "newest" in text


def test_a_run_without_metrics(make: Make) -> None:
    text = Elements(page_of([make(rows=None, results=None, details=None)])).text
    assert "there are no metrics yet" in text
    assert "There are no scores yet" in text


def test_a_run_of_a_newer_version(make: Make) -> None:
    folder = make(
        state={"format": 7, "dataset_info": ["?"], "total_steps": "many"}, details={"step": 1, "holograms": {}}
    )
    text = Elements(page_of([folder])).text
    assert "a newer version" in text
    assert "0.7500" in text


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("config.yaml", "task: [1, {"),
        ("config.yaml", "- a list"),
        ("results.json", "{"),
        ("results.json", "[1]"),
        ("eval/val/details.json", '{"per_class": "x", "confusion": {"a": 1}}'),
        ("origins.json", "[[]]"),
        ("pictures/index.json", '{"groups": [{"rows": [{"pictures": [{"file": 3}, 4]}, 5]}, 6], "counts": [1]}'),
        ("checkpoints/step-00000020/state.json", "[" * 100_000),
    ],
)
def test_damaged_files_do_not_fail_the_report(make: Make, place: str, content: str) -> None:
    folder = make()
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text(content)
    assert "</html>" in page_of([folder])


words = st.sampled_from(
    ["class", "classes", "recall", "0.5", "worst", "rows", "pictures", "cmc", "dataset_info", "<b>"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(
    st.sampled_from([*MAKERS, "format", "dataset_info", "missing", "groups", "counts"]), json_values
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables=tables, dataset_info=json_values, row=st.dictionaries(words, json_values, max_size=3))
def test_no_json_value_fails_the_report(make: Make, tables: Any, dataset_info: Any, row: Any) -> None:
    name = f"run-{next(_numbers)}"
    rows = [{"step": 1, "train/loss": 1.0, **row}]
    folder = make(
        name,
        rows=rows,
        details=tables,
        results=dataset_info,
        state={"dataset_info": dataset_info, "format": dataset_info},
        config=row,
    )
    (folder / "pictures").mkdir()
    (folder / "pictures" / "index.json").write_text(
        json.dumps({**tables, "counts": [{"set": 1, "of_class": dataset_info}]})
    )
    assert "</html>" in page_of([folder])


_numbers = count()


def test_curves_of_runs_share_charts(make: Make) -> None:
    first = make("a")
    second = make("b", config={"task": {"name": "classification", "dropout": 0.1}, "optimizer": {"name": "sgd"}})
    page = page_of([first, second])
    charts = {chart["title"]: chart for chart in data_of(page)["charts"]}
    assert [(line["run"], line["name"]) for line in charts["top1"]["lines"]] == [
        *((0, "train"), (0, "val")),
        *((1, "train"), (1, "val")),
    ]
    (table,) = re.findall(r'<section id="differences">(.*?)</section>', page, re.S)
    keys = re.findall(r"<tr><td>\s*(.*?)\s*</td>|<td>(optimizer[.\w]*|task[.\w]*|seed)</td>", table)
    assert {key for pair in keys for key in pair if key} == {"optimizer.name", "optimizer.lr", "seed"}


def test_runs_of_different_tasks_are_all_open(make: Make) -> None:
    """Configs of different tasks are not compared."""
    tasks = ("classification", "detection", "video")
    page = page_of([make(task, config={"task": {"name": task}}) for task in tasks])
    assert 'id="differences"' not in page and page.count('<details class="run"') == len(tasks)
    assert not re.findall(r'<details class="run" id="[^"]*">', page), "all open"


def test_the_default_path_of_the_report(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make("x/one"), make("x/two")]
    assert write_report(runs[:1]) == runs[0] / "report.html"
    assert default_path(runs) == tmp_path / "x" / "report.html"
    monkeypatch.chdir(tmp_path)
    assert default_path([Path("x/one"), Path("x/two")]) == Path("x/report.html")
    assert write_report(runs, tmp_path / "new" / "page.html").stat().st_size > 20_000


def test_folders_without_a_run_are_rejected(tmp_path: Path, make: Make) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        write_report([tmp_path / "nowhere"])
    run = make("runs/one")
    with pytest.raises(ConfigError, match=f"holds no run.*{run}"):
        write_report([run.parent])
    with pytest.raises(ConfigError, match="27 runs; a report is of at most 26"):
        write_report([run] * 27)


def test_the_page_of_a_long_run_is_small(make: Make) -> None:
    rows = [{"step": n, "epoch": n / 100, "samples": n, "train/loss": 1 / n, "lr": n / 1e5} for n in range(1, 20_001)]
    folder = make(rows=rows)
    assert len(page_of([folder])) < 1_000_000


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_command(make: Make, tmp_path: Path) -> None:
    first, second = make("first"), make("second")
    result = command(first, second, "--no-pictures", "--out", tmp_path / "both.html")
    assert result.exit_code == 0 and "both.html" in result.output, result.output
    assert "</html>" in (tmp_path / "both.html").read_text()
    result = command(first)
    assert result.exit_code == 0 and "no images of" in result.stderr, "without a checkpoint there are no predictions"
    assert (first / "report.html").is_file()
    result = command(*[first] * 27)
    assert result.exit_code == 2 and "27 runs; a report is of at most 26" in result.stderr
    assert "no images of" not in result.stderr, "the number is checked before images are made"
    result = command(second, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("scores", [["val"], ["val_ema"], ["val", "val_ema"]])
def test_data_is_named_as_its_scores(make: Make, scores: list[str]) -> None:
    """Also in a run that evaluates its EMA weights alone."""
    source = {"val": {"source": {"name": "digits", "split": "val"}}}
    folder = make(config={**CONFIG, "data": source}, results={f"{name}/top1": 0.75 for name in scores})
    assert [(row["scores"], row["data"]) for row in read_run(folder).evaluations] == [
        (name, "digits, split val") for name in scores
    ]


@pytest.mark.parametrize(
    ("name", "group", "title", "of"),
    [
        ("train/loss", "Losses and schedules", "loss", "train"),
        ("val/loss_cls", "Losses and schedules", "loss_cls", "val"),
        ("val_ema/top1", "Scores", "top1", "val_ema"),
        ("train/rpn/num_pos_anchors", "Others", "rpn/num_pos_anchors", "train"),
        ("lr", "Losses and schedules", "learning rate", ""),
        ("time/val", "Speed and memory", "seconds of the evaluation on val", ""),
    ],
)
def test_charts_of_scalars(name: str, group: str, title: str, of: str) -> None:
    assert chart_of(name) == (group, title, of)
