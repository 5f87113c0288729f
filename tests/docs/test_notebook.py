"""The notebook of the first five minutes: its code and commands run, and its stored outputs are few."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import opabinia as package
from tests.cli.conftest import CommandResult
from tests.docs.pages import ROOT

PATH = ROOT / "docs" / "tutorials" / "first_model.ipynb"
NOTEBOOK = json.loads(PATH.read_text(encoding="utf-8"))
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
QUICK = ["train.length=2it", "data.batch_size=16", "data.num_workers=0", "evaluate.every=2it"]
MAX_BYTES = 60_000


def lines(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a cell without that which installs the package."""
    yield from (line.rstrip("\n") for line in cell["source"] if not line.startswith("%pip install"))


def test_all_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opabinia: Callable[..., CommandResult]) -> None:
    """With a training of two steps; commands (``!``) run in this process."""
    monkeypatch.chdir(tmp_path)
    fit = package.fit
    monkeypatch.setattr(package, "fit", lambda data, **options: fit(data, overrides=QUICK, **options))
    names: dict[str, Any] = {}
    with patch("opabinia.training.autoconfig.probe.MOST_STEPS", 2):
        for cell in CELLS:
            commands = [line for line in lines(cell) if line.startswith("!")]
            for command in commands:
                program, *words = shlex.split(command.removeprefix("!"))
                result = opabinia(*words)
                assert program == "opabinia" and result.status == 0, result.err
            code = "\n".join(line for line in lines(cell) if line not in commands)
            code = code.replace("tempfile.mkdtemp()", repr(str(tmp_path)))
            exec(compile(code, cell["id"], "exec"), names)
    assert names["run"].folder == Path("runs/digits/default")
    assert len(names["path"].read_bytes()) > 0


def test_stored_outputs_are_small() -> None:
    assert PATH.stat().st_size < MAX_BYTES
    assert any(cell["outputs"] for cell in CELLS)
    assert not [output for cell in CELLS for output in cell["outputs"] if output["output_type"] == "error"]


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, without the installation: a minute of training."""
    for library in ("ipykernel", "nbclient", "nbformat"):
        pytest.importorskip(library, reason=f"{library} is absent")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(PATH, as_version=4)
    for cell in notebook.cells:
        cell.source = "\n".join(lines({"source": cell.source.splitlines(keepends=True)}))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    top = [output["text"] for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert any("probability" in text for text in top)
