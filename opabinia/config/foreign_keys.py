"""Keys of other training systems (Lightning, timm, detectron2, ultralytics) and keys without their section, as users
type them, and the overrides that say the same here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.config.errors import show

_OVERRIDES = {
    "accumulate_grad_batches": "train.micro_batch_size=32",
    "amp": "train.precision=bf16",
    "arch": "task.backbone.model={}",
    "base_lr": "optimizer.lr={}",
    "batch": "data.batch_size={}",
    "batch_size": "data.batch_size={}",
    "bs": "data.batch_size={}",
    "clip_grad": "train.step.clip_norm={}",
    "clip_grad_norm": "train.step.clip_norm={}",
    "data_dir": "vars.root={}",
    "device": "train.device={}",
    "epochs": "train.length={}ep",
    "fp16": "train.precision=fp16",
    "gradient_clip_val": "train.step.clip_norm={}",
    "ims_per_batch": "data.batch_size={}",
    "learning_rate": "optimizer.lr={}",
    "lr": "optimizer.lr={}",
    "lr0": "optimizer.lr={}",
    "max_epochs": "train.length={}ep",
    "max_iter": "train.length={}it",
    "max_steps": "train.length={}it",
    "mixed_precision": "train.precision=bf16",
    "model": "task.backbone.model={}",
    "n_epochs": "train.length={}ep",
    "nb_epochs": "train.length={}ep",
    "num_epochs": "train.length={}ep",
    "num_steps": "train.length={}it",
    "num_workers": "data.num_workers={}",
    "precision": "train.precision={}",
    "pretrained": "task.backbone.pretrained={}",
    "resume": "opabinia train --resume RUN",
    "root": "vars.root={}",
    "seed": "seed={}",
    "train_batch_size": "data.batch_size={}",
    "wd": "optimizer.weight_decay={}",
    "weight_decay": "optimizer.weight_decay={}",
    "workers": "data.num_workers={}",
}


def translate(key: str, value: Any) -> str:
    """Return the override to write instead of a key that is unknown at its place; "" if there is no such synonym.

    Args:
        key: the key without its section, or the name of a command line option.
        value: the given value; of a section with one key, that key is looked up.

    Example: ``translate("max-epochs", 90)`` is ``train.length=90ep``; ``translate("model", {"lr": 0.1})`` is
    ``optimizer.lr=0.1``.
    """
    while isinstance(value, Mapping):
        if len(value) != 1:
            return ""
        [(key, value)] = value.items()
    text = _OVERRIDES.get(key.lower().replace("-", "_"), "")
    return text.format(value if isinstance(value, str) else show(value))
