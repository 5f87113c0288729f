"""Every kind of damage to every file of a run folder: exit status 0 or 2, a clear message, no other file changed."""

import importlib.metadata
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random

import pytest
import typer.main
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opabinia.cli import main
from tests.faults import damage
from tests.faults.runs import contents

RECIPE = """
plugins: [tests.faults.parts]
task: {name: classification, backbone: {name: tiny, width: 4}, mean: [0.3], std: [0.38]}
data:
  train: {source: {name: some_digits, n: 32, split: train}}
  val: {source: {name: some_digits, n: 8, split: val}}
  batch_size: 8
  num_workers: 0
optimizer: {name: adamw, lr: 0.01}
ema: {decay: 0.9}
train: {length: 4it, log_every: 1, deterministic: true, device: cpu, num_threads: 1}
evaluate: {every: 2it, batch_size: 8}
checkpoint: {every: 2it, keep: 3}
hooks: {loss_spike: {}, early_stop: {metric: val/top1}}
loggers: []
seed: 3
"""

TRAIN, LONGER = "train RUN --resume", "train RUN --resume train.length=5it"
EVAL, EXTRACT, REPLAY, MAP = "eval RUN", "extract RUN", "replay RUN --step 3", "map RUN/features/val"
MERGE, SHOW = "merge RUN --out RUN/merged.safetensors", "config show RUN"
REPORT, PAGE = "report RUN", "report RUN --no-images"

MAY_WRITE: dict[str, tuple[str, ...]] = {
    TRAIN: ("",),
    LONGER: ("",),
    EVAL: ("eval/",),
    EXTRACT: ("features/", ".features"),
    REPLAY: ("replay/",),
    MAP: ("features/val/map-pca.png",),
    MERGE: ("merged.safetensors",),
    SHOW: (),
    REPORT: ("report.html", "pictures/"),
    PAGE: ("report.html",),
}
"""The commands, and what they may write in the run folder."""

READ_BY = {
    "config.yaml": tuple(MAY_WRITE),
    "overrides.json": (TRAIN,),
    "origins.json": (PAGE,),
    "results.json": (TRAIN, PAGE),
    "metrics.jsonl": (LONGER, EXTRACT, PAGE),
    "state.json": (TRAIN, LONGER, EVAL, REPLAY, MERGE, MERGE, MERGE),
    "model.safetensors": (LONGER, EVAL, REPLAY, MERGE, MERGE, MERGE),
    "ema.safetensors": (LONGER, EXTRACT, MERGE, MERGE),
    "optimizer.safetensors": (LONGER, REPLAY, MERGE),
    "last": (TRAIN, LONGER),
    "best": (LONGER, EVAL, MERGE, MERGE),
    "scores.json": (EVAL, PAGE),
    "details.json": (REPORT, PAGE),
    "index.json": (REPORT, PAGE),
    "about.json": (EXTRACT, MAP),
    "ids.json": (EXTRACT, MAP),
    "labels.npy": (EXTRACT, MAP),
    "features.npy": (EXTRACT, MAP),
}
"""The files of a run folder, and the commands that read them."""

CHEAP = (MERGE, SHOW, PAGE)


def command(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit status and its stderr."""
    err = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(err), pytest.raises(SystemExit) as system_exit:
        main(words)
    assert isinstance(system_exit.value.code, int)
    return system_exit.value.code, err.getvalue()


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run with everything that commands write into its folder."""
    monkeypatch, log = pytest.MonkeyPatch(), logging.getLogger("opabinia")
    for function in (
        typer.main.get_command,
        importlib.metadata.entry_points,
    ):  # they take most of the time of a cheap command
        monkeypatch.setattr(sys.modules[function.__module__], function.__name__, cache(function))
    before = (log.propagate, log.level)
    out = tmp_path_factory.mktemp("complete")
    (out / "tiny.yaml").write_text(RECIPE)
    assert command("train", str(out / "tiny.yaml"), "--out", str(out / "runs"))[0] == 0
    folder = out / "runs" / "tiny" / "default"
    for words in ("eval RUN", "extract RUN", "report RUN"):
        assert command(*words.replace("RUN", str(folder)).split())[0] == 0
    for image in sorted((folder / "pictures").glob("*.webp"))[3:]:
        image.unlink()
    yield folder
    log.propagate, log.level = before
    monkeypatch.undo()


def check_damage(complete_run: Path, out: Path, seed: int, commands: tuple[str, ...]) -> None:
    """Damage a file of a copy of the run, run a command on it, and check its exit status, messages and files."""
    random = Random(seed)
    shutil.rmtree(out, ignore_errors=True)
    folder = Path(shutil.copytree(complete_run, out / "runs" / "tiny" / "default"))
    (out / "outside").write_text("outside")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "train.log"))
    file = random.choice([path for path in files if any(words in commands for words in READ_BY.get(path.name, ()))])
    damage_file = random.choice(damage.damages(file))
    words = random.choice([words for words in READ_BY[file.name] if words in commands])
    damage_file(file, random)
    before = contents(out)
    case = f"seed {seed}: {damage_file.__name__} of {file.relative_to(folder)}: {words}"
    try:
        status, err = command(*words.replace("RUN", str(folder)).split())
    except BaseException as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    # A folder, or a link to a folder or device, where a file must be written is a write error.
    is_write_error = (
        status == 1 and damage_file in (damage.become_folder, damage.become_link) and "error: cannot write" in err
    )
    assert status in (0, 2) or is_write_error, f"{case}: {status} {err}"
    assert "Traceback" not in err, f"{case}: {err}"
    assert "\x1b" not in err, f"{case}: {err!r}"
    after = contents(out)
    changed = {
        os.path.relpath(name, "runs/tiny/default") for name in {*before, *after} if before.get(name) != after.get(name)
    }
    changed -= {"train.log", ".lock"}
    if status == 2:
        assert err.strip(), case
    allowed = MAY_WRITE[words]
    assert not [name for name in changed if not name.startswith(allowed) or name.startswith("..")], f"{case}: {changed}"


def test_sections_that_a_saved_config_lacks_have_their_defaults(complete_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(complete_run, tmp_path / "run"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({key: config[key] for key in config if key != "checkpoint"}))
    assert command("eval", str(folder))[0] == 0


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_named(complete_run: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    check_damage(complete_run, tmp_path_factory.getbasetemp() / "damaged", seed, CHEAP)


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck), deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_ten_thousand_damaged_files(complete_run: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    check_damage(complete_run, tmp_path_factory.getbasetemp() / "damaged", seed, tuple(MAY_WRITE))
