"""Keys of other training systems (Lightning, timm, detectron2, ultralytics) that users type, and the keys here."""

from __future__ import annotations

from typing import Any

from opabinia.config.errors import show

_KEYS = {
    "accumulate_grad_batches": "train.micro_batch_size: 32",
    "amp": "train.precision: bf16",
    "batch": "data.batch_size: {}",
    "bs": "data.batch_size: {}",
    "clip_grad": "train.step.clip_norm: {}",
    "clip_grad_norm": "train.step.clip_norm: {}",
    "epochs": "train.length: {}ep",
    "fp16": "train.precision: fp16",
    "gradient_clip_val": "train.step.clip_norm: {}",
    "ims_per_batch": "data.batch_size: {}",
    "learning_rate": "optimizer.lr: {}",
    "lr0": "optimizer.lr: {}",
    "max_epochs": "train.length: {}ep",
    "max_iter": "train.length: {}it",
    "max_steps": "train.length: {}it",
    "mixed_precision": "train.precision: bf16",
    "n_epochs": "train.length: {}ep",
    "nb_epochs": "train.length: {}ep",
    "num_epochs": "train.length: {}ep",
    "num_steps": "train.length: {}it",
    "resume": "opabinia train --resume RUN",
    "train_batch_size": "data.batch_size: {}",
    "workers": "data.num_workers: {}",
}


def translate(key: str, value: Any) -> str:
    """Return what to write here instead of another system's key: ``train.length: 90ep``; "" if it is unknown."""
    text = _KEYS.get(key.lower().replace("-", "_"), "")
    return text.format(value if isinstance(value, str) else show(value))
