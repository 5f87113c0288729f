"""Weights without a run, such as a file of another system, in the model that a recipe describes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

from opabinia.config import ConfigError, Problem, Resolved, build, dump
from opabinia.config.build import errors_at
from opabinia.config.datasets import training_sets, validation_sets, with_sets, without_task_data
from opabinia.contracts import Channels, DatasetInfo
from opabinia.engine.checkpointing.checkpoint import RunState, Snapshot, read_checkpoint, write_checkpoint
from opabinia.models.lora import is_adapter
from opabinia.models.weights.checkpoints import find_checkpoint
from opabinia.models.weights.download import HUB, hub_file, replacing_weights
from opabinia.models.weights.init import Init, initialize
from opabinia.runtime.environment import library_versions
from opabinia.runtime.files import disk_errors, exclusive_lock, write_atomic
from opabinia.runtime.json_files import write_json
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.text import plural
from opabinia.training.initial_normalization import warn_of_other_normalization
from opabinia.training.model import make_task
from opabinia.training.run_folder import LAST, build_parts, folder_for, holds_run, resolve
from opabinia.training.samples import read_dataset_info


def import_weights(
    recipe: str | Path,
    overrides: Sequence[str],
    weights: Path,
    *,
    classes: Sequence[str] = (),
) -> Path:
    """Write a run folder whose only checkpoint, of step 0, has the given weights, so that every command can use them.

    Args:
        recipe: a packaged recipe, a YAML file or a run folder.
        overrides: ``key=value``; ``init.source_prefix``, ``init.partial`` and so on say how to read the file.
        weights: a file, a folder or ``hf:OWNER/NAME``, see :class:`opabinia.models.weights.init.Init`.
        classes: see :func:`read_snapshot`.

    Returns:
        The run folder, ``runs/<recipe>/<file>-<digest of the file's path, size and time, and of the config>``; one that
        exists is not written again.

    Raises:
        ConfigError: the config is wrong, or the weights do not fit; see :func:`read_snapshot`.
    """
    path = _find_weights(weights)
    resolved = resolve_with_weights(recipe, overrides, path)
    config = dump(resolved.config)
    identity = [str(path), path.stat().st_size, path.stat().st_mtime_ns, config, *classes]
    digest = blake2b(json.dumps(identity).encode(), digest_size=3).hexdigest()
    name = f"{path.parent.name}-{path.name}" if path.is_dir() else path.stem
    name = str(weights).removeprefix(HUB) if str(weights).startswith(HUB) else name
    folder = folder_for(recipe, Path("runs"), re.sub(r"[^\w.-]", "_", f"{name}-{digest}"))
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder), logging_to(None):
        if not holds_run(folder):
            snapshot = read_snapshot(resolved, classes)
            state = {**snapshot.state, "facts": asdict(snapshot.state["facts"])}
            write_checkpoint(folder / "checkpoints" / "step-00000000", replace(snapshot, state=state))
            write_atomic(folder / "checkpoints" / LAST, "step-00000000\n")
            write_json(folder / "overrides.json", list(overrides))
            write_json(folder / "origins.json", dict(resolved.origins))
            write_atomic(folder / "config.yaml", config)
        log.info("%s has the weights of %s", folder, weights)
    return folder


def resolve_with_weights(recipe: str | Path, overrides: Sequence[str], weights: Path) -> Resolved:
    """Return the config of a recipe with these weights as ``init``, instead of its own and for the whole model.

    Raises:
        ConfigError: there is no such file, or the config is wrong.
    """
    return resolve(recipe, ["init=null", f"init.weights={json.dumps(str(_find_weights(weights)))}", *overrides])


def _find_weights(weights: Path) -> Path:
    """Return the absolute path of a file or folder; ``hf:OWNER/NAME`` is downloaded once.

    Raises:
        ConfigError: there is none.
    """
    if str(weights).startswith(HUB):
        try:
            return hub_file(str(weights).removeprefix(HUB))
        except ValueError as error:  # also names that the hub does not allow
            raise ConfigError(Problem("command line", "--weights", str(error))) from error
    path = weights.expanduser().absolute()  # links are kept: in the hub's cache they lead to names without a suffix
    if not path.exists():
        raise ConfigError(Problem("command line", "--weights", f"there is no file or folder {weights}"))
    return path


def read_snapshot(resolved: Resolved, classes: Sequence[str] = ()) -> Snapshot:
    """Return the model of a config with the weights of ``init``, as the checkpoint of a run before its first step.

    The model is built for the data that the weights were trained on: for a checkpoint of ours that which it names,
    otherwise the training data of the config, or, where that does not exist, the first validation set that does.

    Args:
        resolved: the config; its ``init`` names the file.
        classes: names of the classes in the order of the weights, which were trained on color images; with them no
            data is needed.

    Raises:
        ConfigError: the weights do not fill the model (without ``init.partial``), or there is no such data.
    """
    config = without_task_data(resolved.config)
    sections = {key: config.get(key) for key in ("task", "train", "evaluate", "plugins")}
    task = build(sections, None, "predictor", resolved.origins).keywords["task"]
    with errors_at("init"):
        init = Init(**{**config["init"], "weights": Path(config["init"]["weights"])})
        dataset_info, channels = _trained_on(resolved, init.weights, classes)
        with nullcontext() if init.partial else replacing_weights():
            model = make_task(task, dataset_info, config["seed"] or 0)
        report = initialize(model, init)
        warn_of_other_normalization(model, init.weights)
        prefix = f"{init.target_prefix}." if init.target_prefix else ""
        filled = {f"{prefix}{name}" for name in report.loaded}
        initial = [name for name, _ in model.named_parameters() if name not in filled and not is_adapter(name)]
        if initial and not init.partial:
            raise ValueError(
                f"{plural(len(initial), 'parameter')} not filled, so results would be random: "
                f"{', '.join(initial[:5])}; --classes FILE names the classes of the weights, "
                f"init.partial=true accepts this, for features of the backbone; {init.weights}: {report.one_line}"
            )
    log.info("init: %s", report)
    state = RunState(
        step=0, samples=0, epoch=0, total_steps=0,
        scores={}, hooks={}, optimizer={}, optimizer_kind="", train_step={}, files={}, due=None,
        journal={"offset": 0, "pending": []}, facts=dataset_info, source_channels=channels, seed=config["seed"] or 0,
        global_batch_size=1, world_size=1, threads=1, versions=library_versions(),
    )  # fmt: skip
    return Snapshot(0, {"model": model.state_dict()}, dict(state))


def _trained_on(resolved: Resolved, weights: Path, classes: Sequence[str]) -> tuple[DatasetInfo, Channels]:
    """Describe the data that the weights were trained on, and its images before the transforms."""
    if classes:
        return DatasetInfo(samples=0, classes=tuple(classes), boxes=True, masks=True), 3
    checkpoint = find_checkpoint(weights) if weights.is_dir() else weights.parent
    if (checkpoint / "state.json").is_file():
        state = read_checkpoint(checkpoint).state
        return state["facts"], state.get("source_channels", 3)
    config, problems = resolved.config, list[Problem]()
    for stream in (*training_sets(config).values(), *validation_sets(config)):
        train = {key: stream[key] for key in ("source", "transforms")}
        try:
            parts = build_parts(replace(resolved, config=with_sets(config, train, [])))
        except ConfigError as error:
            problems += error.problems
            continue
        opened = parts.keywords["data"].train
        return read_dataset_info(opened), opened.source.channels
    message = "the number of classes is unknown: the data of the recipe does not exist"
    raise ConfigError([Problem("", "data", message, "", "", "give --classes FILE, with a name a line"), *problems])
