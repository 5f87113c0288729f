"""Rows of layers for classes, taken from a model of other classes by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from opabinia.contracts import ClassRows


class ClassNames(NamedTuple):
    """Class names in the order of the labels: those of a model, and those of the weights for it."""

    model: Sequence[str]
    weights: Sequence[str]

    @property
    def new(self) -> list[str]:
        """The classes of the model that the weights do not have."""
        known = set(self.weights)
        return [name for name in self.model if name not in known]


def rows_by_name(
    model: nn.Module,
    targets: Mapping[str, Tensor],
    sources: Mapping[str, Tensor],
    classes: ClassNames,
) -> dict[str, Tensor]:
    """Return the tensors of the layers that :class:`opabinia.contracts.ClassRows` describes, by name.

    Rows of classes that both models have, and those of no class (background), are those of ``sources``, others those
    of ``targets``. Layers with rows for other classes than these, such as the things of panoptic data, are omitted.

    Args:
        model: its modules declare the layers.
        targets: tensors of ``model`` by name; they stay unchanged.
        sources: tensors of the other model, by the names in ``targets``.
        classes: class names of both models.
    """
    layers = {
        f"{path}.{layer}".lstrip("."): rows
        for path, module in model.named_modules()
        for layer, rows in getattr(module, "class_layers", {}).items()
    }
    source_label = {name: label for label, name in enumerate(classes.weights)}
    labels = [label for label, name in enumerate(classes.model) if name in source_label]
    source_labels = [source_label[classes.model[label]] for label in labels]
    filled = {}
    for name, source in sources.items():
        rows = next((rows for layer, rows in layers.items() if name.startswith(f"{layer}.")), None)
        if (
            rows is not None
            and source.is_floating_point()
            and source.ndim
            and source.shape[1:] == targets[name].shape[1:]
        ):
            target = targets[name].clone()
            ours, theirs = _by_class(target, rows, classes.model), _by_class(source, rows, classes.weights)
            if ours is not None and theirs is not None:
                ours[:, labels] = theirs[:, source_labels]
                if rows.others:
                    target[-rows.others :] = source[-rows.others :]
                filled[name] = target
    return filled


def _by_class(tensor: Tensor, rows: ClassRows, classes: Sequence[str]) -> Tensor | None:
    """Return a view of the rows of classes (groups x K x width x ...); None if it has other rows."""
    if len(tensor) != rows.groups * len(classes) * rows.width + rows.others:
        return None
    return tensor[: len(tensor) - rows.others].view(rows.groups, len(classes), rows.width, *tensor.shape[1:])
