"""Commands around a run: manage its folder, decide where to resume, and write the results."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from opabinia.config import ConfigError, Problem, Resolved, config_of, dump, flatten
from opabinia.config.compose import PACKAGED
from opabinia.config.datasets import validation_sets, with_sets
from opabinia.config.errors import listing
from opabinia.config.paths import check_not_overwritten, check_resumable, check_run_name, member_runs
from opabinia.config.text import describe_source
from opabinia.data.errors import DataError
from opabinia.engine.checkpointing.checkpoint import BadCheckpoint, Snapshot, WeightsMismatch, read_checkpoint
from opabinia.engine.checkpointing.manager import list_checkpoints, load_latest_checkpoint, read_pointer, step_of
from opabinia.engine.checkpointing.sharded import ranks_elsewhere
from opabinia.engine.checkpointing.upload import MANIFEST
from opabinia.engine.hooks.expected_scores import UnexpectedScore, check_scores
from opabinia.engine.loop.nonfinite import NonFiniteError
from opabinia.runtime.elastic_agent import is_of_this_launch, launch_id, run_lock
from opabinia.runtime.files import disk_errors, remove_leftovers, write_atomic
from opabinia.runtime.json_files import read_json, write_json
from opabinia.runtime.log import log, log_to_file, logging_to
from opabinia.runtime.process_group import process_group
from opabinia.runtime.processes import from_rank_zero, is_rank_zero, world_size
from opabinia.runtime.seeds import draw_seed
from opabinia.runtime.signals import Stopped, StopSignal, exit_status_of_reason, stop_signals
from opabinia.training.autotune import autotune
from opabinia.training.evaluate import evaluate as evaluate_trained
from opabinia.training.evaluation_data import choose_sets, write_scores
from opabinia.training.planning import plan_training
from opabinia.training.remote_runs import (
    await_checkpoint,
    check_upload,
    fetch_newer,
    resume_from,
    run_url,
    uploading,
)
from opabinia.training.resume_checks import check_same_run, describe_run
from opabinia.training.run_folder import (
    AUTO,
    LAST,
    build_parts,
    chosen_checkpoint,
    folder_for,
    holds_run,
    process_group_options,
    read_chosen,
    resolve,
    with_values,
)
from opabinia.training.session import Session, TrainingRun
from opabinia.training.summary import run_title
from opabinia.training.trained_model import Weights, choose_weights, load_trained, trained_task
from opabinia.training.world_size_scaling import auto_scale

MAX_ROLLBACKS = 10
"""Batches that may be skipped from one checkpoint on, or in a row, before a run with ``rollback`` gives up."""

_SAME_TRAINING = frozenset({"seed", "data", "shapes", "task"})
"""Config sections that a resume checks against the checkpoint."""

_OTHER_SETTINGS = "; to train with other settings, set a longer train.length or begin another run (--name NAME)"


class _Planned(NamedTuple):
    """The decisions of rank 0 before a run begins.

    Attributes:
        before: the config that the run had; None for a new run.
        config: the config that it has now.
        scores: its scores if it is finished.
    """

    before: dict[str, Any] | None
    config: dict[str, Any]
    scores: dict[str, float] | None


def run_folder_of(recipe: str | Path | TrainingRun, out: Path, name: str, resume: str | None = None) -> Path:
    """Return ``<out>/<recipe>/<name>``; the recipe of a YAML file is its name without suffix.

    A run folder given as recipe is resumed in place; a new run with its config is put beside it. The folder of a run
    built in Python is ``<out>/<name>``.

    Raises:
        ConfigError: ``name`` is not valid for a folder.
    """
    check_run_name(name)
    if isinstance(recipe, TrainingRun):
        return out / name
    if resume is not None and holds_run(Path(recipe)):
        return Path(recipe)
    return folder_for(recipe, out, name)


def train(
    recipe: str | Path | TrainingRun,
    overrides: Sequence[str] = (),
    *,
    out: Path | str = Path("runs"),
    name: str = "default",
    resume: str | None = None,
    resolved: Resolved | None = None,
) -> tuple[Path, dict[str, float]]:
    """Train a recipe, or a run built in Python, in its run folder; return the folder and the final scores.

    Args:
        recipe: a packaged recipe, a YAML file, a run folder, or a :class:`TrainingRun`, which is written as a config
            (see :func:`opabinia.config.describe.config_of`) and built from it.
        overrides: ``key=value``.
        out: the run folder is ``<out>/<recipe>/<name>``; of a run built in Python ``<out>/<name>``.
        name: name of the run, see ``out``.
        resume: "last", "best" or a checkpoint folder of this run; "auto" resumes the last checkpoint of a run that
            exists and begins it otherwise; None begins a new run.
        resolved: the config of a new run, where the caller has it already; None resolves it here.

    Raises:
        ConfigError: the config is wrong, the folder holds a run and ``resume`` is None, or there is no run to resume.
        Stopped: a signal or a limit ended the run early; it has saved.
        UnexpectedScore: the scores of the complete run are not those that its config expects.

    Example::

        folder, scores = opabinia.train("classification/digits", ["train.length=1ep"], name="short")
    """
    folder = run_folder_of(recipe, Path(out), name, resume)
    resolved = resolved or _resolve(recipe, overrides, folder, resume)
    url = None if resolved.config["checkpoint"]["upload"] is None else run_url(resolved, folder, Path(out))
    if url is not None and (resume is not None or is_of_this_launch(folder)):
        fetch_newer(url, folder, resolved, Path(resume or "").name)
        resolved = _resolve(recipe, overrides, folder, resume)  # with what this or another rank has fetched
    if resume is not None:
        overrides = [*_saved_overrides(folder), *overrides]
    # Signals first: one that stops a rank while others still join is not lost.
    with (
        stop_signals(StopSignal()) as stop,
        process_group(**process_group_options(resolved.config)),
        ExitStack() as held,
    ):
        resume = from_rank_zero(partial(_take_folder, folder, resume, held, url, resolved))
        _check_shared(folder, resolved)
        held.enter_context(logging_to(folder))
        for warning in resolved.warnings:
            log.warning("%s", warning)
        if url is not None and is_rank_zero():
            held.enter_context(uploading(folder, url, resolved.config["checkpoint"]["keep"]))
        snapshot = _checkpoint_to_resume(folder, resume, url)
        planned = from_rank_zero(partial(_plan, folder, resume, snapshot, resolved.config))
        if snapshot is None:
            _clear(folder)
        elif planned.scores is None:
            log.info("resuming %s from step %d", folder, snapshot.step)
        changed = _log_differences(planned.before, planned.config)
        if planned.scores is not None and snapshot is not None:
            _report_finished(folder, replace(resolved, config=planned.config), snapshot, changed)
            for hook in (planned.config["hooks"] or {}).values():
                if hook["name"] == "expected_scores":
                    check_scores(planned.scores, hook["scores"])
            return folder, planned.scores
        log_to_file("config as written", _as_written(recipe, overrides))
        tuned = autotune(planned.config["data"], partial(build_parts, replace(resolved, config=planned.config)))
        # Results depend on these values; the number of workers is tuned at each start.
        config = with_values(planned.config, **{key: value for key, value in tuned.items() if key != "num_workers"})
        log_to_file("config, resolved", dump(config))
        begin = partial(_begin, folder, config, overrides, resolved.origins)
        title = run_title(name if isinstance(recipe, TrainingRun) else str(recipe), config["task"])
        session = Session(folder, snapshot, lambda: stop.reason, begin, title=title)
        resolved = replace(resolved, config=with_values(config, **tuned))
        _write_results(folder, scores := _train_and_report(resolved, session, url, changed))
        return folder, scores


def _resolve(recipe: str | Path | TrainingRun, overrides: Sequence[str], folder: Path, resume: str | None) -> Resolved:
    """The config of a run: of one that is resumed, with the overrides that it began with."""
    # The config of a run folder contains the saved overrides already.
    if resume is not None and str(recipe) != str(folder):
        overrides = [*_saved_overrides(folder), *overrides]
    if not isinstance(recipe, TrainingRun):
        return resolve(recipe, overrides)
    description = config_of(recipe)
    resolved = resolve(description.config, overrides)
    return replace(resolved, warnings=(*resolved.warnings, *description.warnings))


def _report_finished(folder: Path, resolved: Resolved, snapshot: Snapshot, changed: Mapping[str, str]) -> None:
    """Check that a finished run could be resumed with its changed config, and log that there is nothing to do.

    Raises:
        ConfigError: it could not, as in :func:`check_same_run`, or the weights do not fit.
    """
    if any(key.partition(".")[0] in _SAME_TRAINING for key in changed):
        parts, seed = build_parts(resolved).keywords, resolved.config["seed"]
        batches = plan_training(
            parts["task"], parts["data"], parts["train"].length, parts["shapes"], seed, parts["semi_supervised"]
        )
        check_same_run(snapshot, describe_run(batches, snapshot.state["threads"]), batches.plan)
        trained_task(parts["task"], snapshot)
    log.info("%s is finished: nothing to do%s", folder, _OTHER_SETTINGS if changed else "")


def _train_and_report(
    resolved: Resolved, session: Session, url: str | None, changed: Mapping[str, str]
) -> dict[str, float]:
    """Train; log how the run ended where it did not end with scores."""
    folder = session.folder
    try:
        return _train_with_rollback(resolved, session, url)
    except Stopped as reason:
        log.info("stopped: %s; to resume: opabinia train %s --resume", reason, folder)
        # The signal may have come to another rank.
        raise Stopped(str(reason), exit_status_of_reason(str(reason))) from None
    except WeightsMismatch as error:
        changes = [f"{key}: {values}" for key, values in changed.items() if key.startswith("task.")]
        since = f" since {listing(changes, 3)}" if changes else ""
        raise ConfigError(Problem("", "task", f"the checkpoint's weights do not fit{since}; {error}")) from error
    except UnexpectedScore as error:
        log.error("%s", error, extra={"file_only": True})
        _write_results(folder, error.scores)
        raise
    except Exception as error:
        log.exception("the run ended with an error", extra={"file_only": True})
        if isinstance(error, DataError) and resolved.config["data"]["on_error"] != "skip" and holds_run(folder):
            command = f"opabinia train {folder} --resume data.on_error=skip"
            log.info("to resume without the samples that cannot be read: %s", command)
        raise


def _train_with_rollback(resolved: Resolved, session: Session, url: str | None) -> dict[str, float]:
    """Train; with ``train.on_nonfinite: rollback`` restart from the last checkpoint without the non-finite batch."""
    while True:
        try:
            return TrainingRun(**build_parts(resolved).keywords)(session)
        except NonFiniteError as error:
            if resolved.config["train"]["on_nonfinite"] != "rollback":
                raise
            log.error("%s", error)
            bad_batch = error.step - 1
        session = _rolled_back(session, bad_batch, url)


def _rolled_back(session: Session, bad_batch: int, url: str | None) -> Session:
    """Return the session from the last checkpoint on (or from the beginning), without ``bad_batch``.

    Raises:
        NonFiniteError: too many batches were skipped.
    """
    snapshot = _checkpoint_to_resume(session.folder, LAST, url)
    step = snapshot.step if snapshot else 0
    skipped = session.skip_batches.union({bad_batch}, snapshot.state.get("left_out", ()) if snapshot else ())
    since = sum(batch >= step for batch in skipped)
    if since > MAX_ROLLBACKS or skipped.issuperset(range(bad_batch - MAX_ROLLBACKS + 1, bad_batch + 1)):
        message = f"{since} batches after step {step}, or {MAX_ROLLBACKS} in a row, had non-finite values"
        raise NonFiniteError(f"{message}: this run does not converge", bad_batch + 1)
    if snapshot is None:
        _clear(session.folder)
    log.warning("rolling back to step %d; the batch of step %d will be skipped", step, bad_batch + 1)
    return replace(session, resume=snapshot, skip_batches=skipped)


def _take_folder(folder: Path, resume: str | None, held: ExitStack, url: str | None, resolved: Resolved) -> str | None:
    """Make the folder and lock it until ``held`` is closed.

    Returns:
        What to resume: ``resume``, or the last checkpoint for ``auto`` and after a crash within this launch.

    Raises:
        ConfigError: the folder holds a run, and nothing is to be resumed; there is no folder to resume; or the run
            cannot be uploaded.
    """
    if resume == AUTO or is_of_this_launch(folder):
        resume = LAST
    elif resume is not None:
        check_resumable(folder, url)
    else:
        check_not_overwritten(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
    held.enter_context(run_lock(folder))
    if resume is None:
        check_not_overwritten(folder)  # another process may have been faster
    remove_leftovers(folder)
    remove_leftovers(folder / "checkpoints")
    if url is not None:
        check_upload(folder, url, resolved, new=resume is None)
    return resume


def _check_shared(folder: Path, resolved: Resolved) -> None:
    """Make the folder of this rank. If each rank writes a shard of the checkpoints, check that the folder is shared.

    Raises:
        ConfigError: it is not.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Rank 0 decides: a machine without the run folder lacks the overrides saved in it.
    is_sharded = from_rank_zero(lambda: (resolved.config["train"]["parallel"] or {}).get("name") == "fsdp")
    if not is_sharded or not (others := ranks_elsewhere(folder)):
        return
    message = (
        f"each rank writes a shard of the checkpoints, but {folder} of rank {', '.join(map(str, others))} is not that "
        f"of rank 0: put it on a disk that all machines share (--out), or use ddp, where rank 0 writes alone"
    )
    raise ConfigError(Problem(resolved.origins.get("train.parallel", ""), "train.parallel", message))


