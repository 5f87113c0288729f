"""From a folder of data to a recipe: look, split, profile, measure, choose, write."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, catalog, check, compose, register
from opabinia.config import build as build_config
from opabinia.config.errors import nearest
from opabinia.config.paths import data_name, facts_file
from opabinia.contracts import Source, SourcePart
from opabinia.data.decoding.images import file_channels
from opabinia.data.decoding.values import ARRAY_EXTENSIONS
from opabinia.data.layouts.layout import TASK_NAMES, Layout, Section, TaskName, change_sources
from opabinia.data.layouts.readings import convert
from opabinia.data.layouts.recognition import recognize
from opabinia.data.layouts.unlabeled import unlabeled_images
from opabinia.data.profile import DatasetProfile, profile_dataset
from opabinia.data.sources.subset import subset
from opabinia.data.splitting import split_dataset
from opabinia.models.weights.available import available_backbones
from opabinia.runtime.durations import format_seconds
from opabinia.runtime.files import write_atomic
from opabinia.runtime.json_files import read_json, write_json
from opabinia.runtime.local_copies import read_file
from opabinia.runtime.log import log
from opabinia.runtime.resources import return_freed_memory
from opabinia.runtime.text import plural
from opabinia.runtime.version import __version__
from opabinia.training.autoconfig import rules
from opabinia.training.autoconfig.choices import Chosen, Datasets, choose
from opabinia.training.autoconfig.probe import measure
from opabinia.training.autoconfig.recipe import recipe_text
from opabinia.training.autoconfig.search import SHARE, Search, check_data, check_search
from opabinia.training.autoconfig.search import search as run_search
from opabinia.training.autoconfig.situation import Machine, Situation, Speed
from opabinia.training.evaluation_data import PATH_KEYS, redirect_source

VERSION = 5
"""Version of the rules: another one may choose other values."""

ROUNDS = 3
"""Measurements at most: of the recipe from assumed speeds, and of those that earlier measurements lead to."""

SPLIT = ".split.json"
"""Ending of the file beside the recipe that lists the validation samples."""


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """The facts behind a plan, as saved beside the recipe: ``opabinia plan RECIPE --explain`` reads it.

    Attributes:
        version: :data:`VERSION`.
        opabinia: version of the package.
        situation: all that the rules know.
        data: sections of the sources.
        search: short runs that some values come from; None: there were none.
    """

    version: int
    opabinia: str
    situation: Situation
    data: Datasets
    search: Search | None = None


@register.command
def opened_source(*, source: SourcePart) -> Source:
    """Return a source by itself.

    Args:
        source: its section.
    """
    return source


def open_source(section: Section) -> Source:
    """Open a source.

    Raises:
        ConfigError: its files are missing or damaged.
    """
    tree = compose({"source": section})
    parts = catalog()
    source: Source = build_config(check(tree, parts, "opened_source").config, parts, "opened_source")()
    return source


def plan(
    data: str,
    out: Path,
    *,
    budget: float,
    machine: Machine,
    task: TaskName | None = None,
    layout: str | None = None,
    overrides: Sequence[str] = (),
    search: int | None = None,
) -> SavedPlan:
    """Plan a recipe and write it, with the files that it needs beside it.

    Args:
        data: a folder, file or URL.
        out: file of the recipe.
        budget: seconds of training with its evaluations.
        machine: the machine that trains.
        task: the task, where the data allows several.
        layout: the layout, where the data has several.
        overrides: ``key=value``, changes to the recipe that will be made.
        search: number of short runs over learning rate and image size, within the budget; None: without them.

    Raises:
        ConfigError: the data is not recognized, has several readings, or cannot be read.
        Stopped: a signal stopped the short runs; the recipe is not written.
    """
    if search is not None:
        check_search(search, machine)
    reading = _tolerant(recognize(data, task=task, layout=layout))
    log.info("data    %s", reading.description)
    for note in reading.notes:
        log.info("note    %s", note)
    with _removed_on_error(out.with_suffix(SPLIT)):
        datasets, profile = _profile(reading, out)
        if reading.test is not None and reading.task != "reid":
            options = shlex.join(_test_options(reading.test, datasets.val or datasets.train))
            log.info("test    not used; afterwards: opabinia eval RUN %s", options)
        log.info("        %s", describe_profile(profile))
        for leak in profile.leaked:
            log.warning("leak: %s", leak)
        if profile.unreadable:
            log.warning(
                "%s that cannot be read, such as %s", plural(len(profile.unreadable), "file"), profile.unreadable[0]
            )
        weights = tuple(backbone.model for backbone in available_backbones())
        situation = Situation(profile=profile, machine=machine, budget=budget, weights=weights)
        advice = [] if _sets_weights(overrides) else _pretraining(situation, data, reading)
        for line in advice:
            log.info("note    %s", line)
        runs = None
        if search is not None:
            situation, runs = _searched(situation, datasets, overrides, search)
        situation, chosen = _measured(situation, datasets, overrides)
        saved = SavedPlan(version=VERSION, opabinia=__version__, situation=situation, data=datasets, search=runs)
        write_plan(saved, chosen, out, data, advice)
        return saved


def _test_options(test: Section, val: Section) -> list[str]:
    """Return the options of ``opabinia eval`` that evaluate on test data: the folder or file, if that leads from the
    validation data to its section, else the section itself."""
    parts = catalog()
    wanted, given = (
        check(compose({"source": section}), parts, "opened_source").config["source"] for section in (test, val)
    )
    for place in (test.get("root"), test.get("file"), test.get("data")):
        with suppress(ConfigError):
            found = redirect_source(given, Path(place), "") if place else None
            if found is not None and _absolute(found) == _absolute(wanted):
                return ["--data", str(place)]
    return ["--name", "test", f"data.val.source={json.dumps({'_delete_': True, **test}, ensure_ascii=False)}"]


def _absolute(section: Section) -> dict[str, Any]:
    """Return a section whose paths of files and folders are absolute."""
    paths = {key: Path(section[key]).expanduser().absolute() for key in PATH_KEYS if section.get(key)}
    return {**section, **paths}


def _sets_weights(overrides: Sequence[str]) -> bool:
    """Return whether overrides choose the initial weights."""
    return any(word.removeprefix("--").partition("=")[0].partition(".")[0].strip() == "init" for word in overrides)


def _pretraining(situation: Situation, data: str, reading: Layout) -> list[str]:
    """Return why to train without labels first, and the two commands; nothing if that would not help."""
    labeled = situation.profile.samples + situation.profile.val_samples
    images = unlabeled_images(data, reading, labeled)
    needed = None if images is None else rules.pretraining(situation, images.number)
    if images is None or needed is None:
        return []
    time, name = f"{round(needed.value / 60)}m", "pretraining"
    folder = Path("runs") / data_name(images.place) / name
    init = shlex.quote(f"init={{weights: {folder}, target_prefix: backbone}}")
    return [
        f"{needed.reason}, and the network starts from random weights: train without labels first.",
        f"  opabinia train {shlex.quote(images.place)} --task selfsup --budget {time} --name {name}",
        f"  opabinia train {shlex.quote(data)} --budget {time} {init}",
    ]


@contextmanager
def _removed_on_error(file: Path) -> Iterator[None]:
    """Remove a file that was written in vain, without the recipe that it is for."""
    existed = file.exists()
    try:
        yield
    except BaseException:
        if not existed:
            file.unlink(missing_ok=True)
        raise


def check_task(task: str | None, place: str) -> TaskName | None:
    """Return the name of a task as such; ``place``: where it was given.

    Raises:
        ConfigError: there is no such task.
    """
    if task is None or task in TASK_NAMES:
        return task
    message, names = f"there is no task {task!r}", list(TASK_NAMES)
    raise ConfigError(Problem(place, "", message, "", nearest(task, names), f"tasks: {', '.join(names)}"))


def _tolerant(reading: Layout) -> Layout:
    """Return a reading whose sources clip boxes that leave their image and drop what is broken or missing, with a
    warning each."""
    return convert(reading, reading.task, lambda section: change_sources(section, _tolerant_section))


_TOLERANT = {"broken": ("fix", "drop"), "missing": ("skip",)}
"""Options of sources, and the first values that are wanted, where a source has them."""


def _tolerant_section(section: Section) -> Section:
    source, changed = catalog().get("source", str(section["name"])), dict[str, Any]()
    for name, wanted in _TOLERANT.items():
        option = source.by_name.get(name) if source is not None else None
        values = [value for value in wanted if option is not None and value in option.spec.get("values", ())]
        changed |= {name: values[0]} if values else {}
    return {**changed, **section}


def _file_channels(source: Source) -> int | None:
    """Return the channels of the first image if it is not 8-bit gray or color; None for others, and for videos.

    Raises:
        ConfigError: tifffile is needed, and is not installed.
    """
    paths = source.paths(0) if len(source) else ()
    if not paths or not os.fsdecode(paths[0]).lower().endswith((*ARRAY_EXTENSIONS, ".tif", ".tiff")):
        return None
    try:
        return file_channels(read_file(paths[0]))
    except (OSError, ValueError):  # the profile names unreadable files
        return None
    except ImportError as error:
        raise ConfigError(Problem("", "data", f"{os.fsdecode(paths[0])}: {error}")) from error


def _with_channels(count: int, section: Section) -> Section:
    """Return a section whose images have these channels, as their files have them."""
    source = catalog().get("source", str(section["name"]))
    has_channels = source is not None and "channels" in source.by_name
    return {**section, "channels": {"count": count}} if has_channels else section


def _profile(reading: Layout, out: Path) -> tuple[Datasets, DatasetProfile]:
    """Return the sections of the sources and the profile. If there is no validation data, a part of the training data
    is held out, and listed in a file beside the recipe."""
    # Re-identification is validated on the query and gallery images of other identities, as all systems do.
    val = reading.val or (reading.test if reading.task == "reid" else None)
    all_samples = open_source(reading.train)
    channels = _file_channels(all_samples)
    if channels is not None:
        change = partial(_with_channels, channels)
        reading = convert(reading, reading.task, lambda section: change_sources(section, change))
        val = reading.val or (reading.test if reading.task == "reid" else None)
        all_samples = open_source(reading.train)
    test = None if reading.test in (None, val) else open_source(reading.test)
    sections = Datasets(train=reading.train, val=val, reason=reading.description, classes=tuple(reading.classes))
    if val is not None:
        return sections, profile_dataset(all_samples, open_source(val), task=reading.task, test=test)
    file = out.with_suffix(SPLIT)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        examined = split_dataset(all_samples, file, task=reading.task)
    except ValueError as error:
        log.warning("no validation data, so the run has no scores: %s", error)
        return sections, profile_dataset(all_samples, None, task=reading.task, test=test)
    is_reid = reading.task == "reid"
    section: dict[str, Any] = {"name": "subset", "source": dict(reading.train), "file": str(file)}
    section |= {"identities": True} if is_reid else {}
    train, val = {**section, "split": "train"}, {**section, "split": "val"}
    sources = (  # not by their sections, which would read the annotations again
        subset(source=all_samples, file=file, split="train", identities=is_reid),
        subset(source=all_samples, file=file, split="val", identities=is_reid),
    )
    counts = f"{len(sources[1])} of {plural(len(all_samples), 'sample')} are held out for validation"
    log.info("split   %s: %s", counts, file)
    sections = replace(sections, train=train, val=val, reason=f"{reading.description}; {counts}")
    return sections, profile_dataset(*sources, task=reading.task, test=test, examined=examined)


def _measured(situation: Situation, data: Datasets, overrides: Sequence[str]) -> tuple[Situation, Chosen]:
    """Choose and measure, until the chosen network and image size are those that were measured."""
    chosen = choose(situation, data)
    for _ in range(ROUNDS if situation.machine.here else 0):
        if any((known.model, known.size) == (chosen.model, chosen.size) for known in situation.speeds):
            break
        speed = measure(chosen, overrides)
        return_freed_memory()
        log.info("speed   %s", describe_speed(speed))
        ranks = situation.machine.ranks  # they share the work
        speed = replace(speed, train=speed.train / ranks, evaluate=speed.evaluate / ranks)
        situation = replace(situation, speeds=(*situation.speeds, speed))
        chosen = choose(situation, data)
    return situation, chosen


def _searched(situation: Situation, data: Datasets, overrides: Sequence[str], count: int) -> tuple[Situation, Search]:
    """Return the situation after a search, with the best values and the rest of the budget, and the short runs."""
    check_data(data, situation)
    rest = replace(situation, budget=(1 - SHARE) * situation.budget)
    rest, _ = _measured(rest, data, overrides)
    runs, tuning = run_search(rest, data, overrides, count)
    left = max(situation.budget - runs.seconds, rest.budget / 2)  # if the machine was busy in between
    return replace(rest, budget=left, tuning=tuning), runs


def describe_speed(speed: Speed) -> str:
    """Return a measurement as text."""
    return f"{speed.model} at {speed.size} pixels: {1 / speed.train:.3g} samples/s in training"


def describe_profile(profile: DatasetProfile) -> str:
    """Return the most important facts as one line."""
    parts = [f"{plural(profile.samples, 'sample')} to train, {profile.val_samples} to validate"]
    if profile.classes:
        parts.append(plural(len(profile.classes), "class", "es"))
    if profile.short_sides is not None:
        parts.append(f"shorter sides {profile.short_sides[0]:.0f} to {profile.short_sides[4]:.0f} pixels")
    if profile.object_sides is not None:
        parts.append(f"objects {profile.object_sides[1]:.0f} to {profile.object_sides[3]:.0f} pixels (nine of ten)")
    return ", ".join(parts)


def write_plan(saved: SavedPlan, chosen: Chosen, out: Path, data: str, advice: Sequence[str] = ()) -> None:
    """Write the recipe, with advice at its top, and the facts behind it."""
    situation = saved.situation
    facts, budget = describe_profile(situation.profile), format_seconds(situation.budget)
    if saved.search is not None:
        budget = f"{format_seconds(saved.search.seconds)} of short runs and then {budget}"
    heading = [
        f"opabinia train {out}",
        f"Planned by Opabinia {saved.opabinia} (rules {saved.version}) for {data}: {facts}; {budget} on "
        f"{situation.machine.name}.",
        "Change what you like; `opabinia plan RECIPE --explain KEY` prints the rule behind a value of this file.",
        *advice,
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, recipe_text(chosen, heading))
    write_json(facts_file(out), asdict(saved))


def read_plan(recipe: Path) -> SavedPlan:
    """Read what a recipe was planned from.

    Raises:
        ConfigError: it was not planned.
        InvalidFile: the file is damaged.
    """
    file = facts_file(recipe)
    if not file.is_file():
        message = f"was not written by `opabinia plan`: there is no {file}"
        raise ConfigError(Problem("command line", "", f"{recipe} {message}"))
    return read_json(file, SavedPlan)


def save_profile(recipe: Path, folder: Path) -> None:
    """Write the profile of the data of a planned recipe to a run folder, for its report."""
    write_atomic(folder / "profile.json", read_plan(recipe).situation.profile.to_json())
