"""Models as folders in the layout of the Hugging Face hub: weights, config, preprocessing, model card.

If the predictions are those of a timm model, pooled and with its classifier, timm reads the folder with
``timm.create_model("local-dir:PATH", pretrained=True)``. Other tasks keep their own weight names, with their backbone,
if it is timm's, in such a folder inside.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from opabinia.contracts import Task, relative_difference
from opabinia.engine.checkpointing.checkpoint import save_tensors
from opabinia.inference.export.description import Description
from opabinia.inference.export.job import ExportJob, check_difference
from opabinia.inference.export.model_card import model_card
from opabinia.models.backbones.timm import TimmBackbone, TimmClassifier
from opabinia.models.weights.files import read_weights

WEIGHTS, CONFIG, PREPROCESSING, CARD = "model.safetensors", "config.json", "preprocessor_config.json", "README.md"
BACKBONE = "backbone"

_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Pillow's numbers, as transformers writes them."""


def write_layout(folder: Path, run: Path, config: Mapping[str, Any], job: ExportJob, tolerance: float) -> list[str]:
    """Write the folder, read its weights back and compare; return lines to print.

    Args:
        folder: does not exist yet.
        run: the run folder.
        config: of the run, complete.
        job: the model.
        tolerance: see :func:`opabinia.inference.export.export`.

    Raises:
        ExportMismatch: the model that was read back differs by more.
    """
    folder.mkdir()
    task, description = job.module.task, job.description
    weights = _timm_weights(task)
    section = config["task"].get("backbone")
    if not isinstance(section, Mapping) or section.get("name") != "timm":
        section = None
    in_timm = weights is not None and section is not None
    if weights is not None and section is not None:
        write_timm(folder, section, weights, description)
        model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        expected = job.module.expected(job.inputs)
        actual = model(task.normalize(job.inputs["image"]))
        difference = relative_difference(expected["logits" if "logits" in expected else "embedding"], actual)
        lines = [f"timm.create_model('local-dir:PATH', pretrained=True): largest difference {difference:.1e}"]
        check_difference(difference, tolerance, f"timm {timm.__version__}")
    else:
        _write_own(folder, task, description)
        lines = ["the weights have their own names; load them with opabinia train PATH/config.yaml init.weights=..."]
        backbone = getattr(task, "backbone", None)
        if section is not None and isinstance(backbone, TimmBackbone):
            lines.append(_write_backbone(folder / BACKBONE, section, backbone, description))
    _write_json(folder / PREPROCESSING, preprocessing(description))
    shutil.copyfile(run / "config.yaml", folder / "config.yaml")
    (folder / CARD).write_text(model_card(description, config, in_timm=in_timm), encoding="utf-8")
    return lines


def _timm_weights(task: Task) -> dict[str, Tensor] | None:
    """Return weights under timm's names, if a timm model, with its classifier, is all that the task predicts with."""
    if not isinstance(task.trunk, TimmBackbone):
        return None
    weights = dict(task.trunk.model.state_dict())
    if task.predicts_embedding_only:
        return weights
    head = getattr(task, "head", None)
    layers = [layer for layer in head if not isinstance(layer, nn.Dropout)] if isinstance(head, nn.Sequential) else []
    if len(layers) == 1 and isinstance(layers[0], TimmClassifier):
        return weights | dict(layers[0].state_dict())
    return None


