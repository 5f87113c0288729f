"""A folder that tracks without this library: detector, model of embeddings, settings of the tracker, and its code."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from opabinia.config import ConfigError, Problem
from opabinia.contracts import frame_channels
from opabinia.inference.export import track_script
from opabinia.inference.export.export import PreparedModel, prepare, print_written
from opabinia.inference.export.files import check_libraries, write_file
from opabinia.inference.load import RunModel
from opabinia.inference.tracking.pipeline import LOWEST_SCORE, Pipeline
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import logging_to
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.version import __version__
from opabinia.training.tracking import Tracking

CODE = "tracker"
"""Name of the folder of the modules that ``track.py`` imports."""


def export_tracker(
    detector: RunModel,
    tracking: Tracking,
    embedder: RunModel | None = None,
    out: Path | None = None,
    *,
    score: float = LOWEST_SCORE,
    tolerance: float = 1e-4,
) -> Path:
    """Write detector, model of embeddings (ONNX) and tracker into a folder whose ``track.py`` needs onnxruntime, NumPy,
    SciPy and Pillow, and return its path. Both models are read back and compared with the originals.

    Args:
        detector: the run of the detector.
        tracking: one of the trackers in :data:`opabinia.inference.export.track_script.TRACKERS`.
        embedder: the run of the model of embeddings; None: there is none.
        out: the folder, which must not exist; None: ``export/tracker`` in the run folder.
        score: lowest score of the detections that are tracked.
        tolerance: see :func:`opabinia.inference.export.export`.

    Raises:
        ConfigError: there is no such run, ``out`` exists, a library is missing, or ``track.py`` cannot do what a model
            or the tracker needs.
        ExportMismatch: a model that was read back differs from the original by more.
    """
    path = out or detector.run / "export" / "tracker"
    if path.exists():
        raise _error("--out", f"{path} exists already; remove it, or give another path")
    if (name := tracking.config["tracker"]["name"]) not in track_script.TRACKERS:
        known = ", ".join(track_script.TRACKERS)
        raise _error("--tracker", f"{name} needs its own package: of the trackers, {known} can be exported")
    check_libraries("onnx")
    with logging_to(None):
        models = {track_script.DETECTOR: prepare(detector, "onnx")}
        if embedder is not None:
            models[track_script.EMBEDDER] = prepare(embedder, "onnx")
    _check(*models.values())
    settings = {name: tracking.config[name] for name in ("tracker", "per_class", "camera_motion")}
    files = {**code_files(), track_script.SETTINGS: json.dumps({**settings, "score": score}, indent=1) + "\n"}
    lines = list[str]()
    with disk_errors(path), torch.no_grad():
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=path.parent) as temporary:
            folder = Path(temporary) / "folder"
            (folder / CODE).mkdir(parents=True)
            for name, model in models.items():
                with progress_bar(f"export {name}", 2, unit="steps") as bar:
                    written = write_file("onnx", folder / name, model.job, tolerance, model.origin, bar)
                lines += [f"{name}: {line}" for line in [*written, *model.notes]]
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
            folder.rename(path)
    print_written([path], lines)
    return path


def _check(detector: PreparedModel, embedder: PreparedModel | None = None) -> None:
    """Check that ``track.py`` can do what the models need.

    Raises:
        ConfigError: the first one does not predict upright boxes, or the other one no embeddings; or images are
            transformed in another way than resizing.
    """
    Pipeline(detector.predictor, embedder and embedder.predictor)
    height, width = detector.job.description.size
    _check_transforms("RUN", detector, [(3 * height // 4, 3 * width // 4)], whole=False)
    if embedder is None:
        return
    if "embedding" not in embedder.job.module.expected(embedder.job.inputs):
        message = "its exported model has no embedding; one of re-identification has"
        raise _error("--reid", message)
    _check_transforms("--reid", embedder, [(40, 30), (30, 50)], whole=True)


def _check_transforms(option: str, model: PreparedModel, sizes: list[tuple[int, int]], *, whole: bool) -> None:
    """Check that ``track.py`` transforms images as the predictor does.

    Args:
        option: the option of the run, for errors.
        model: the model.
        sizes: height and width of the images that are compared.
        whole: whether the result needs the size of the exported model.
    """
    about, predictor = model.job.description, model.predictor
    channels = frame_channels(predictor.channels)
    for height, width in sizes:
        ramp = np.add.outer(np.arange(height), np.arange(width)) * 200 // (height + width)
        image = np.stack([ramp + 20 * channel for channel in range(channels)]).astype(np.uint8)
        expected = predictor.sample(torch.from_numpy(image))["image"].numpy()
        try:
            actual = track_script.prepared(image, channels, about.transforms, about.dtype)
        except ValueError as error:
            raise _error(option, f"data.val.transforms: {error}, which track.py knows") from error
        gray_level = 1 if about.dtype == "uint8" else 1 / 255
        if actual.shape != expected.shape or np.abs(actual - expected.astype(float)).max() > 1.01 * gray_level:
            names = ", ".join(transform["name"] for transform in about.transforms)
            raise _error(option, f"data.val.transforms: track.py resizes images, and does not do what {names} do")
        if whole and actual.shape[1:] != about.size:
            message = "give objects different sizes, and an exported model takes one: end them with Resize to two sides"
            raise _error(option, f"data.val.transforms {message}")


def code_files() -> dict[str, str]:
    """Return ``track.py`` and the modules that it imports, by their paths in the folder.

    They are the sources of this library. Its registry is omitted, with the types that only annotations name, and
    imports name the copies.
    """
    files = {
        f"{CODE}/__init__.py": f'"""Modules of Opabinia {__version__} for track.py; they import no other ones."""\n'
    }
    waiting = [track_script.__name__]
    while waiting:
        module = waiting.pop()
        name = "track.py" if module == track_script.__name__ else f"{CODE}/{module.rpartition('.')[2]}.py"
        if name not in files:
            files[name], imported = _standalone(inspect.getsource(importlib.import_module(module)))
            waiting += imported
    return files


def _standalone(source: str) -> tuple[str, list[str]]:
    """Return the source of a module that imports copies, and the names of the modules that are to be copied."""
    lines, imported = source.splitlines(keepends=True), list[str]()

    def replace(node: ast.stmt | ast.expr, text: str) -> None:
        lines[node.lineno - 1] = text
        lines[node.lineno : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno)

    for node in ast.parse(source).body:
        for decorator in getattr(node, "decorator_list", ()):
            if ast.unparse(decorator).startswith("register."):
                replace(decorator, "")
        if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("opabinia."):
            continue
        module = str(node.module)
        if module in ("opabinia.config", "opabinia.contracts"):
            replace(node, "")
        elif hasattr(importlib.import_module(module), "__path__"):
            imported += [f"{module}.{alias.name}" for alias in node.names]
            replace(node, ast.unparse(ast.ImportFrom(CODE, node.names, 0)) + "\n")
        else:
            imported.append(module)
            replace(node, ast.unparse(ast.ImportFrom(f"{CODE}.{module.rpartition('.')[2]}", node.names, 0)) + "\n")
    return "".join(lines), imported


def _error(option: str, message: str) -> ConfigError:
    return ConfigError(Problem("command line", option, message))