def _plan(folder: Path, resume: str | None, snapshot: Snapshot | None, config: dict[str, Any]) -> _Planned:
    before = None if resume is None else _saved_config(folder)
    # A resumed run is scaled for the world size that it began with.
    reference = before["train"].get("reference_world_size") if before else None
    scaled, changes = auto_scale(config, reference or world_size())
    for change in changes if snapshot is None else ():
        log.info(
            "train.reference_world_size %s, world size %d: %s",
            *(config["train"]["reference_world_size"], world_size(), change),
        )
    # Values that `auto` had in the run that is resumed are kept, except for the workers.
    known = {key: before["data"][key] for key in ("batch_size", "augment_on")} if before else {}
    if snapshot:
        known["batch_size"] = snapshot.state["global_batch_size"]
    if scaled["seed"] is None:  # that of the run that is resumed, or a new one
        saved = snapshot.state["seed"] if snapshot else (before or {}).get("seed")
        scaled["seed"] = draw_seed() if saved is None else saved
    now = with_values(scaled, **known)
    return _Planned(before, now, _final_scores(folder, snapshot, before, now))


def _final_scores(
    folder: Path, snapshot: Snapshot | None, before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> dict[str, float] | None:
    """The scores of a finished run; None if there is something to do: a longer length, an older checkpoint."""
    results, last = folder / "results.json", read_pointer(folder / "checkpoints", LAST)
    if snapshot is None or not results.is_file() or before is None or last is None or step_of(last) != snapshot.step:
        return None
    if before["train"]["length"] != now["train"]["length"] or snapshot.step < snapshot.state["total_steps"]:
        return None
    return read_json(results, dict[str, float])


def _saved_config(folder: Path) -> dict[str, Any] | None:
    try:
        return resolve(folder).config if holds_run(folder) else None
    except ConfigError as error:
        log.warning("the config saved in %s can no longer be read: %s", folder, error)
        return None


def _checkpoint_to_resume(folder: Path, resume: str | None, url: str | None) -> Snapshot | None:
    """The checkpoint that rank 0 chooses, read by every rank; one that shares no disk with rank 0 fetches it."""
    if resume is None:
        return None
    read_here: list[Snapshot] = []

    def choose() -> tuple[str, bytes] | None:
        chosen = _choose(folder / "checkpoints", resume)
        if chosen is None:
            return None
        read_here.append(chosen[1])
        return chosen[0].name, (chosen[0] / MANIFEST).read_bytes()

    chosen = from_rank_zero(choose)
    if chosen is None:
        log.info("no checkpoint in %s: starting from the beginning", folder / "checkpoints")
        return None
    path = folder / "checkpoints" / chosen[0]  # the folder may have another path than on rank 0
    if url is not None:
        await_checkpoint(url, path, chosen[1])
    try:
        return read_here[0] if read_here else read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("", "", str(error))) from error


