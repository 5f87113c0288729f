"""Optimizers of torch and timm as they are: names, parameters and defaults are their own."""

from __future__ import annotations

import timm.optim
import torch.optim as optim

from opabinia.config import adapt, register

# LBFGS needs a closure that runs the model again, SparseAdam sparse gradients: neither fits one update per step.
NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)

OF_TIMM = (
    "AdafactorBigVision",
    "Adan",
    "Adopt",
    "LaProp",
    "Lamb",
    "Lion",
    "MADGRAD",
    "Mars",
    "Muon",
    "NAdamW",
    "RMSpropTF",
    "SGDW",
)
"""Those of timm that torch does not have, and Muon, which takes vectors, too, in timm."""

for _name in NAMES:
    register.optimizer(name=_name.lower())(adapt(getattr(optim, _name), runtime=("params",)))

for _name in OF_TIMM:
    register.optimizer(name=_name.lower())(adapt(getattr(timm.optim, _name), runtime=("params",)))
