"""The first argument of commands that use a model: a run folder, or a recipe whose weights are in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from opabinia.cli.errors import option_error
from opabinia.inference.serving.address import EXPORTED
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import is_url

if TYPE_CHECKING:
    from opabinia.training.trained_model import Weights


def open_run(
    run: str, overrides: Sequence[str] | None, weights: str | None, classes: Path | None = None
) -> tuple[Path, Weights | None, list[str]]:
    """Return the run folder, which of its weights to use, and the changes to its config that remain to be applied.

    For weights in a file the run folder is written, with the changes in its config: none remain.

    Args:
        run: a run folder, one in remote storage (``s3://bucket/runs/a``), or one that was exported to the Hugging Face
            Hub (``hf:OWNER/NAME``), which are downloaded; a recipe if ``weights`` is a file.
        overrides: ``key=value``, changes to the config of the run or recipe.
        weights: ``raw``, ``ema``, a file, ``hf:OWNER/NAME``, or None for the better ones.
        classes: file with the class names of the weights, one a line.

    Raises:
        ConfigError: there is no such run, recipe or file, or the weights do not fit.
    """
    overrides = list(overrides or [])
    from opabinia.config.compose import packaged_names
    from opabinia.config.paths import check_input_paths, check_run_folder

    if weights is None or weights in ("raw", "ema"):
        if run.startswith("hf:") or is_url(run):
            from opabinia.training.run_folder import copy_downloaded_run

            return copy_downloaded_run(run), cast("Weights | None", weights), overrides
        if Path(run).suffix in EXPORTED:
            message = "is an exported model, for `opabinia serve` or predict.py next to it; give the folder of a run"
            raise option_error("", f"{run} {message}")
        if not Path(run).is_dir() and (Path(run).is_file() or run in packaged_names()):
            raise option_error("", f"{run} is a recipe: give the folder of one of its runs, or --weights FILE")
        check_run_folder(Path(run))
        return Path(run), cast("Weights | None", weights), overrides
    weights = local_copy(weights) if is_url(weights) else weights
    classes = Path(local_copy(classes)) if classes and is_url(classes) else classes
    check_input_paths([Path(path) for path in (weights, classes) if path and not str(path).startswith("hf:")])
    from opabinia.training.imported_weights import import_weights

    lines = classes.read_text(encoding="utf-8").splitlines() if classes else []
    return import_weights(run, overrides, Path(weights), classes=[line for line in lines if line]), "raw", []


def local_run(run: str | Path) -> Path:
    """Return the folder of a run, which is fetched if it is in remote storage.

    Raises:
        ConfigError: there is no such run in storage.
    """
    if not is_url(run):
        return Path(run)
    from opabinia.training.run_folder import downloaded_run

    return downloaded_run(str(run))