def write_timm(
    folder: Path, section: Mapping[str, Any], weights: Mapping[str, Tensor], description: Description
) -> None:
    """Write weights and config as timm reads them.

    Args:
        folder: exists.
        section: the backbone's config section.
        weights: under timm's names.
        description: of the model.

    Raises:
        RuntimeError: timm's model has other weights.
    """
    options = dict(section.get("options") or {})
    features: Any = timm.create_model(section["model"], in_chans=description.channels, num_classes=0, **options)
    classes = 0 if set(weights) <= set(features.state_dict()) else len(description.classes)
    model: Any = timm.create_model(section["model"], in_chans=description.channels, num_classes=classes, **options)
    model.load_state_dict(weights)  # all of it, or an error
    save_tensors(folder / WEIGHTS, model.state_dict())
    resized = _resize_settings(description)
    about = {
        "architecture": section["model"],
        "num_classes": classes,
        "num_features": int(model.num_features),
        "model_args": {**options, "in_chans": description.channels},
        "pretrained_cfg": {
            "input_size": [description.channels, *description.size],
            "interpolation": resized["interpolation"],
            "crop_pct": resized["crop_pct"],
            "mean": _per_channel(description.mean, description.channels),
            "std": _per_channel(description.std, description.channels),
            "num_classes": classes,
            "first_conv": model.pretrained_cfg.get("first_conv"),
            "classifier": model.pretrained_cfg.get("classifier"),
            "custom_load": False,
        },
    }
    if classes:
        about["label_names"] = list(description.classes)
    _write_json(folder / CONFIG, about)


def _write_own(folder: Path, task: nn.Module, description: Description) -> None:
    """Write a task's weights under their own names, and read them back.

    Raises:
        ExportMismatch: they are not the same.
    """
    weights = task.state_dict()
    save_tensors(folder / WEIGHTS, weights)
    saved = read_weights(folder / WEIGHTS)
    same = saved.keys() <= weights.keys() and all(torch.equal(saved[name], weights[name]) for name in saved)
    check_difference(0.0 if same else float("inf"), 0.0, "safetensors")
    about = {"library_name": "opabinia", "task": description.task, "num_classes": len(description.classes)}
    about |= {"id2label": dict(enumerate(description.classes)), "input_size": description.size}
    _write_json(folder / CONFIG, about)


def _write_backbone(folder: Path, section: Mapping[str, Any], backbone: TimmBackbone, description: Description) -> str:
    """Write a task's backbone for timm, if it is complete; return a line to print."""
    folder.mkdir()
    try:
        write_timm(folder, section, backbone.model.state_dict(), description)
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    except RuntimeError:
        shutil.rmtree(folder)
        return "the backbone lacks layers of timm's model, so it has no folder of its own"
    return f"timm.create_model('local-dir:PATH/{BACKBONE}', pretrained=True) gives the backbone"


def preprocessing(description: Description) -> dict[str, Any]:
    """Return the preprocessing in the format of transformers' image processors, and all transforms as in the config,
    since that format cannot express every transform."""
    resized = _resize_settings(description)
    height, width = description.size
    return {
        "do_resize": resized["size"] is not None,
        "size": resized["size"] or {"height": height, "width": width},
        "resample": _RESAMPLE.get(resized["interpolation"], 2),
        "do_center_crop": resized["crop_pct"] < 1,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": bool(description.mean),
        "image_mean": _per_channel(description.mean, description.channels),
        "image_std": _per_channel(description.std, description.channels),
        "do_convert_rgb": description.channels == 3,
        "transforms": description.transforms,
    }


def _resize_settings(description: Description) -> dict[str, Any]:
    """Return size and interpolation of the first Resize, and the share that a CenterCrop after it keeps."""
    resize = next((transform for transform in description.transforms if transform["name"] == "Resize"), None)
    if resize is None:
        return {"size": None, "interpolation": "bilinear", "crop_pct": 1.0}
    sides = resize["size"] if isinstance(resize["size"], list) else [resize["size"]]
    size = {"shortest_edge": sides[0]} if len(sides) == 1 else {"height": sides[0], "width": sides[1]}
    is_cropped = any(transform["name"] == "CenterCrop" for transform in description.transforms)
    share = round(min(description.size) / min(sides), 4) if is_cropped else 1.0
    return {"size": size, "interpolation": str(resize.get("interpolation") or "bilinear"), "crop_pct": min(1.0, share)}


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) if len(values) == channels else list(values[:1]) * channels


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
