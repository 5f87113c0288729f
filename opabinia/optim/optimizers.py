"""torch.optim as it is: names, parameters and defaults are torch's own."""

from __future__ import annotations

import torch.optim as optim

from opabinia.config import adapt, register

# LBFGS needs a closure that runs the model again, SparseAdam sparse gradients: neither fits one update per step.
for _name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"):
    register.optimizer(name=_name.lower())(adapt(getattr(optim, _name), runtime=("params",)))
