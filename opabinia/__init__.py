"""Opabinia: a PyTorch training engine for computer vision."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opabinia.models.weights import FORMAT_MODULES
from opabinia.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from opabinia.config import ConfigError as ConfigError
    from opabinia.config import adapt as adapt
    from opabinia.config import register as register
    from opabinia.data import Data as Data
    from opabinia.data import Stream as Stream
    from opabinia.data import ValidationStream as ValidationStream
    from opabinia.inference.fit import fit as fit
    from opabinia.inference.load import load as load
    from opabinia.inference.predictor import Predictor as Predictor
    from opabinia.optim.ema import Ema as Ema
    from opabinia.runtime.durations import Duration as Duration
    from opabinia.training.launch import evaluate as evaluate
    from opabinia.training.launch import train as train
    from opabinia.training.session import TrainingRun as TrainingRun
    from opabinia.training.settings import Checkpointing as Checkpointing
    from opabinia.training.settings import Evaluation as Evaluation
    from opabinia.training.settings import Training as Training

_MODULES = {
    "Checkpointing": "training.settings",
    "ConfigError": "config",
    "Data": "data",
    "Duration": "runtime.durations",
    "Ema": "optim.ema",
    "Evaluation": "training.settings",
    "Predictor": "inference.predictor",
    "Stream": "data",
    "Training": "training.settings",
    "TrainingRun": "training.session",
    "ValidationStream": "data",
    "adapt": "config",
    "evaluate": "training.launch",
    "fit": "inference.fit",
    "load": "inference.load",
    "register": "config",
    "train": "training.launch",
}
"""The modules of the public names, imported when a name is first used: `import opabinia` does not import torch."""

__all__ = ["__version__", *_MODULES]


FORMAT_MODULES.append("opabinia.migration.weights")  # training and the layers below do not import migration

# For train.deterministic: cuBLAS reads it once, before the first matrix product of the process on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'opabinia' has no attribute {name!r}")
    return getattr(import_module(f"opabinia.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
