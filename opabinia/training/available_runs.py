"""Weights in run folders, found without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config import ConfigError, compose
from opabinia.models.weights.checkpoints import find_checkpoint


class RunWeights(NamedTuple):
    """The weights of a run.

    Attributes:
        folder: the run folder, for ``init.weights``.
        recipe: the recipe it was started with: its folder without ``runs`` and the name of the run.
        task: name of the task; empty if the config of the run cannot be read.
        model: timm's name of the backbone, or the name of the part; empty for several tasks.
        size: bytes of the model in the best checkpoint, or else in the last one.
    """

    folder: Path
    recipe: str
    task: str
    model: str
    size: int

    @property
    def summary(self) -> str:
        """Task, backbone and recipe."""
        return ", ".join([text for text in (self.task, self.model) if text] + [f"recipe {self.recipe}"])


def available_runs(root: Path = Path("runs")) -> list[RunWeights]:
    """Return the runs below a folder that have a checkpoint, by path."""
    return [run for path in sorted(root.rglob("config.yaml")) if (run := _read(path.parent, root)) is not None]


def _read(folder: Path, root: Path) -> RunWeights | None:
    try:
        checkpoint = find_checkpoint(folder)
    except ValueError:
        return None
    files = [checkpoint / "model.safetensors", *(checkpoint / "model").glob("*.safetensors")]
    try:
        task = compose(folder).root.plain().get("task")
    except (ConfigError, AttributeError):  # edited by hand, or the file of another program
        task = None
    return RunWeights(
        folder=folder,
        recipe=folder.relative_to(root).parent.as_posix(),
        task=str(_section(task).get("name", "")),
        model=_model(_section(_section(task).get("backbone"))),
        size=sum(file.stat().st_size for file in files if file.is_file()),
    )


def _model(backbone: dict[str, Any]) -> str:
    return str(backbone.get("model") or backbone.get("name", ""))


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"name": value} if isinstance(value, str) else {}
