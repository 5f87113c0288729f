"""Layers by the names that users give them, and their outputs for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing
from opabinia.contracts import EMBEDDING, Batch, DataMismatch, Task
from opabinia.engine.loop.layer_outputs import flatten_outputs, predict_with_layers
from opabinia.models.capture import nearest_names

TRUNK, HEAD = "trunk", "head"

_HEADS = ("head", "projector", "expander", "heads.images")
"""Names that tasks give to the module behind their trunk."""


def resolve_layer_names(task: Task, names: Sequence[str]) -> dict[str, str]:
    """Return full module names for the names that users give.

    ``trunk`` is the backbone, of momentum methods the one that is evaluated; ``head`` the head, projector or expander
    beside it. Other names are those of modules, or the unambiguous end of one, first within the trunk, then anywhere.

    Raises:
        ConfigError: there is no such module, or there are several.

    Example::

        resolve_layer_names(task, ["trunk", "layer3"])    # {"trunk": "backbone", "layer3": "backbone.model.layer3"}
    """
    modules, trunk = _modules(task)
    candidates = {name: _candidates(name, modules, trunk) for name in names}
    problems = [_problem(name, matches, modules) for name, matches in candidates.items() if len(matches) != 1]
    if problems:
        raise ConfigError(problems)
    return {name: matches[0] for name, matches in candidates.items()}


def _modules(task: Task) -> tuple[dict[str, nn.Module], str]:
    """Return modules by their full names, and the name of the trunk."""
    modules = {name: module for name, module in task.named_modules(remove_duplicate=False) if name}
    trunk = task.trunk
    return modules, next((name for name, module in modules.items() if module is trunk), "")


def _candidates(name: str, modules: Mapping[str, nn.Module], trunk: str) -> list[str]:
    if name == TRUNK and trunk:
        return [trunk]
    if name == HEAD:
        parent = trunk.rpartition(".")[0] + "." if "." in trunk else ""
        return [f"{parent}{head}" for head in _HEADS if f"{parent}{head}" in modules][:1]
    if name in modules:
        return [name]
    matches: dict[int, str] = {}
    for full, module in modules.items():
        if full.endswith(f".{name}"):
            matches.setdefault(id(module), full)
    in_trunk = [full for full in matches.values() if full.startswith(f"{trunk}.")]
    return in_trunk or list(matches.values())


def _problem(name: str, matches: Sequence[str], modules: Mapping[str, nn.Module]) -> Problem:
    if matches:
        message, allowed = f"{name!r} is the end of several names", f"give one of: {listing(matches, 5)}"
    else:
        similar = nearest_names(name, modules)
        if similar == "none":
            ends = {full.rpartition(".")[2] for full in modules} | {TRUNK, HEAD, EMBEDDING}
            similar = nearest_names(name, sorted(ends))
        message, allowed = f"there is no layer {name!r}", f"similar: {similar}"
    return Problem("command line", "--layers", message, allowed=allowed)


class LayerFeatures:
    """Features of a batch (B x D each), by column.

    Args:
        task: the trained model.
        columns: layer of each column (see :func:`resolve_layer_names`), or ``embedding``, that of the task itself.

    Attributes:
        modules: the full name of the layer of each column.

    Raises:
        ConfigError: there is no such layer.
    """

    def __init__(self, task: Task, columns: Mapping[str, str]) -> None:
        self._task = task
        resolved = resolve_layer_names(task, [name for name in columns.values() if name != EMBEDDING])
        self.modules = {column: resolved.get(name, EMBEDDING) for column, name in columns.items()}
        # A self-supervised task predicts with its trunk only, so its head is called here.
        modules, self._trunk = _modules(task)
        heads = _candidates(HEAD, modules, self._trunk) if task.predicts_embedding_only else []
        self._head = next((name for name in heads if name in resolved.values()), "")
        self._captured = sorted({*resolved.values(), self._trunk if self._head else ""} - {self._head, ""})

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return features by column.

        Raises:
            DataMismatch: the task does not use a layer, or its output has no row for each sample.
        """
        features: dict[str, Tensor] = {}
        predictions: Mapping[str, Tensor] = {}
        if self._captured:
            predictions, outputs = predict_with_layers(self._task, batch, self._captured)
            features = {name: flatten_outputs(tensors) for name, tensors in outputs.items()}
            if self._head:
                head = self._task.get_submodule(self._head)
                features[self._head] = head(outputs[self._trunk][0]).flatten(1)
        if EMBEDDING in self.modules.values():
            features[EMBEDDING] = predictions[EMBEDDING] if EMBEDDING in predictions else self._embedding(batch)
        return {column: features[module] for column, module in self.modules.items()}

    def _embedding(self, batch: Batch) -> Tensor:
        try:
            return self._task.features(batch)[EMBEDDING].flatten(1)
        except NotImplementedError as error:
            task = type(self._task).__name__
            raise DataMismatch(f"{task} has no embedding; name its layers with --layers") from error
