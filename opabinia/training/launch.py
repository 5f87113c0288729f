"""What a command does around a run: find its folder, keep what is in it, decide where to go on, write the results."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved, dump, flatten
from opabinia.config.compose import PACKAGED
from opabinia.engine.checkpointing.checkpoint import (
    BadCheckpoint,
    Snapshot,
    WeightsMismatch,
    listed,
    newest_whole,
    pointed,
    read_checkpoint,
)
from opabinia.engine.hooks.expected_scores import UnexpectedScore
from opabinia.engine.loop.evaluate import write_json
from opabinia.engine.loop.nonfinite import NonFinite
from opabinia.runtime.elastic_agent import is_restart, launch_id
from opabinia.runtime.files import disk_errors, exclusive_lock, mend, write_atomic
from opabinia.runtime.log import log, log_in_full, logging_to
from opabinia.runtime.process_group import joined_process_group
from opabinia.runtime.processes import from_rank_zero, is_rank_zero, world_size
from opabinia.runtime.seeds import draw_seed
from opabinia.runtime.signals import Stopped, StopSignal, status_of_reason, stop_signals
from opabinia.training.auto_values import with_values
from opabinia.training.autotune import autotune
from opabinia.training.run_folder import (
    LAST,
    build_parts,
    chosen_checkpoint,
    holds_run,
    process_group_options,
    read_chosen,
    resolve,
    validation_sets,
)
from opabinia.training.session import Session
from opabinia.training.summary import titled
from opabinia.training.trained_model import evaluate as evaluate_trained
from opabinia.training.world_size_scaling import auto_scale


def run_folder_of(recipe: str, out: Path, name: str, resume: str | None = None) -> Path:
    """``<out>/<recipe>/<name>``; a YAML file's name without suffix is its recipe's name.

    A run folder given as recipe is itself when it is resumed; a new run with its config lies beside it.

    Raises:
        ConfigError: the name is none for a folder.
    """
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        message = f"{name!r} is no name for a run: letters, digits, '_', '-' and '.'"
        raise ConfigError(Problem("command line", "--name", message))
    path = Path(recipe)
    if (path / "config.yaml").is_file():
        return path if resume is not None else path.parent / name
    return out / (path.stem if path.suffix in (".yaml", ".yml") else recipe) / name


def holds_results(folder: Path) -> bool:
    """Whether there is something in ``folder`` that another run must not overwrite: a checkpoint, or numbers."""
    metrics = folder / "metrics.jsonl"
    return bool(listed(folder / "checkpoints")) or (metrics.is_file() and metrics.stat().st_size > 0)


def train(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    out: Path = Path("runs"),
    name: str = "default",
    resume: str | None = None,
) -> tuple[Path, dict[str, float]]:
    """Train a recipe in its run folder; return the folder and the final scores.

    Args:
        recipe: a packaged recipe, a YAML file or a run folder.
        overrides: ``key=value``.
        out: the run folder is ``<out>/<recipe>/<name>``.
        name: see ``out``.
        resume: "last", "best" or a checkpoint folder of this run; None begins a new run.

    Raises:
        ConfigError: the config is wrong, or the folder holds a run and ``resume`` is None.
        Stopped: a signal or a limit ended it early; it has saved.
    """
    folder = run_folder_of(recipe, out, name, resume)
    said = overrides  # a run folder's config holds what was said before
    if resume is not None:
        overrides = [*_overrides_of(folder), *overrides]
    resolved = resolve(recipe, said if Path(recipe) == folder else overrides)
    # Signals first: what asks one process to stop while others still join is not lost.
    with (
        stop_signals(StopSignal()) as stop,
        joined_process_group(**process_group_options(resolved.config)),
        ExitStack() as held,
    ):
        resume = from_rank_zero(partial(_take_folder, folder, resume, held))
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)  # of this process's log, where it shares no disk with the first
        held.enter_context(logging_to(folder))
        for warning in resolved.warnings:
            log.warning("%s", warning)
        snapshot = _checkpoint_to_resume(folder, resume)
        before, config, scores = from_rank_zero(partial(_settled, folder, resume, snapshot, resolved.config))
        if snapshot is None:
            _clear(folder)
        else:
            log.info("resuming %s from step %d", folder, snapshot.step)
        _tell_differences(before, config)
        if scores is not None:
            log.info("%s is finished: nothing to do", folder)
            return folder, scores
        log_in_full("config as written", _as_written(recipe, overrides))
        found = autotune(config, lambda numbered: build_parts(replace(resolved, config=numbered)).keywords)
        # A step's numbers depend on these; workers are tried out each time.
        config = with_values(config, **{key: value for key, value in found.items() if key != "workers"})
        log_in_full("config, resolved", dump(config))
        begin = partial(_begin, folder, config, overrides, resolved.origins)
        title = titled(recipe, config["task"])
        session = Session(folder, snapshot, lambda: stop.reason, begin, title=title)
        try:
            scores = _trained(replace(resolved, config=with_values(config, **found)), session)
        except Stopped as reason:
            log.info("stopped: %s; to go on: opabinia train %s --resume", reason, folder)
            # The signal may have come to another process.
            raise Stopped(str(reason), status_of_reason(str(reason))) from None
        except WeightsMismatch as error:
            raise ConfigError(Problem("", "task", f"the checkpoint's weights do not fit: {error}")) from error
        except UnexpectedScore as error:
            log.error("%s", error, extra={"file_only": True})
            _write_results(folder, error.scores)
            raise
        except Exception:
            log.exception("the run ended with an error", extra={"file_only": True})
            raise
        _write_results(folder, scores)
        return folder, scores


def _trained(resolved: Resolved, session: Session) -> dict[str, float]:
    """Train; when numbers go wrong, and the config says so, go on from the last checkpoint without that batch."""
    while True:
        try:
            return build_parts(resolved)(session)
        except NonFinite as error:
            if resolved.config["train"]["on_nonfinite"] != "rollback":
                raise
            log.error("%s", error)
            wrong = error.step - 1
        session = _rolled_back(session, wrong)


def _rolled_back(session: Session, wrong: int) -> Session:
    """The session from the last checkpoint on (or anew), without the batch ``wrong``.

    Raises:
        NonFinite: it has gone wrong too often.
    """
    snapshot = _checkpoint_to_resume(session.folder, LAST)
    step = snapshot.step if snapshot else 0
    left_out = session.left_out.union({wrong}, snapshot.state.get("left_out", ()) if snapshot else ())
    since = sum(one >= step for one in left_out)
    if since > _ROLLBACKS or left_out.issuperset(range(wrong - _ROLLBACKS + 1, wrong + 1)):
        message = f"numbers have gone wrong in {since} batches after step {step}, or in {_ROLLBACKS} in a row"
        raise NonFinite(f"{message}: this run does not learn", wrong + 1)
    if snapshot is None:
        _clear(session.folder)
    log.warning("going back to step %d; the batch of step %d will be left out", step, wrong + 1)
    return replace(session, resume=snapshot, left_out=left_out)


_ROLLBACKS = 10
"""How many batches may be left out from one checkpoint on, or one after the other."""


def _take_folder(folder: Path, resume: str | None, held: ExitStack) -> str | None:
    """Make the folder and lock it until ``held`` ends.

    Returns:
        What to resume: ``resume``, but the last checkpoint after a crash in this very launch.

    Raises:
        ConfigError: it holds a run, and nothing is to be resumed.
    """
    if is_restart() and _launch_of(folder) == launch_id():
        resume = LAST
    _refuse_to_overwrite(folder, resume)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
    held.enter_context(exclusive_lock(folder))
    _refuse_to_overwrite(folder, resume)  # another process may have been there first
    mend(folder)
    mend(folder / "checkpoints")
    return resume


def _launch_of(folder: Path) -> str | None:
    """The launch that has begun the run in ``folder``, or gone on with it, last."""
    launch = folder / ".launch"
    return launch.read_text(encoding="utf-8") if launch.is_file() else None


def _settled(
    folder: Path, resume: str | None, snapshot: Snapshot | None, config: dict[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any], dict[str, float] | None]:
    """The config the run had before, the one it has now, and its scores if there is nothing left to do."""
    before = None if resume is None else _saved_config(folder)
    # A resumed run keeps its course: it is scaled for the number of processes that it began with.
    tuned = before["train"].get("tuned_for") if before else None
    scaled, changes = auto_scale(config, tuned or world_size())
    for change in changes if snapshot is None else ():
        log.info("train.tuned_for %s, processes %d: %s", config["train"]["tuned_for"], world_size(), change)
    now = _with_found(_with_seed(scaled, snapshot, before), snapshot, before)
    return before, now, _finished(folder, snapshot, before, now)


def _write_results(folder: Path, scores: Mapping[str, float]) -> None:
    if is_rank_zero():
        write_atomic(folder / "results.json", json.dumps(dict(scores), indent=1) + "\n")


def _saved_config(folder: Path) -> dict[str, Any] | None:
    try:
        return resolve(folder).config if holds_run(folder) else None
    except ConfigError as error:
        log.warning("the config saved in %s cannot be read any more: %s", folder, error)
        return None


def _checkpoint_to_resume(folder: Path, resume: str | None) -> Snapshot | None:
    """The checkpoint that the first process chooses, read by every process."""
    if resume is None:
        return None
    mine: list[Snapshot] = []

    def choose() -> Path | None:
        found = _chosen(folder / "checkpoints", resume)
        mine.extend([found[1]] if found else [])
        return found[0] if found else None

    path = from_rank_zero(choose)
    if path is None:
        log.info("no checkpoint in %s: starting anew", folder / "checkpoints")
        return None
    try:
        return mine[0] if mine else read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("", "", str(error))) from error


def _chosen(checkpoints: Path, resume: str) -> tuple[Path, Snapshot] | None:
    try:
        if resume == LAST:
            return newest_whole(checkpoints)
        path = (pointed(checkpoints, resume) or Path(resume)) if resume == "best" else Path(resume)
        if path.parent.resolve() != checkpoints.resolve():
            raise ConfigError(Problem("command line", "--resume", f"{path} is not a checkpoint in {checkpoints}"))
        snapshot = read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("", "", str(error))) from error
    ahead = [other.name for other in listed(checkpoints) if other.name > path.name]
    if ahead:
        log.warning("going back to step %d: the next save deletes %s", snapshot.step, ", ".join(ahead))
    return path, snapshot


def _clear(folder: Path) -> None:
    """Nothing of an attempt that never saved is to be mistaken for this run's."""
    if is_rank_zero():
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)


