"""Models as folders in the layout of the Hugging Face hub: weights, config, preprocessing, model card.

Where what the task predicts is a model of timm's, pooled and with its classifier, the folder is one that
``timm.create_model("local-dir:PATH", pretrained=True)`` reads. Other tasks have their own names in it, and their
backbone, if it is timm's, in such a folder inside.
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

from opabinia.engine.checkpointing.checkpoint import save_tensors
from opabinia.inference.export.description import Description
from opabinia.inference.export.job import Job, refuse_different
from opabinia.inference.export.model_card import card
from opabinia.inference.export.wrapper import relative
from opabinia.models.backbones.timm import TimmBackbone, TimmClassifier
from opabinia.models.weights.files import read_weights

WEIGHTS, CONFIG, PREPROCESSING, CARD = "model.safetensors", "config.json", "preprocessor_config.json", "README.md"
BACKBONE = "backbone"

_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Numbers of Pillow, which is how transformers writes them."""


def write_layout(folder: Path, run: Path, config: Mapping[str, Any], job: Job, tolerance: float) -> list[str]:
    """Write the folder, read its weights back and compare; what to tell of it.

    Args:
        folder: does not exist yet.
        run: the run folder.
        config: of the run, complete.
        job: what is exported.
        tolerance: see :func:`opabinia.inference.export.export`.

    Raises:
        Different: what was read back differs by more.
    """
    folder.mkdir()
    task, said = job.inference.task, job.description
    whole = _whole_model(task)
    section = _timm_section(config)
    lines = []
    if whole is not None and section is not None:
        write_timm(folder, section, whole, said)
        difference = _compared_in_timm(folder, job)
        lines.append(f"timm.create_model('local-dir:PATH', pretrained=True): largest difference {difference:.1e}")
        refuse_different(difference, tolerance, f"timm {timm.__version__}")
    else:
        _write_own(folder, task, said)
        lines.append("the weights have their own names; opabinia train PATH/config.yaml init.weights=... takes them")
        backbone = getattr(task, "backbone", None)
        if section is not None and isinstance(backbone, TimmBackbone):
            lines.append(_write_backbone(folder / BACKBONE, section, backbone, said))
    _write_json(folder / PREPROCESSING, preprocessing(said))
    shutil.copyfile(run / "config.yaml", folder / "config.yaml")
    (folder / CARD).write_text(card(said, config, in_timm=whole is not None and section is not None), encoding="utf-8")
    return lines


