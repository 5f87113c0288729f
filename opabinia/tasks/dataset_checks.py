"""Checks of an evaluation dataset against the training data, shared by tasks."""

from __future__ import annotations

from opabinia.contracts import DatasetInfo


def check_channels(evaluated: DatasetInfo, trained: DatasetInfo) -> None:
    """Check that images of both datasets have the same number of channels.

    Raises:
        ValueError: they differ.
    """
    if evaluated.channels != trained.channels:
        raise ValueError(f"its images have {evaluated.channels} channels, those of training {trained.channels}")


def check_classes(evaluated: DatasetInfo, trained: DatasetInfo) -> None:
    """Check that both datasets have the same classes in the same order, so that labels mean the same.

    Raises:
        ValueError: they differ.
    """
    if evaluated.classes != trained.classes:
        missing = [name for name in trained.classes if name not in evaluated.classes]
        new = [name for name in evaluated.classes if name not in trained.classes]
        raise ValueError(
            f"its classes are not those of the training data (missing: {', '.join(missing) or 'none'}; "
            f"new: {', '.join(new) or 'none'}; the order counts)"
        )
