"""torch.compile: the modules of a run that are compiled, and a report of those whose calls are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from opabinia.contracts import Detector, Hook, Run, SegmentationDecoder, Task
from opabinia.runtime.log import log
from opabinia.training.model import Models

_MAX_GRAPHS = 8
"""Graphs of a module (shapes, training and evaluation) above which torch runs it uncompiled. This is torch's default,
but torch counts those of all modules of a process together."""


def compile_modules(models: Models, device: torch.device) -> ReportCompiled | None:
    """Compile modules of the task, of its EMA copy and of its teachers in place; without a working compiler log a
    warning and change nothing.

    Compiled are the modules that the task calls, each by itself. A backbone decides what its methods run as compiled
    code (:meth:`torch.nn.Module.compile`), a detector names its neck and its heads
    (:attr:`opabinia.contracts.Detector.compiled_modules`), and so does a decoder of masks.

    Args:
        models: the models of the run.
        device: device of the run.

    Returns:
        the hook that reports what the steps call; None without a compiler.
    """
    try:
        torch.compile(torch.neg)(torch.ones(1, device=device))
    except Exception as error:  # many kinds: no compiler, no headers, a broken cache
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        log.warning("train.compile: this machine cannot compile (%s); continuing without", reason)
        return None
    log.info("train.compile: the first step of each input shape compiles, which can take minutes")
    compiled = [models.task, *([models.ema] if models.ema else [])]
    if models.wrapper is not None:
        average = models.wrapper.average
        compiled += [*models.wrapper.teachers, *([average] if average else [])]
    for module in dict.fromkeys(module for model in compiled for module in _called_modules(model)):
        module.compile()
    modules = (module for model in compiled for module in model.modules())
    limit = _MAX_GRAPHS * sum(module._compiled_call_impl is not None for module in modules)
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, limit)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, limit)
    return ReportCompiled(models.task)


def _called_modules(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, Task | nn.ModuleList | nn.ModuleDict):
            yield from _called_modules(child)
        elif isinstance(child, Detector | SegmentationDecoder) and child.compiled_modules:
            yield from (part for name, part in child.named_modules() if re.fullmatch(child.compiled_modules, name))
        elif child.state_dict() or list(child.buffers()):  # others are one kernel, or pass on what they remember
            yield child


class ReportCompiled(Hook):
    """Logs after the first step which modules ran as compiled code, and which weights are in none of them.

    Args:
        task: its modules are compiled.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._is_logged = task, False
        self._called: dict[str, list[nn.Module]] = {}
        for name, module in task.named_modules():
            if module._compiled_call_impl is not None:
                self._record_first_call(name, module)

    def _record_first_call(self, name: str, module: Any) -> None:
        compiled = module._compiled_call_impl

        def first_call(*args: Any, **kwargs: Any) -> Any:
            module._compiled_call_impl = compiled
            self._called[name] = [module, *(arg for arg in args if isinstance(arg, nn.Module))]
            return compiled(*args, **kwargs)

        module._compiled_call_impl = first_call

    def after_step(self, run: Run) -> None:
        """Log, once."""
        if self._is_logged:
            return
        self._is_logged = True
        compiled = {param for modules in self._called.values() for module in modules for param in module.parameters()}
        eager = [param for param in self._task.parameters() if param not in compiled]
        count, total = (sum(param.numel() for param in params) for params in (eager, self._task.parameters()))
        report = log.info if compiled else log.warning
        report("train.compile: compiled: %s", ", ".join(self._called) or "nothing")
        if eager:
            names = ", ".join(_without(self._task, compiled))
            report("train.compile: not compiled, %.0f%% of the parameters: %s", 100 * count / total, names)


def _without(module: nn.Module, compiled: set[nn.Parameter], path: str = "") -> Iterator[str]:
    """Yield the names of the largest modules, and of parameters beside them, none of whose parameters are compiled."""
    for name, param in module.named_parameters(path, recurse=False):
        if param not in compiled:
            yield name
    for name, child in module.named_children():
        child_path, params = f"{path}.{name}" if path else name, set(child.parameters())
        if params and not params & compiled:
            yield child_path
            compiled |= params  # named once, though several tasks may share it
        elif params - compiled:
            yield from _without(child, compiled, child_path)
