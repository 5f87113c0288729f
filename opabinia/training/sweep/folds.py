"""Cross-validation: the folds of a recipe's training data, and the changes to its config that train each.

The *folder of the folds*, ``NAME-folds`` next to the runs ``NAME-fold1`` ..., has their split files, the record, and
the config of the recipe. For commands that use a trained model it is a run folder, of the ensemble of these runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.datasets import subtasks, validation_sets, with_sets
from opabinia.config.paths import FOLDS_FILE
from opabinia.config.text import dump, escape, flow
from opabinia.runtime.files import write_atomic
from opabinia.runtime.json_files import read_json, write_json
from opabinia.runtime.log import log
from opabinia.runtime.text import plural


@dataclass(frozen=True)
class Folds:
    """The folds of a recipe, as recorded in ``folds.json``, which gets the scores at the end.

    Attributes:
        recipe: name or path of the recipe, as given.
        folds: their number, K.
        group_by: samples that are equal in this are in one fold; None: only what is found keeps samples together.
        seed: seed of the folds.
        runs: folders of the runs, relative to that of the folds.
        identities: the labels are identities.
    """

    recipe: str
    folds: int
    group_by: str | None
    seed: int
    runs: list[str]
    identities: bool = False


@dataclass(frozen=True)
class FoldScores(Folds):
    """The record at the end.

    Attributes:
        overrides: ``key=value``, as given.
        out_of_fold: scores over the out-of-fold predictions of all samples.
        scores: summary of each score, see :class:`opabinia.training.sweep.seeds.Summary`.
    """

    overrides: list[str] = field(default_factory=list)
    out_of_fold: dict[str, float] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)


def split_files(folder: Path, count: int) -> list[Path]:
    """Return the split files of the folds."""
    return [folder / f"fold{number}.json" for number in range(1, count + 1)]


def make_folds(folder: Path, folds: Folds, resolved: Resolved) -> Folds:
    """Divide the training data of a recipe into folds and write their split files, unless that was done before.

    Args:
        folder: the folder of the folds.
        folds: the wanted ones.
        resolved: the config of the recipe.

    Returns:
        The folds as recorded.

    Raises:
        ConfigError: the data cannot be opened or divided, or the folder has other folds.
        InvalidFile: the record is damaged.
        DiskError: a file cannot be written.
    """
    path = folder / FOLDS_FILE
    if path.is_file():
        saved = read_json(path, Folds)
        for key in ("recipe", "folds", "group_by", "seed"):
            old, new = getattr(saved, key), getattr(folds, key)
            if old != new:
                message = f"belongs to folds with another {key} ({old}, not {new}): choose another --name"
                raise ConfigError(Problem(str(path), "", message))
        return saved
    from opabinia.contracts import SINGLE
    from opabinia.data.splitting import split_into_folds
    from opabinia.tasks.reid.base import Reidentification
    from opabinia.training.run_folder import build_parts
    from opabinia.training.streams import training_streams

    train = {"source": _samples_of(resolved), "transforms": []}
    alone = replace(resolved, config=with_sets(resolved.config, train, []))
    parts = build_parts(alone, batch_size=1).keywords  # where it is auto
    source = training_streams(parts["task"], parts["data"])[SINGLE].source
    task = getattr(parts["task"], "target", None)
    identities = isinstance(task, type) and issubclass(task, Reidentification)
    files = split_files(folder, folds.folds)
    try:
        groups = split_into_folds(source, files, group_by=folds.group_by, identities=identities, seed=folds.seed)
    except ValueError as error:
        raise ConfigError(Problem("command line", "--folds", str(error))) from error
    folds = replace(folds, identities=identities)
    write_atomic(folder / "config.yaml", dump(resolved.config))
    write_json(path, asdict(folds))
    count = int(groups.max()) + 1
    together = "" if count == len(groups) else f" ({plural(count, 'group')} of samples that belong together)"
    log.info("folds   %s%s in %d folds: %s", plural(len(groups), "sample"), together, folds.folds, folder)
    return folds


def fold_changes(resolved: Resolved, overrides: Sequence[str], file: Path, folds: Folds) -> list[str]:
    """Return the overrides that train a recipe on all samples but those of a fold, and evaluate it on these.

    Args:
        resolved: the config of the recipe with ``overrides``.
        overrides: ``key=value``.
        file: the split file of the fold.
        folds: the folds.

    Raises:
        ConfigError: the recipe has several tasks, or not one validation set.
    """
    data = resolved.config["data"]
    (validation,) = _validation_sets(resolved)
    subset = {"name": "subset", "source": _samples_of(resolved), "file": str(file), "identities": folds.identities}
    train, val = ({**subset, "split": split} for split in ("train", "val"))
    sections = {
        "data.train.source": _wrapped(data["train"]["source"], ("indexed",), train),
        f"data.val{'.0' if isinstance(data['val'], list) else ''}.source": _wrapped(
            validation["source"], ("video_views",), val
        ),
    }
    given = re.compile(rf"(--)?\s*({'|'.join(map(re.escape, sections))})(\.|\s*=)")
    kept = [word for word in overrides if not given.match(word)]  # they are in the sections already
    return [*kept, *(f"{key}={flow(escape({**section, '_delete_': True}))}" for key, section in sections.items())]


def _samples_of(resolved: Resolved) -> dict[str, Any]:
    """Return the section of the source whose samples are divided.

    Raises:
        ConfigError: see :func:`fold_changes`.
    """
    _validation_sets(resolved)
    source: dict[str, Any] = resolved.config["data"]["train"]["source"]
    return source["source"] if source["name"] == "indexed" else source


def _wrapped(outer: Mapping[str, Any], wrappers: Sequence[str], source: dict[str, Any]) -> dict[str, Any]:
    """Return ``source`` in the wrapper that ``outer`` is, if it is one of these."""
    return {**outer, "source": source} if outer["name"] in wrappers else source


def _validation_sets(resolved: Resolved) -> list[dict[str, Any]]:
    if subtasks(resolved.config):
        raise ConfigError(
            Problem("command line", "--folds", "folds are for recipes of one task, not for multi-task runs")
        )
    sets = validation_sets(resolved.config)
    if len(sets) != 1:
        message = "the samples of a fold are read like those of the validation set, of which the recipe must have one"
        found = ", ".join(section["prefix"] for section in sets) or "none"
        hint = "change the recipe, or data.val on the command line"
        raise ConfigError(Problem(resolved.origins.get("data.val", ""), "data.val", message, found, "", hint))
    return sets
