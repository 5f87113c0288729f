"""The data of ``opabinia eval``: some of a run's validation sets, or other data of the same layout; and its scores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.datasets import Section, validation_sets, with_validation_sets
from opabinia.config.errors import listing, nearest
from opabinia.runtime.json_files import InvalidFile, read_json, write_json
from opabinia.runtime.log import log

PATH_KEYS = ("root", "file", "data")
"""Keys of sources whose values are the folder or the annotation file of the data."""

IDENTITY = ("data", "checkpoint", "weights", "overrides")
"""Values in ``scores.json`` in which two evaluations differ; one replaces another only if all are the same."""


class _Scores(TypedDict):
    earlier: NotRequired[list[dict[str, Any]]]


def choose_sets(
    resolved: Resolved,
    trained: Resolved,
    *,
    splits: Sequence[str] = (),
    data: Path | None = None,
    name: str | None = None,
) -> Resolved:
    """Return the config with the validation sets to evaluate.

    Args:
        resolved: the config of the run with overrides.
        trained: without them.
        splits: prefixes of validation sets; none means all.
        data: a folder or annotation file to evaluate on instead, in the layout of the first of these sets.
        name: name of the evaluation of ``data``, or of the first set whose source the overrides change; None: that of
            the folder or file.

    Raises:
        ConfigError: there is no such set, the source cannot read other data, or the scores of other data would replace
            those of a validation set of the run.
    """
    sets = validation_sets(resolved.config)
    chosen = _named_sets(sets, splits) if splits else sets
    sources = {section["prefix"]: section["source"] for section in validation_sets(trained.config)}
    changed = [section for section in chosen if sources.get(section["prefix"], section["source"]) != section["source"]]
    if data is not None or name is not None:
        return _with_other_data(resolved, changed or chosen, sources, data, name)
    if changed:
        message = f"other data than that of the run's {changed[0]['prefix']!r} would replace the scores of that"
        raise ConfigError(Problem("command line", "data.val", message, "", "", "add --name, or use --data PATH"))
    return (
        _with_sets(resolved, {section["prefix"]: section["prefix"] for section in sets}, chosen) if splits else resolved
    )


def _named_sets(sets: Sequence[Section], splits: Sequence[str]) -> list[Section]:
    prefixes = [section["prefix"] for section in sets]
    for split in splits:
        if split not in prefixes:
            known = f"sets: {listing(prefixes) or 'none'}"
            message = f"there is no validation set {split!r}"
            raise ConfigError(Problem("command line", "--split", message, "", nearest(split, prefixes), known))
    return [section for section in sets if section["prefix"] in splits]


def _with_other_data(
    resolved: Resolved, sets: Sequence[Section], sources: Mapping[str, Any], data: Path | None, name: str | None
) -> Resolved:
    """The config with the first of ``sets`` only, for ``data`` if given; ``sources``: those of the run, by prefix."""
    if not sets:
        message = "there is no validation set whose layout and transforms other data has"
        raise ConfigError(Problem("", "data.val", message))
    section, source = sets[0], sets[0]["source"]
    if data is not None:
        source = redirect_source(source, data, "data.val.source")
    name = name or _default_name(data or Path(), sources)
    if "/" in name or name in _taken(sources):
        taken = listing(sorted(_taken(sources)))
        message = f"{name!r} is not a name for the scores of other data than the run's: {taken}"
        raise ConfigError(Problem("command line", "--name", message))
    return _with_sets(resolved, {section["prefix"]: name}, [{**section, "prefix": name, "source": source}])


def _taken(sources: Mapping[str, Any]) -> set[str]:
    return {name for prefix in sources for name in (prefix, f"{prefix}_ema")}


def _default_name(data: Path, sources: Mapping[str, Any]) -> str:
    path = data.expanduser().resolve()
    name = path.name if path.is_dir() else path.stem
    return f"{path.parent.name}_{name}" if name in _taken(sources) else name


def _with_sets(resolved: Resolved, names: Mapping[str, str], streams: Sequence[dict[str, Any]]) -> Resolved:
    """The config with these validation sets only, some of them renamed; without the scores that it expects of all."""
    config = with_validation_sets(resolved.config, streams)
    kept = {stream["prefix"] for stream in streams}
    evaluators = {
        key: {**section, "on": section["on"] and names[section["on"]]}
        for key, section in (config["evaluate"]["evaluators"] or {}).items()
        if section["on"] is None or names.get(section["on"]) in kept
    }
    hooks = {key: hook for key, hook in (config["hooks"] or {}).items() if hook["name"] != "expected_scores"}
    sections = {"evaluate": {**config["evaluate"], "evaluators": evaluators}, "hooks": hooks}
    origins = {key: place for key, place in resolved.origins.items() if not key.startswith("data.val.")}
    return replace(resolved, config={**config, **sections}, origins=origins)


# --- other data -------------------------------------------------------------------------------------------------------


def redirect_source(source: Mapping[str, Any], path: Path, key: str) -> dict[str, Any]:
    """Return a ``source`` section that reads other data of the same layout.

    The folder ``path`` replaces the folder that holds all data of the source, or its root, the annotation file ``path``
    its file; the other one is where it is beside the old one, with the name of the split replaced.

    Args:
        source: a complete section.
        path: a folder or an annotation file.
        key: place of the section, for errors.

    Raises:
        ConfigError: ``path`` does not exist, or the source does not find its files there.

    Example: with ``path`` ``bccd/test`` the section ``{root: bccd/val, file: bccd/annotations/instances_val.json}``
    becomes ``{root: bccd/test, file: bccd/annotations/instances_test.json}``.
    """
    path = path.expanduser()
    if not path.exists():
        raise ConfigError(Problem("command line", "--data", f"there is no {path}"))
    if source["name"] in ("subset", "random_part"):  # of other data all samples are evaluated
        return redirect_source(source["source"], path, f"{key}.source")
    if isinstance(source.get("source"), Mapping):
        return {**source, "source": redirect_source(source["source"], path, f"{key}.source")}
    old = {name: Path(source[name]).expanduser().absolute() for name in PATH_KEYS if source.get(name)}
    for new in _candidates(old, path, source.get("split")) if old else ():
        if all(Path(value).exists() for name, value in new.items() if name in old):
            return {**source, **{name: str(value) for name, value in new.items()}}
    message = f"{source['name']} cannot read {path} instead of {' and '.join(map(str, old.values()))}"
    if not old:
        message = f"{source['name']} reads no folder or file that {path} could replace"
    names = [name for name in source if name in (*PATH_KEYS, "split", "files", "dataset", "sources")]
    keys = ", ".join(f"{key}.{name}=" for name in names) or f"{key}="
    hint = f"give a --name and keys of the source instead: {keys}"
    raise ConfigError(Problem("command line", "--data", message, "", "", hint))


def _candidates(old: Mapping[str, Path], path: Path, split: str | None) -> Iterator[dict[str, Path | str]]:
    """Yield the paths that may replace the old ones, the likeliest first; not all of them exist."""
    root, file_key = old.get("root"), next((name for name in old if name != "root"), "")
    folders = [value if name == "root" else value.parent for name, value in old.items()]
    top = os.path.commonpath(folders)
    if root is not None and split and (root / split).is_dir() and not (path / split).is_dir():
        yield {"root": path.parent, "split": path.name}  # a folder for each split
    yield {name: path / os.path.relpath(value, top) for name, value in old.items()}
    if not file_key:
        return
    if len(files := list(path.glob(f"*{old[file_key].suffix}"))) == 1:
        yield {**({"root": path} if root else {}), file_key: files[0]}
    if root is None:
        yield {file_key: path}
    elif path.is_dir():
        beside = os.path.relpath(old[file_key], root.parent)
        for name in (beside.replace(root.name, path.name), beside):
            file = Path(os.path.normpath(path.parent / name))
            if file.absolute() != old[file_key]:  # the annotations of other images
                yield {"root": path, file_key: file}
    else:
        before, found, after = old[file_key].stem.partition(root.name)
        split_name = path.stem.removeprefix(before).removesuffix(after) if found else root.name
        beside = os.path.relpath(root, old[file_key].parent)
        for name in (beside.replace(root.name, split_name), beside):
            yield {"root": Path(os.path.normpath(path.parent / name)), file_key: path}
        yield {file_key: path}


# --- scores -----------------------------------------------------------------------------------------------------------


def write_scores(folder: Path, about: Mapping[str, Any], scores: Mapping[str, float]) -> None:
    """Write ``scores.json`` of an evaluation; results in it of other data, checkpoints, weights or overrides stay there
    as ``earlier``.

    Args:
        folder: ``eval/<set>`` in the run folder.
        about: ``data`` (:func:`opabinia.config.text.describe_source`), number of ``samples``, ``checkpoint``,
            ``weights``, ``overrides``.
        scores: scores by name.
    """
    file, before = folder / "scores.json", _Scores()
    try:
        before = read_json(file, _Scores) if file.exists() else before
    except InvalidFile as error:  # an evaluation may have taken hours
        log.warning("%s; it is replaced", error)
    results = [before, *before.pop("earlier", [])] if before else []
    earlier = [result for result in results if any(result.get(key) != about[key] for key in IDENTITY)]
    write_json(file, {**about, **scores, **({"earlier": earlier} if earlier else {})})
