"""Models as folders in the layout of the Hugging Face Hub: weights, config, preprocessing, model card.

Every folder is also one that :func:`opabinia.load` and the commands read like a run folder: ``config.yaml`` is the
config of the run and ``state.json`` makes the folder its checkpoint. If the predictions are those of a timm model,
pooled and with its classifier, the weights have timm's names and ``timm.create_model("local-dir:PATH",
pretrained=True)`` reads them; tensors that timm's model lacks are in ``rest.safetensors``. Other tasks keep their own
names, with their backbone, if it is timm's, in such a folder inside.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from opabinia.config import dump
from opabinia.contracts import Task, relative_difference
from opabinia.engine.checkpointing.checkpoint import Snapshot, read_state, save_tensors, write_checkpoint
from opabinia.engine.loggers.metrics_log import to_json_numbers
from opabinia.inference.export.description import Description
from opabinia.inference.export.job import ExportJob, check_difference
from opabinia.inference.export.model_card import model_card
from opabinia.inference.load import load
from opabinia.models.backbones.timm import TimmBackbone, TimmClassifier
from opabinia.tasks.multitask import Multitask

CONFIG, PREPROCESSING, CARD = "config.json", "preprocessor_config.json", "README.md"
BACKBONE = "backbone"

_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Pillow's numbers, as transformers writes them."""


def write_layout(
    folder: Path, checkpoint: Path, config: Mapping[str, Any], job: ExportJob, tolerance: float, license: str
) -> list[str]:
    """Write the folder, read it back and compare; return lines to print.

    Args:
        folder: does not exist yet.
        checkpoint: the folder that the model is from.
        config: complete config of the run.
        job: the model, with adapters merged into its weights.
        tolerance: see :func:`opabinia.inference.export.export`.
        license: its name on the hub; empty leaves it open.

    Raises:
        ExportMismatch: the model that was read back differs by more.
    """
    task, description = job.module.task, job.description
    section = config["task"].get("backbone")
    if not isinstance(section, Mapping) or section.get("name") != "timm":
        section = None
    names = {} if section is None else _timm_names(task)
    snapshot = _snapshot(checkpoint, task, names, description)
    write_checkpoint(folder, snapshot)
    (folder / "config.yaml").write_text(dump({**config, "task": _without_adapters(config["task"])}), encoding="utf-8")
    _write_json(folder / PREPROCESSING, preprocessing(description))
    card = model_card(description, config, in_timm=bool(names), license=license)
    (folder / CARD).write_text(card, encoding="utf-8")
    expected = job.module.expected(job.inputs)
    tasks = list(task.tasks) if isinstance(task, Multitask) else []
    restored = load(folder, device="cpu", task=tasks).task.export_module().expected(job.inputs)
    difference = job.module.difference(expected, restored)
    check_difference(difference, tolerance, "opabinia.load")
    lines = [f"opabinia.load('PATH'): largest difference {difference:.1e}"]
    backbone = getattr(task, "backbone", None)
    if section is not None and names:
        write_timm_config(folder, section, snapshot.tensors["model"], description)
        model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        actual = model(task.normalize(job.inputs["image"]))
        difference = relative_difference(expected["logits" if "logits" in expected else "embedding"], actual)
        check_difference(difference, tolerance, f"timm {timm.__version__}")
        return [*lines, f"timm.create_model('local-dir:PATH', pretrained=True): largest difference {difference:.1e}"]
    about = {"library_name": "opabinia", "task": description.task, "num_classes": len(description.classes)}
    about |= {"id2label": dict(enumerate(description.classes)), "input_size": description.size}
    about |= {"tasks": description.tasks} if description.tasks else {}
    _write_json(folder / CONFIG, about)
    if section is not None and isinstance(backbone, TimmBackbone):
        lines.append(_write_backbone(folder / BACKBONE, section, backbone, description))
    return lines


def _snapshot(checkpoint: Path, task: Task, names: Mapping[str, str], description: Description) -> Snapshot:
    """Return the checkpoint to write: ``model`` and ``rest`` (see :func:`read_chosen`), and no state of the training.

    Args:
        checkpoint: the folder that the model is from.
        task: the model.
        names: timm's names of its tensors; empty without.
        description: description of the model.
    """
    state, tensors = read_state(checkpoint), task.state_dict()
    files = {"model": {names.get(name, name): tensors[name] for name in names or tensors}}
    if names and (rest := {name: tensor for name, tensor in tensors.items() if name not in names}):
        files["rest"] = rest
    cleared = {"hooks": {}, "optimizer": {}, "train_step": {}, "journal": {"offset": 0, "pending": []}}
    described = {"facts": asdict(state["facts"]), "scores": to_json_numbers(description.scores), "names": dict(names)}
    return Snapshot(description.step, files, {**state, **cleared, **described})


def _without_adapters(section: Any) -> Any:
    """Return a part of a config without LoRA, whose adapters are merged into the weights."""
    if isinstance(section, Mapping):
        return {key: None if key == "lora" else _without_adapters(value) for key, value in section.items()}
    return section


def _timm_names(task: Task) -> dict[str, str]:
    """Map the task's tensors to timm's names, if a timm model, with its classifier, is all that the task predicts with;
    otherwise return none."""
    if not isinstance(task.trunk, TimmBackbone):
        return {}
    parts = [task.trunk.model]
    if not task.predicts_embedding_only:
        head = getattr(task, "head", None)
        layers = (
            [layer for layer in head if not isinstance(layer, nn.Dropout)] if isinstance(head, nn.Sequential) else []
        )
        if len(layers) != 1 or not isinstance(layers[0], TimmClassifier):
            return {}
        parts.append(layers[0])
    paths = {module: path for path, module in task.named_modules()}
    return {f"{paths[part]}.{name}": name for part in parts for name in part.state_dict()}


def write_timm_config(
    folder: Path, section: Mapping[str, Any], weights: Mapping[str, Tensor], description: Description
) -> None:
    """Write the config with which timm reads the weights.

    Args:
        folder: exists.
        section: the backbone's config section.
        weights: under timm's names.
        description: description of the model.

    Raises:
        RuntimeError: timm's model has other weights.
    """
    options = dict(section.get("options") or {})
    features: Any = timm.create_model(section["model"], in_chans=description.channels, num_classes=0, **options)
    classes = 0 if set(weights) <= set(features.state_dict()) else len(description.classes)
    model: Any = timm.create_model(section["model"], in_chans=description.channels, num_classes=classes, **options)
    model.load_state_dict(weights)  # all of it, or an error
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


def _write_backbone(folder: Path, section: Mapping[str, Any], backbone: TimmBackbone, description: Description) -> str:
    """Write a task's backbone for timm, if it is complete; return a line to print."""
    folder.mkdir()
    weights = backbone.model.state_dict()
    try:
        write_timm_config(folder, section, weights, description)
        save_tensors(folder / "model.safetensors", weights)
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
