"""An exported graph in place of a trained task: the same predictions by name, computed by its runtime."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import ConfigError, Problem, build
from opabinia.contracts import (
    IGNORE_LABEL,
    Batch,
    Channels,
    DatasetInfo,
    Detections,
    Pixels,
    Predictions,
    Presenter,
    Task,
)
from opabinia.data.errors import DataError
from opabinia.inference.export.runtimes import open_runtime
from opabinia.inference.predictor import Predictor
from opabinia.tasks.detections_base import scale_to_original, stack_detections
from opabinia.tasks.multitask.export import prediction_of
from opabinia.tasks.multitask.presenter import MultitaskPresenter
from opabinia.tasks.segmentation.inference import nearest_maps, original_maps
from opabinia.visualization.presenters.by_keys import presenter_of


class ExportedTask(Task):
    """The predictions of an exported graph, which evaluators take like those of the original.

    Args:
        path: path of an exported file: ``.onnx``, ``.pte``, ``.tflite``, or OpenVINO's ``model.xml`` or its folder.

    Attributes:
        runtime: the library that has read it.
        metadata: description of the graph, as texts.
        size: height and width of the images that it takes.
        dataset_info: the classes and channels of its images.
        subtasks: the same for each task of a multi-task model, by its name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.runtime = open_runtime(path)
        self.metadata, shapes = self.runtime.metadata, self.runtime.shapes
        batch_size, *_ = shapes["image"]
        self._batch_size = batch_size if isinstance(batch_size, int) else None
        channels, height, width = map(int, shapes["image"][-3:])
        self.size = (height, width)
        self.dims = len(shapes["image"])
        self.size_multiple = 1 if "image_sizes" in shapes else None
        classes, keypoints = (tuple(json.loads(self.metadata.get(key, "[]"))) for key in ("classes", "keypoints"))
        self.takes_video = self.dims == 5
        boxes, maps = ("boxes" in self.runtime.outputs), ("segmentation" in self.runtime.outputs)
        self.dataset_info = DatasetInfo(
            samples=0, channels=channels, classes=classes, keypoints=keypoints, boxes=boxes, maps=maps
        )
        tasks = json.loads(self.metadata.get("tasks", "{}"))
        self.subtasks = {
            name: replace(
                self.dataset_info, classes=tuple(about["classes"]), keypoints=tuple(about.get("keypoints", []))
            )
            for name, about in tasks.items()
        }

    def run(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs for inputs by name (a row per sample); where the graph has a fixed number of samples, as
        many at a time."""
        count = len(inputs["image"])
        step = self._batch_size or count
        results = [
            self.runtime({name: value[start : start + step].numpy() for name, value in inputs.items()})
            for start in range(0, count, step)
        ]
        columns: list[Any] = list(zip(*results, strict=True))
        return {
            name: torch.cat([torch.from_numpy(values) for values in column])
            for name, column in zip(self.runtime.outputs, columns, strict=True)
        }

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return a collated batch as inputs of the graph; a detector's images are padded to its size.

        Raises:
            DataError: an image has another size than the graph takes.
        """
        image = batch["image"]
        sizes = batch.get("image_sizes") if self.size_multiple else None
        shape = tuple(image.shape[-2:])
        missing = [side - given for side, given in zip(self.size, shape, strict=True)]
        if image.ndim != self.dims or (min(missing) < 0 if sizes else any(missing)):
            given = " x ".join(map(str, image.shape[1:]))
            message = f"the exported model takes one view of {self.size[0]} x {self.size[1]} pixels, not {given}"
            raise DataError(f"{message}; end data.val.transforms with that size")
        if not sizes:
            return {"image": image}
        return {"image": F.pad(image, (0, missing[1], 0, missing[0])), "image_sizes": torch.tensor(sizes)}

    def predict(self, batch: Batch) -> Predictions:
        """Return the predictions that the original gives for the batch; detections in pixels of the original images.

        Raises:
            DataError: see :meth:`inputs`.
        """
        outputs = self.run(**self.inputs(batch))
        if "task" in batch and self.subtasks:
            return _original(prediction_of(outputs, batch["task"]), batch)
        by_task = {name: _original(prediction_of(outputs, name), batch) for name in self.subtasks}
        joined = {f"{name}/{key}": value for name, tensors in by_task.items() for key, value in tensors.items()}
        return joined if self.subtasks else _original(outputs, batch)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return the predictions, of which ``embedding`` is one if the graph has it."""
        return dict(self.predict(batch))

    def presenter(self) -> Presenter | None:
        """Show the predictions of several tasks; those of one by their keys."""
        if not self.subtasks:
            return None
        presenters = {name: partial(presenter_of, Task(), info) for name, info in self.subtasks.items()}
        return MultitaskPresenter(self.dataset_info, presenters)


def _original(outputs: Predictions, batch: Batch) -> Predictions:
    """Return the outputs of one task as it predicts them for the original images of a batch."""
    rows: Predictions = {}
    if "segments" in outputs:
        sizes, fills = (batch["image_sizes"], batch["original_size"]), {"segmentation": IGNORE_LABEL, "segments": 0}
        rows = {name: nearest_maps(outputs[name], *sizes, fill) for name, fill in fills.items()}
        rows = rows | {name: outputs[name] for name in ("segment_labels", "segment_scores")}
    elif "segmentation" in outputs:
        maps = original_maps(outputs["logits"], batch["image_sizes"], batch["original_size"])
        return {"segmentation": maps, "image_size": torch.tensor(batch["original_size"])}
    if "boxes" not in outputs:
        return outputs
    images = [
        Detections(**{name: outputs[name][index] for name in Detections._fields if name in outputs})
        for index in range(len(outputs["boxes"]))
    ]
    scaled = list(map(scale_to_original, images, batch["image_sizes"], batch["original_size"]))
    rows = {**rows, **stack_detections(scaled, outputs["labels"].shape[1])}
    return {**rows, "image_size": torch.tensor(batch["original_size"])} if "masks" in rows else rows


class _Kind(NamedTuple):
    """A kind of exported files: its title with an article, the library that reads them, and the extra that has it."""

    title: str
    library: str
    extra: str


_KINDS = {
    ".onnx": _Kind("an ONNX file", "onnxruntime", "export"),
    ".xml": _Kind("an OpenVINO model", "openvino", "openvino"),
    ".pte": _Kind("an ExecuTorch file", "executorch", "executorch"),
    ".tflite": _Kind("a LiteRT file", "ai_edge_litert", "litert"),
}


def load_exported(path: Path) -> Predictor:
    """Load an exported graph for inference on the CPU, with the transforms that its metadata describes.

    Args:
        path: a ``.onnx``, ``.pte`` or ``.tflite``, or OpenVINO's ``model.xml`` or its folder.

    Raises:
        ConfigError: the path is not one of ``opabinia export``, or its library is missing.
    """
    kind = _KINDS.get(".xml" if path.is_dir() else path.suffix, _KINDS[".onnx"])
    if find_spec(kind.library) is None:
        message = f"{path} needs {kind.library.replace('_', '-')}: pip install 'opabinia[{kind.extra}]'"
        raise ConfigError(Problem("command line", "", message))
    try:
        task = ExportedTask(path)
        transforms = json.loads(task.metadata["transforms"])
    except Exception as error:  # the libraries have types of their own
        message = f"{path} is not {kind.title} of opabinia export: {(str(error) or repr(error)).splitlines()[0]}"
        raise ConfigError(Problem("command line", "", message)) from error
    build_transforms = build({"transforms": transforms}, command="preprocessing")
    pixels = json.loads(task.metadata.get("pixels", "null"))
    channels: Channels = 1 if task.dataset_info.channels == 1 else 3
    channels = channels if pixels is None else Pixels(**pixels)
    predictor = Predictor(task, build_transforms(), task.dataset_info, channels=channels)
    predictor.thresholds = json.loads(task.metadata.get("thresholds", "null"))
    return predictor