def _timm_section(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The config's section of a backbone of timm's, if the task has one."""
    section = config["task"].get("backbone")
    return section if isinstance(section, Mapping) and section.get("name") == "timm" else None


def _whole_model(task: nn.Module) -> dict[str, Tensor] | None:
    """Weights under timm's names, if timm's model with its classifier is all there is to a task's predictions."""
    backbone = getattr(task, "trunk", getattr(task, "backbone", None))
    if not isinstance(backbone, TimmBackbone):
        return None
    weights = dict(backbone.model.state_dict())
    if hasattr(task, "trunk"):  # of a self-supervised task: its vectors are all that is predicted
        return weights
    head = getattr(task, "head", None)
    layers = [one for one in head if not isinstance(one, nn.Dropout)] if isinstance(head, nn.Sequential) else []
    if len(layers) == 1 and isinstance(layers[0], TimmClassifier):
        return weights | dict(layers[0].state_dict())
    return None


def write_timm(folder: Path, section: Mapping[str, Any], weights: Mapping[str, Tensor], said: Description) -> None:
    """Write weights and config as timm reads them.

    Args:
        folder: is there.
        section: the backbone's, of the config.
        weights: under timm's names.
        said: of the model.

    Raises:
        RuntimeError: timm's model has other weights.
    """
    options = dict(section.get("options") or {})
    features: Any = timm.create_model(section["model"], in_chans=said.channels, num_classes=0, **options)
    classes = 0 if set(weights) <= set(features.state_dict()) else len(said.classes)
    model: Any = timm.create_model(section["model"], in_chans=said.channels, num_classes=classes, **options)
    model.load_state_dict(weights)  # all of it, or an error
    save_tensors(folder / WEIGHTS, model.state_dict())
    resized = _resized(said)
    about = {
        "architecture": section["model"],
        "num_classes": classes,
        "num_features": int(model.num_features),
        "model_args": {**options, "in_chans": said.channels},
        "pretrained_cfg": {
            "input_size": [said.channels, *said.size],
            "interpolation": resized["interpolation"],
            "crop_pct": resized["crop_pct"],
            "mean": _per_channel(said.mean, said.channels),
            "std": _per_channel(said.std, said.channels),
            "num_classes": classes,
            "first_conv": model.pretrained_cfg.get("first_conv"),
            "classifier": model.pretrained_cfg.get("classifier"),
            "custom_load": False,
        },
    }
    if classes:
        about["label_names"] = list(said.classes)
    _write_json(folder / CONFIG, about)


def _compared_in_timm(folder: Path, job: Job) -> float:
    """The largest difference between what timm's model, read from the folder, and the task say."""
    image = job.inputs["image"]
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    normalize: Any = job.inference.task.normalize
    found = model(normalize(image))
    original = job.inference.original(job.inputs)
    return relative(original["logits" if "logits" in original else "embedding"], found)


def _write_own(folder: Path, task: nn.Module, said: Description) -> None:
    """Write all of a task's weights under their own names, and read them back.

    Raises:
        Different: they are others then.
    """
    weights = task.state_dict()
    save_tensors(folder / WEIGHTS, weights)
    back = read_weights(folder / WEIGHTS)
    same = back.keys() <= weights.keys() and all(torch.equal(back[name], weights[name]) for name in back)
    refuse_different(0.0 if same else float("inf"), 0.0, "safetensors")
    about = {"library_name": "opabinia", "task": said.task, "num_classes": len(said.classes)}
    _write_json(folder / CONFIG, {**about, "id2label": dict(enumerate(said.classes)), "input_size": said.size})


def _write_backbone(folder: Path, section: Mapping[str, Any], backbone: TimmBackbone, said: Description) -> str:
    """Write a task's backbone for timm, if it is whole; what to tell of it."""
    folder.mkdir()
    try:
        write_timm(folder, section, backbone.model.state_dict(), said)
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    except RuntimeError:
        shutil.rmtree(folder)
        return "the backbone has not all layers of timm's model, so there is no folder of its own for it"
    return f"timm.create_model('local-dir:PATH/{BACKBONE}', pretrained=True) gives the backbone"


def preprocessing(said: Description) -> dict[str, Any]:
    """What is done to pictures, as transformers' image processors are told; with all transforms as the config has
    them, which they may not be able to tell."""
    resized = _resized(said)
    height, width = said.size
    about: dict[str, Any] = {
        "do_resize": resized["size"] is not None,
        "size": resized["size"] or {"height": height, "width": width},
        "resample": _RESAMPLE.get(resized["interpolation"], 2),
        "do_center_crop": resized["crop_pct"] < 1,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": bool(said.mean),
        "image_mean": _per_channel(said.mean, said.channels),
        "image_std": _per_channel(said.std, said.channels),
        "do_convert_rgb": said.channels == 3,
    }
    return about | {"transforms": said.transforms}


def _resized(said: Description) -> dict[str, Any]:
    """What the first Resize among the transforms does, and how much a CenterCrop behind it leaves."""
    resize = next((one for one in said.transforms if one["name"] == "Resize"), None)
    if resize is None:
        return {"size": None, "interpolation": "bilinear", "crop_pct": 1.0}
    sides = resize["size"] if isinstance(resize["size"], list) else [resize["size"]]
    size = {"shortest_edge": sides[0]} if len(sides) == 1 else {"height": sides[0], "width": sides[1]}
    cropped = any(one["name"] == "CenterCrop" for one in said.transforms)
    share = round(min(said.size) / min(sides), 4) if cropped else 1.0
    return {"size": size, "interpolation": str(resize.get("interpolation") or "bilinear"), "crop_pct": min(1.0, share)}


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) if len(values) == channels else list(values[:1]) * channels


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
