"""Progress bars of commands on a finished run."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.cli import _LoadingNotice, main
from opabinia.cli.tables import print_scores
from opabinia.runtime import progress
from tests.runtime.pseudo_terminal import SIZES, Shown, on_terminal


@pytest.fixture(scope="module")
def run(six_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run, with a folder of images."""
    folder = Path(shutil.copytree(six_steps, tmp_path_factory.mktemp("bars") / "default"))
    (folder / "images").mkdir()
    for number in range(3):
        Image.fromarray(np.full((8, 8), 80 * number, np.uint8)).save(folder / "images" / f"{number}.png")
    return folder


def run_on_terminal(*words: object, columns: int = 80, rows: int = 24) -> Shown:
    """Return the output of a command on a terminal if every change of its bars is drawn."""

    def program() -> None:
        progress._INTERVAL = 0.0
        main([str(word) for word in words])

    shown = on_terminal(program, columns, rows)
    assert shown.status == 0, shown.text
    assert all(len(bar) <= columns for bar in shown.bars) and "\x1b[?25l" not in shown.text
    return shown


COMMANDS = {
    "eval": ([], "eval val", "360/360"),
    "predict": (["RUN/images"], "predict", "3/3"),
    "extract": ([], "extract val", "360/360"),
    "map": (["--method", "pca"], "map by principal components", "2/2"),
    "report": ([], "report images", r"\d+/\d+"),
    "export": (["--format", "huggingface"], "export huggingface", "2/2"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_bars_start_at_0_and_end_at_the_last_item(run: Path, command: str) -> None:
    words, phase, end = COMMANDS[command]
    columns, rows = SIZES[0]
    shown = run_on_terminal(
        command, run, *(word.replace("RUN", str(run)) for word in words), columns=columns, rows=rows
    )
    bars = [bar for bar in shown.bars if bar.startswith(phase)]
    assert re.fullmatch(rf"{phase} ━* +0/\d+  0%  ETA \?", bars[0])
    assert re.fullmatch(rf"{phase} ━+ {end}  100%  in 0:\d\d  [\d,.]+ (s/\w+|\w+/s)", bars[-1])


def test_quiet_has_no_bar(run: Path) -> None:
    shown = run_on_terminal("eval", run, "--quiet")
    assert not shown.bars and "val/top1" in shown.text


def test_the_scores_of_an_evaluation_are_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_on_terminal("eval", run, columns=120, rows=40)
    assert "metric" in shown.text and "value" in shown.text and "weights" not in shown.text
    assert re.search(r"\(best val/top1 0\.\d{4} at step 6\)", " ".join(shown.lines))
    assert "csv," not in shown.text
    print_scores("a run", {"val_ema/top1": 0.5, "val_ema/top5": 1, "val/top1": 0.25, "val/top5": 0.75})
    lines = capsys.readouterr().out.splitlines()
    rows = [re.findall(r"[\w./]+", line) for line in lines]
    assert ["metric", "val_ema", "val"] in rows
    assert ["top1", "0.5000", "0.2500"] in rows and ["top5", "1.0000", "0.7500"] in rows
    assert lines[-2:] == ["a run", "csv,0.5,1,0.25,0.75"]


def test_loading_pytorch_is_announced_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "meta_path", [_LoadingNotice()])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sys.meta_path[0].find_spec("numpy", None)
    assert sys.meta_path and capsys.readouterr().err == ""
    sys.meta_path[0].find_spec("torch", None)
    assert not sys.meta_path and capsys.readouterr().err == "loading PyTorch\r"


def test_commands_and_purposes_do_not_wrap(run: Path) -> None:
    def program() -> None:
        from opabinia.cli.outcome import print_ending

        print_ending(run)
        sys.stdout.flush()

    narrow, wide = (on_terminal(program, columns).lines for columns in (80, 400))
    assert "  # evaluate the best checkpoint" in narrow and narrow.index(f"  opabinia eval {run}") > 0
    assert any(line.startswith(f"  opabinia eval {run} ") and "# evaluate" in line for line in wide)