def _choose(checkpoints: Path, resume: str) -> tuple[Path, Snapshot] | None:
    try:
        if resume == LAST:
            return load_latest_checkpoint(checkpoints)
        path = (read_pointer(checkpoints, resume) or Path(resume)) if resume == "best" else Path(resume)
        if path.parent.resolve() != checkpoints.resolve():
            raise ConfigError(Problem("command line", "--resume", f"{path} is not a checkpoint in {checkpoints}"))
        snapshot = read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("", "", str(error))) from error
    newer = [other.name for other in list_checkpoints(checkpoints) if other.name > path.name]
    if newer:
        log.warning("resuming at step %d: the next save deletes %s", snapshot.step, ", ".join(newer))
    return path, snapshot


def _clear(folder: Path) -> None:
    """Remove files of an attempt that never saved, which could be mistaken for those of this run."""
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
    """Write the files that make the folder this run; called when everything is built, before the first step."""
    if not is_rank_zero():
        return
    with disk_errors(folder / "results.json"):
        (folder / "results.json").unlink(missing_ok=True)
    if snapshot is not None:
        resume_from(folder / "checkpoints", snapshot.step)
    write_atomic(folder / "config.yaml", dump(config))
    (folder / ".launch").unlink(missing_ok=True)
    if (launch := launch_id()) is not None:
        write_atomic(folder / ".launch", launch)
    write_json(folder / "overrides.json", list(overrides))
    write_json(folder / "origins.json", dict(origins))


