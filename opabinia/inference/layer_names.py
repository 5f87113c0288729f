"""Layers by the names that people give them, and what they say of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing
from opabinia.contracts import EMBEDDING, Batch, DataMismatch, Task
from opabinia.engine.loop.layer_outputs import flattened, with_layers
from opabinia.models.capture import near

TRUNK, HEAD = "trunk", "head"


def modules_meant(task: Task, names: Sequence[str]) -> dict[str, str]:
    """Full names of modules by what a person calls them.

    ``trunk`` is the backbone, of momentum methods the one that is measured; ``head`` the head, projector or
    expander beside it. Other names are those of modules, or the end of one: that of a single module in the trunk, or of
    a single module.

    Raises:
        ConfigError: there is no such module, or there are several.

    Example::

        modules_meant(task, ["trunk", "layer3"])    # {"trunk": "backbone", "layer3": "backbone.model.layer3"}
    """
    modules, trunk = _modules(task)
    meant = {name: _meant(name, modules, trunk) for name in names}
    problems = [_unclear(name, found, modules) for name, found in meant.items() if len(found) != 1]
    if problems:
        raise ConfigError(problems)
    return {name: found[0] for name, found in meant.items()}


def _modules(task: Task) -> tuple[dict[str, nn.Module], str]:
    """Modules by their full names, and the name of the trunk."""
    modules = {name: module for name, module in task.named_modules(remove_duplicate=False) if name}
    measured = getattr(task, TRUNK, None) or getattr(task, "backbone", None)
    return modules, next((name for name, module in modules.items() if module is measured), "")


def _meant(name: str, modules: Mapping[str, nn.Module], trunk: str) -> list[str]:
    if name == TRUNK and trunk:
        return [trunk]
    if name == HEAD:
        beside = trunk.rpartition(".")[0] + "." if "." in trunk else ""
        return [f"{beside}{one}" for one in _HEADS if f"{beside}{one}" in modules][:1]
    if name in modules:
        return [name]
    ending = {id(module): one for one, module in modules.items() if one.endswith(f".{name}")}
    inside = [one for one in ending.values() if one.startswith(f"{trunk}.")]
    return inside or list(ending.values())


_HEADS = ("head", "projector", "expander", "heads.images")
"""What tasks call what stands behind their trunk."""


def _unclear(name: str, found: Sequence[str], modules: Mapping[str, nn.Module]) -> Problem:
    if found:
        message, known = f"{name!r} is the end of several names", f"say which: {listing(found, 5)}"
    else:
        message, known = f"there is no layer {name!r}", f"near: {_near(name, modules)}"
    return Problem("command line", "--layers", message, allowed=known)


def _near(name: str, modules: Mapping[str, nn.Module]) -> str:
    whole = near(name, modules)
    ends = {one.rpartition(".")[2] for one in modules} | {TRUNK, HEAD, EMBEDDING}
    return near(name, sorted(ends)) if whole == "none" else whole


class Layers:
    """Features of a batch (B x D each), in columns.

    Args:
        task: the trained model.
        columns: what a person calls the layer of each (:func:`modules_meant`), or ``embedding``, which is what the task
            itself calls so.

    Attributes:
        modules: the full name of the layer of each column.

    Raises:
        ConfigError: there is no such layer.
    """

    def __init__(self, task: Task, columns: Mapping[str, str]) -> None:
        self._task = task
        inner = modules_meant(task, [name for name in columns.values() if name != EMBEDDING])
        self.modules = {column: inner.get(name, EMBEDDING) for column, name in columns.items()}
        # What learns without labels predicts with the trunk alone: nobody has asked its head.
        modules, self._trunk = _modules(task)
        heads = _meant(HEAD, modules, self._trunk) if hasattr(task, TRUNK) else []
        self._head = next((name for name in heads if name in inner.values()), "")
        self._heard = sorted({*inner.values(), self._trunk if self._head else ""} - {self._head, ""})

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Features by column.

        Raises:
            Unfit: the task makes no use of a layer, or it does not give a row for each sample.
        """
        found: dict[str, Tensor] = {}
        predictions: Mapping[str, Tensor] = {}
        if self._heard:
            predictions, given = with_layers(self._task, batch, self._heard)
            found = {name: flattened(tensors) for name, tensors in given.items()}
            if self._head:
                found[self._head] = self._task.get_submodule(self._head)(given[self._trunk][0]).flatten(1)
        if EMBEDDING in self.modules.values():
            found[EMBEDDING] = predictions[EMBEDDING] if EMBEDDING in predictions else self._embedding(batch)
        return {column: found[module] for column, module in self.modules.items()}

    def _embedding(self, batch: Batch) -> Tensor:
        try:
            return self._task.features(batch)[EMBEDDING].flatten(1)
        except NotImplementedError as error:
            raise DataMismatch(
                f"{type(self._task).__name__} has no embedding; name its layers with --layers"
            ) from error