def _begin(
    folder: Path,
    config: Mapping[str, Any],
    overrides: Sequence[str],
    origins: Mapping[str, str],
    snapshot: Snapshot | None,
) -> None:
    """From now on, all being built, the folder holds this run, and the run goes on from ``snapshot``."""
    if not is_rank_zero():
        return
    (folder / "results.json").unlink(missing_ok=True)
    if snapshot is not None:
        write_atomic(folder / "checkpoints" / LAST, f"step-{snapshot.step:08d}\n")
    write_atomic(folder / "config.yaml", dump(config))
    (folder / ".launch").unlink(missing_ok=True)
    if (launch := launch_id()) is not None:
        write_atomic(folder / ".launch", launch)
    write_atomic(folder / "overrides.json", json.dumps(list(overrides), indent=1) + "\n")
    write_atomic(folder / "origins.json", json.dumps(dict(origins), indent=1) + "\n")


def _overrides_of(folder: Path) -> list[str]:
    """What the command line changed when the run began: a resume need not say it again."""
    try:
        saved = json.loads((folder / "overrides.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [text for text in saved if isinstance(text, str)] if isinstance(saved, list) else []


def _refuse_to_overwrite(folder: Path, resume: str | None) -> None:
    if resume is None and holds_results(folder):
        message = f"{folder} holds a run, which is never overwritten: --resume goes on with it, --name begins another"
        raise ConfigError(Problem("command line", "", message))


def _with_seed(config: dict[str, Any], snapshot: Snapshot | None, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """``seed: null`` takes the seed of the run that is resumed, or draws one."""
    if config["seed"] is not None:
        return config
    saved = snapshot.state["seed"] if snapshot else (before or {}).get("seed")
    return {**config, "seed": draw_seed() if saved is None else saved}


def _with_found(config: dict[str, Any], snapshot: Snapshot | None, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the run that is resumed has found out for ``auto`` is not tried out again, except for the workers."""
    known = {key: before["data"][key] for key in ("batch_size", "augment_on")} if before else {}
    if snapshot:
        known["batch_size"] = snapshot.state["global_batch_size"]
    return with_values(config, **known)


def _tell_differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    if before is None:
        return
    old, new = flatten(dict(before)), flatten(dict(now))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            log.warning("changed since the run began: %s: %s -> %s", key, old.get(key), new.get(key))


def _finished(
    folder: Path, snapshot: Snapshot | None, before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> dict[str, float] | None:
    """The results of a run that is over; None when there is something to do: a longer length, an older checkpoint."""
    results = folder / "results.json"
    if snapshot is None or not results.is_file() or before is None:
        return None
    if before["train"]["length"] != now["train"]["length"] or snapshot.step < snapshot.state["total_steps"]:
        return None
    scores: dict[str, float] = json.loads(results.read_text(encoding="utf-8"))
    return scores


def _as_written(recipe: str, overrides: Sequence[str]) -> str:
    """The recipe's own text, and what the command line changes."""
    places = (Path(recipe), Path(recipe) / "config.yaml", PACKAGED / f"{recipe}.yaml")
    text = next((place.read_text("utf-8", errors="replace") for place in places if place.is_file()), "")
    return "\n".join([text.rstrip(), *(f"# command line: {override}" for override in overrides)])


def evaluate(folder: Path, overrides: Sequence[str] = (), *, checkpoint: str = "best") -> dict[str, float]:
    """Scores of a run's checkpoint (``best``, ``last`` or a path), also written to ``eval/<set>/scores.json``.

    Without a best checkpoint the last one is taken.

    Raises:
        ConfigError: there is no run or no such checkpoint, or it is damaged.
    """
    path = chosen_checkpoint(folder, checkpoint)
    resolved = resolve(folder, overrides)
    snapshot = read_chosen(path)
    with joined_process_group(**process_group_options(resolved.config)), logging_to(None):
        log.info("evaluating %s", path)
        # The training data may be gone: what the model was built on stands in the checkpoint. Few evaluators need it.
        data = resolved.config["data"]
        sets = validation_sets(resolved.config)
        if sets:
            train = {key: sets[0][key] for key in data["train"]}
            data = {**data, "train": train, "sampler": None}
        parts = build_parts(replace(resolved, config={**resolved.config, "data": data})).keywords
        scores = evaluate_trained(folder, parts, snapshot, lambda: build_parts(resolved).keywords["data"])
        for one in sets if is_rank_zero() else ():
            own = {name: value for name, value in scores.items() if name.startswith(one["prefix"] + "/")}
            write_json(folder / "eval" / one["prefix"] / "scores.json", {"checkpoint": path.name, **own})
    return scores