def _write_results(folder: Path, scores: Mapping[str, float]) -> None:
    if is_rank_zero():
        write_json(folder / "results.json", dict(scores))


def _saved_overrides(folder: Path) -> list[str]:
    """The overrides with which the run began: a resume need not repeat them."""
    file = folder / "overrides.json"
    return read_json(file, list[str]) if file.exists() else []


def _log_differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, str]:
    """Log the values that are not those that the run began with; return them by key, as ``old -> new``."""
    if before is None:
        return {}
    old, new = flatten(dict(before)), flatten(dict(now))
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    changed = {key: f"{old.get(key)} -> {new.get(key)}" for key in keys}
    for key, values in changed.items():
        log.warning("changed since the run began: %s: %s", key, values)
    return changed


def _as_written(recipe: str | Path | TrainingRun, overrides: Sequence[str]) -> str:
    """The recipe's own text and the overrides, for the log."""
    if isinstance(recipe, TrainingRun):
        return f"{recipe}"
    paths = (Path(recipe), Path(recipe) / "config.yaml", PACKAGED / f"{recipe}.yaml")
    text = next((path.read_text("utf-8", errors="replace") for path in paths if path.is_file()), "")
    return "\n".join([text.rstrip(), *(f"# command line: {override}" for override in overrides)])


