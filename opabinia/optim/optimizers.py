"""torch.optim as it is: names, parameters and defaults are torch's own."""

from __future__ import annotations

import torch.optim as optim

from opabinia.config import adapt, register

# LBFGS needs a closure that runs the model again, SparseAdam sparse gradients: neither fits one update per step.
NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)

for _name in NAMES:
    register.optimizer(name=_name.lower())(adapt(getattr(optim, _name), runtime=("params",)))