def evaluate(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    checkpoint: str = "best",
    weights: Weights | Literal["both"] | None = None,
    splits: Sequence[str] = (),
    data: Path | None = None,
    name: str | None = None,
    confidence: bool = False,
) -> dict[str, float]:
    """Evaluate a checkpoint of a run; return the scores and write them to ``eval/<set>/scores.json``.

    Args:
        folder: the run folder; that of the folds of a cross-validation evaluates the ensemble of their runs.
        overrides: ``key=value``.
        checkpoint: ``best`` (``last`` where there is none), ``last``, or a checkpoint's name or path.
        weights: ``raw``, ``ema`` or ``both``; None: see :func:`opabinia.training.trained_model.choose_weights`.
        splits, data, name: the data, see :func:`opabinia.training.evaluation_data.choose_sets`.
        confidence: add 95 % bootstrap confidence intervals of the headline scores (``val/top1_ci_low``,
            ``val/top1_ci_high``), see :func:`opabinia.evaluation.bootstrap.confidence_interval`.

    Raises:
        ConfigError: there is no such run, checkpoint, EMA or data, or it is damaged.
    """
    runs = member_runs(folder)
    path = chosen_checkpoint(runs[0], checkpoint)
    resolved = resolve(folder, overrides)
    trained = resolve(folder) if overrides else resolved
    resolved = choose_sets(resolved, trained, splits=splits, data=data, name=name)
    snapshot = read_chosen(path)
    settings = resolved.config["evaluate"]
    chosen: str = "both" if len(runs) == 1 else "raw"  # an ensemble has no average of its own
    if len(runs) == 1 and weights != "both":
        chosen = choose_weights(path, snapshot, settings["weights"], weights)
    resolved = replace(resolved, config={**resolved.config, "evaluate": {**settings, "weights": chosen}})
    with process_group(**process_group_options(resolved.config)), logging_to(None):
        for warning in resolved.warnings:
            log.warning("%s", warning)
        title = f"ensemble of {len(runs)} runs ({checkpoint})"
        log.info("evaluating %s", path if len(runs) == 1 else f"{folder}: {title}")
        for stream in validation_sets(resolved.config) if data is not None else ():
            log.info("data of %s: %s", stream["prefix"], describe_source(stream["source"]))
        # The training data may be gone: the checkpoint describes it, and few evaluators need it.
        streams = validation_sets(resolved.config)
        parts = build_parts(replace(resolved, config=with_sets(resolved.config, None, streams))).keywords
        model = None if len(runs) == 1 else load_trained(folder, overrides, checkpoint=checkpoint, weights=weights).task
        scores = evaluate_trained(
            folder, parts, snapshot, lambda: build_parts(resolved).keywords, confidence=confidence, ensemble=model
        )
        if is_rank_zero():
            sizes = {stream.prefix: len(stream.source) for stream in parts["data"].validation}
            inside = path.parent.resolve() == (folder / "checkpoints").resolve()
            evaluated = title if len(runs) > 1 else path.name if inside else str(path)
            _write_scores(folder, evaluated, streams, sizes, overrides, scores)
    return scores


def _write_scores(
    folder: Path,
    checkpoint: str,
    streams: Sequence[Mapping[str, Any]],
    sizes: Mapping[str, int],
    overrides: Sequence[str],
    scores: Mapping[str, float],
) -> None:
    for stream in streams:
        for weights, prefix in (("raw", stream["prefix"]), ("ema", f"{stream['prefix']}_ema")):
            about = {
                "data": describe_source(stream["source"]),
                "samples": sizes[stream["prefix"]],
                "checkpoint": checkpoint,
                "weights": weights,
                "overrides": list(overrides),
            }
            set_scores = {name: value for name, value in scores.items() if name.startswith(prefix + "/")}
            if set_scores:
                write_scores(folder / "eval" / prefix, about, set_scores)
