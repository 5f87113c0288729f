"""Pictures for the report of a run: what its data holds, and what its model makes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opabinia.config import ConfigError, Resolved
from opabinia.contracts import DataMismatch, Indices, Sample, Source
from opabinia.data.check import pictures_of_classes
from opabinia.data.loader import DataError
from opabinia.inference.compare import evenly, film_seen, named_worst, worst_first, wrong_and_right
from opabinia.inference.embedding_map import NAMES, Embedded, Method, chosen, drawn
from opabinia.inference.extract import only
from opabinia.inference.load import load
from opabinia.inference.predictor import Predictor
from opabinia.runtime.files import disk_errors, temporary_folder
from opabinia.runtime.log import log, logging_to
from opabinia.training.run_folder import build_parts, chosen_checkpoint, resolve, validation_sets
from opabinia.training.schedule_preview import panels, saved, timetable_of
from opabinia.visualization.detections import annotated_objects, predicted_objects
from opabinia.visualization.drawing import MARKS, draw_objects, to_pil
from opabinia.visualization.report.images import FOLDER, INDEX
from opabinia.visualization.video_strips import picture_of, strip

FORMAT = 3

SHOWN, LOOKED_AT = 24, 600
"""So many pictures of a kind are shown, and so many samples go through the model to find them."""

SCENES, FILMS, QUERIES, NEIGHBOURS, PAIRS, IN_ROW = 12, 10, 10, 9, 4, 8

OF_CLASS = 50
"""Of each class that is often taken for another: so many of its samples are looked at, too."""

SMALL, LARGE, WIDE = 160, 420, 1120
"""The longer side in pixels: of a thumbnail, of a picture with things in it, of a strip or a map."""

TEXT = 16
"""Height in pixels of what is written at a thing: the page shows such pictures smaller than they are."""

CLASSES_COUNTED = 1000

SCORE = 0.5
"""Of the things that are drawn."""

UNREADABLE = (OSError, ValueError, DataError)

Made = TypeVar("Made")


@dataclass(frozen=True)
class Shown:
    """A picture with words; ``verdict`` is a key of :data:`opabinia.visualization.drawing.FRAMES`, or nothing."""

    picture: Image.Image
    text: str
    verdict: str | None = None


@dataclass(frozen=True)
class Row:
    """Pictures that belong together."""

    pictures: Sequence[Shown]
    title: str = ""


@dataclass(frozen=True)
class Group:
    """Rows of pictures under a heading; of the data itself, or of what a model makes of it."""

    title: str
    rows: Sequence[Row]
    note: str = ""
    of_data: bool = False


@dataclass
class Evidence:
    """What was gathered.

    Attributes:
        groups: of pictures.
        counts: samples of each class, by data set.
        batches: their shapes over time, where they change.
        missing: what could not be had, in words.
    """

    groups: list[Group] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def gather(run: Path, *, checkpoint: str = "best", device: str | None = None) -> None:
    """Write pictures for the report of a run into ``pictures`` in its folder, with an ``index.json`` of them.

    They are of the training data and the first validation set, and of what the model makes of some of its samples. Data
    that is not there any more is told in the index. Nothing is done when they are there, of the same checkpoint and the
    same evaluation.

    Args:
        run: the run folder.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run or checkpoint, or it is damaged.
        DiskError: the folder cannot be written.
    """
    path = chosen_checkpoint(run, checkpoint)
    resolved = resolve(run)
    split = next((str(one["prefix"]) for one in validation_sets(resolved.config)), None)
    details = run / "eval" / (split or "") / "details.json"
    about = {"format": FORMAT, "checkpoint": path.name, "of": _digest(path / "state.json", details)}
    if _is_there(run / FOLDER / INDEX, about):
        return
    with logging_to(None):
        predictor = load(run, checkpoint=str(path), device=device)
        found = _gathered(run, resolved, split, predictor)
    _write(run / FOLDER, found, about)


def _digest(*paths: Path) -> str:
    there = b"".join(path.read_bytes() for path in paths if path.is_file())
    return blake2b(there, digest_size=8).hexdigest()


def _is_there(path: Path, about: Mapping[str, Any]) -> bool:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and about.items() <= said.items()


def _gathered(run: Path, resolved: Resolved, split: str | None, predictor: Predictor) -> Evidence:
    found = Evidence()
    training = _source(resolved, "train", found)
    if training is not None:
        _count("train", training, found)
        found.groups += _tried(found, "the training data", partial(_contact_sheet, training)) or []
    source = None if split is None else _source(resolved, split, found)
    if source is not None and split is not None:
        _count(split, source, found)
        for make in _makers(run, split, source, predictor):
            found.groups += _tried(found, f"pictures of {split}", make) or []
    if resolved.config["shapes"] is not None:
        found.batches = _tried(found, "batches over time", partial(_batches_over_time, resolved)) or {}
    return found


def _source(resolved: Resolved, name: str, found: Evidence) -> Source | None:
    """A data set, or a word of why it is not there."""
    try:
        source: Source = build_parts(only(resolved, name)).keywords["data"].validation[0].source
    except (ConfigError, *UNREADABLE) as error:
        first = str(error).splitlines()[0]
        found.missing.append(f"no pictures of {name}, for its data is not there: {first}")
        return None
    return source


def _tried(found: Evidence, what: str, make: Callable[[], Made]) -> Made | None:
    """What can be made; what cannot is told, and all else is still made."""
    try:
        return make()
    except (ConfigError, DataMismatch, *UNREADABLE) as error:
        found.missing.append(f"{what}: {error}")
        return None


def _count(name: str, source: Source, found: Evidence) -> None:
    counts = pictures_of_classes(source)
    if 0 < len(counts) <= CLASSES_COUNTED:
        found.counts[name] = counts


def _makers(run: Path, split: str, source: Source, predictor: Predictor) -> Iterator[Callable[[], list[Group]]]:
    """What is made of a validation set, by what its samples and the model tell."""
    labels = labels_of(source)
    if predictor.films:
        if labels is not None:
            yield partial(_films, run, split, source, predictor)
    elif getattr(source, "has_boxes", False):
        yield partial(_scenes, run, split, source, predictor)
    else:
        yield partial(_queries, run, split, source)
        yield partial(_judged, run, split, source, labels, predictor)


def labels_of(source: Source) -> Indices | None:
    """Class numbers of the samples (N), where each has one."""
    labels = getattr(source, "labels", None)
    return np.asarray(labels) if labels is not None and np.ndim(labels) == 1 else None


# --- which samples ----------------------------------------------------------------------------------------------------


def some(count: int, labels: Indices | None, most: int) -> list[int]:
    """Indices of at most about ``most`` samples, sorted.

    Of samples with classes whole classes, or equally many of each, so that there are others like them among them;
    otherwise such as lie at even distances.
    """
    if count <= most:
        return list(range(count))
    if labels is None:
        return list(evenly(range(count), most))
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    each = max(8, most // len(groups))
    taken: list[int] = []
    for number in np.random.default_rng(0).permutation(len(groups)):
        if len(taken) >= most:
            break
        taken += list(evenly(groups[number].tolist(), each))
    return sorted(taken[:most])


def in_turn(labels: Indices | None, indices: Sequence[int], most: int) -> list[int]:
    """Some of the indices, one of each class in turn."""
    if labels is None:
        return list(evenly(indices, most))
    met: Counter[int] = Counter()
    turns = []
    for index in indices:
        label = int(labels[index])
        turns.append((met[label], label, index))
        met[label] += 1
    return [index for _, _, index in sorted(turns)[:most]]


# --- the data ---------------------------------------------------------------------------------------------------------


def _contact_sheet(source: Source) -> list[Group]:
    labels = labels_of(source)
    indices = in_turn(labels, some(len(source), labels, LOOKED_AT), SHOWN)
    shown = [Shown(_thumbnail(source[index]), _words(source, source[index])) for index in indices]
    note = f"{len(indices)} of {len(source):,}, before transforms"
    return [Group("Some of the training data", [Row(shown)], note, of_data=True)]


def _words(source: Source, sample: Sample) -> str:
    """What a sample is, as its data tells."""
    names = source.classes
    ground_truth = sample.get("ground_truth")
    if ground_truth is not None:
        return (
            ", ".join(f"{n} × {names[label]}" for label, n in Counter(ground_truth.labels.tolist()).items())
            or "nothing"
        )
    if "label" not in sample or not len(names):
        return str(sample["id"])
    label = torch.as_tensor(sample["label"])
    numbers = label.nonzero().flatten().tolist() if label.ndim else [int(label)]
    return ", ".join(names[number] for number in numbers) or "nothing"


def _thumbnail(sample: Sample) -> Image.Image:
    return _fitted(to_pil(picture_of(sample)), SMALL)


def _fitted(picture: Image.Image, side: int) -> Image.Image:
    """A picture whose longer side has so many pixels at most."""
    scale = side / max(picture.size)
    if scale >= 1:
        return picture
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))


# --- things -----------------------------------------------------------------------------------------------------------


def _scenes(run: Path, split: str, source: Source, predictor: Predictor) -> list[Group]:
    rows = [_scene(source, source[index], predictor) for index in worst_first(run, split, source, SCENES)]
    note = f"those with most mistakes first; left what is there, right what was found with a score of {SCORE} at least"
    return [Group("What is there, and what was found", rows, note)]


def _scene(source: Source, sample: Sample, predictor: Predictor) -> Row:
    picture, ground_truth = sample["image"], sample["ground_truth"]
    there = annotated_objects(ground_truth, source.classes)
    found = predicted_objects(predictor(picture), predictor.classes, ground_truth.size, SCORE)
    words = (f"there are {len(there)}", f"found: {len(found)}")
    drawn_on = [_fitted(draw_objects(picture, things, side=LARGE, text=TEXT), LARGE) for things in (there, found)]
    return Row([Shown(one, text) for one, text in zip(drawn_on, words, strict=True)], str(sample["id"]))


# --- films ------------------------------------------------------------------------------------------------------------


def _films(run: Path, split: str, source: Source, predictor: Predictor) -> list[Group]:
    shown = []
    for index in wrong_and_right(run, split, source, FILMS):
        sample = source[index]
        verdict, words, clips = film_seen(predictor, sample, source.classes)
        views = [f"{one.name}: {one.text}" for one in clips if one.name]
        text = "; ".join([f"{sample['id']}: {words}", *views])
        shown.append(Shown(_fitted(strip(sample["video"], clips), WIDE), text, verdict))
    note = "the surest mistakes first, then others; of several views what is said of each crop stands above its clip"
    return [Group("Films as the model sees them", [Row(shown)], note)]


# --- queries ----------------------------------------------------------------------------------------------------------


def _queries(run: Path, split: str, source: Source) -> list[Group]:
    """Queries that an evaluation names, its worst and others, with what was nearest to them."""
    details = run / "eval" / split / "details.json"
    found = json.loads(details.read_text("utf-8")).get("retrieval", {}) if details.is_file() else {}
    id_of: Callable[[int], str] | None = getattr(source, "id", None)
    if id_of is None:
        return []
    chosen: dict[str, list[Mapping[str, Any]]] = {
        "Queries, from the worst to the best": found.get("others", []),
        "The worst queries": found.get("worst", []),
    }
    chosen = {title: some[:QUERIES] for title, some in chosen.items()}
    wanted = {name for some in chosen.values() for one in some for name in (one["query"], *one["nearest"])}
    places = {name: index for index in range(len(source)) if (name := id_of(index)) in wanted}
    note = "the query is the first in its row, beside it what is nearest to it"
    return [Group(title, [_query(source, one, places) for one in some], note) for title, some in chosen.items() if some]


def _query(source: Source, one: Mapping[str, Any], places: Mapping[str, int]) -> Row:
    pictures = [Shown(_thumbnail(source[places[one["query"]]]), Path(one["query"]).stem)]
    for name, right in zip(one["nearest"], one["right"], strict=True):
        pictures.append(Shown(_thumbnail(source[places[name]]), Path(name).stem, "right" if right else "wrong"))
    return Row(pictures, f"average precision {one['AP']:.3f}; the first match is at place {one['first_match']}")


# --- what the model says ----------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A sample and what a classifier says of it.

    Attributes:
        place: of the sample in its source.
        there, found: names of classes.
        sure: probability of what was found.
        right: whether that is what is there.
        regret: how wrong it is, from 0 to 1.
    """

    place: int
    there: str
    found: str
    sure: float
    right: bool
    regret: float


def _judged(run: Path, split: str, source: Source, labels: Indices | None, predictor: Predictor) -> list[Group]:
    """The mistakes of a classifier; of other models a map of embeddings, and neighbours."""
    indices = some(len(source), labels, LOOKED_AT)
    if not indices:
        return []
    probe = predictor.batch([predictor.sample(source[indices[0]]["image"])])[0]
    if "probabilities" not in probe:
        return _embedded(source, labels, indices, torch.cat([*_embeddings(source, indices, predictor)]))
    if len(probe["probabilities"]) != len(source.classes):
        return []
    confused = _confused(run, split)
    suspects = named_worst(run, split, source)
    if labels is not None:
        rows = {row for _, row, _ in confused.pairs}
        suspects += [index for row in rows for index in evenly(np.flatnonzero(labels == row).tolist(), OF_CLASS)]
    said = _said_of(source, list(dict.fromkeys([*suspects, *indices])), predictor)
    return _mistakes(source, said, confused)


class Confused(NamedTuple):
    """What an evaluation of a run tells of mistakes.

    Attributes:
        samples, wrong: how many there were, and mistakes among them; 0 where no evaluation tells.
        pairs: (mistakes, class, class that it was taken for), most first.
    """

    samples: int
    wrong: int
    pairs: Sequence[tuple[int, int, int]]


def _confused(run: Path, split: str) -> Confused:
    details = run / "eval" / split / "details.json"
    cells = json.loads(details.read_text("utf-8")).get("confusion", []) if details.is_file() else []
    wrong = sorted(((count, row, column) for row, column, count in cells if row != column), reverse=True)
    return Confused(sum(cell[2] for cell in cells), sum(cell[0] for cell in wrong), wrong[:PAIRS])


def _said_of(source: Source, indices: Sequence[int], predictor: Predictor) -> list[Said]:
    found = []
    for part in _parts(indices, predictor):
        samples = [predictor.sample(source[index]["image"]) for index in part]
        rows = [one["probabilities"] for one in predictor.batch(samples)]
        found += [_said(source, index, row) for index, row in zip(part, rows, strict=True)]
    return [one for one in found if one is not None]


def _embeddings(source: Source, indices: Sequence[int], predictor: Predictor) -> Iterator[Tensor]:
    for part in _parts(indices, predictor):
        yield predictor.embeddings([predictor.sample(source[index]["image"]) for index in part])


def _parts(indices: Sequence[int], predictor: Predictor) -> Iterator[Sequence[int]]:
    size = predictor.batch_size
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _said(source: Source, index: int, probabilities: Tensor) -> Said | None:
    """What is said of a sample; None where it has no class."""
    label = torch.as_tensor(source[index].get("label", -1))
    names = source.classes
    if label.ndim:
        there, found = label > 0.5, probabilities > 0.5
        wrong = (label - probabilities).abs()
        words = [", ".join(names[k] for k in one.nonzero().flatten().tolist()) or "nothing" for one in (there, found)]
        return Said(index, words[0], words[1], 1 - float(wrong.max()), bool((there == found).all()), float(wrong.max()))
    if label < 0:
        return None
    number = int(probabilities.argmax())
    regret = float(probabilities[number] - probabilities[int(label)])
    sure = float(probabilities[number])
    return Said(index, names[int(label)], names[number], sure, number == int(label), regret)


def _mistakes(source: Source, said: Sequence[Said], confused: Confused) -> list[Group]:
    """The most wrong, those that are confused most often, and what was only just right.

    Args:
        source: of the samples.
        said: of those that were looked at.
        confused: what an evaluation tells of all.
    """
    names = source.classes
    wrong = sorted((one for one in said if not one.right), key=lambda one: -one.regret)
    unsure = sorted((one for one in said if one.right), key=lambda one: one.sure)[: SHOWN // 2]
    if confused.samples:
        counted = f"{confused.wrong:,} of {confused.samples:,} samples are wrong"
        pairs = [((names[row], names[column]), count) for count, row, column in confused.pairs]
    else:
        counted = f"of {len(said):,} samples that were looked at {len(wrong):,} are wrong"
        pairs = Counter((one.there, one.found) for one in wrong).most_common(PAIRS)
    rows = [
        Row(
            [_shown(source, one) for one in wrong if (one.there, one.found) == pair][:IN_ROW],
            f"{pair[0]} taken for {pair[1]}: {count}",
        )
        for pair, count in pairs
        if len(wrong) > len(pairs)
    ]
    groups = [
        Group("Most wrong", [Row([_shown(source, one) for one in wrong[:SHOWN]])], f"{counted}; the surest first"),
        Group("Most confused", [row for row in rows if row.pictures], counted),
        Group(
            "Right, but least sure",
            [Row([_shown(source, one) for one in unsure])],
            f"of {len(said):,} samples that were looked at",
        ),
    ]
    return [group for group in groups if any(row.pictures for row in group.rows)]


def _shown(source: Source, one: Said) -> Shown:
    sample = source[one.place]
    words = f"{one.there} ({one.sure:.0%})" if one.right else f"is {one.there}, said {one.found} ({one.sure:.0%})"
    return Shown(_thumbnail(sample), f"{words} · {sample['id']}", "right" if one.right else "wrong")


# --- embeddings -------------------------------------------------------------------------------------------------------


def _embedded(source: Source, labels: Indices | None, indices: Sequence[int], features: Tensor) -> list[Group]:
    if len(indices) < 3:
        return []
    own = np.full(len(indices), -1) if labels is None else labels[np.asarray(indices)]
    found = Embedded(features, own.astype(np.int64), np.asarray(indices), len(source), {"split": "embeddings"})
    names = [str(one) for one in source.classes] or [str(n) for n in range(int(own.max()) + 1)]
    note = f"{len(indices)} of {len(source):,} samples; {MARKS} classes at most have a mark of their own"
    methods: tuple[Method, ...] = ("pca", "tsne")
    maps = [Shown(_fitted(drawn(found, names, method), WIDE), f"by {NAMES[method]}") for method in methods]
    return [Group("Map of embeddings", [Row(maps)], note), _neighbours(source, found, names)]


def _neighbours(source: Source, found: Embedded, names: Sequence[str]) -> Group:
    """Some samples, each with those that are nearest to it by the cosine."""
    rows = []
    for number in chosen(found.labels).tolist():
        similar = found.features @ found.features[number]
        similar[number] = -torch.inf
        values, places = similar.topk(min(NEIGHBOURS, len(similar) - 1))
        label = int(found.labels[number])
        pictures = [Shown(_thumbnail(source[int(found.numbers[number])]), names[label] if label >= 0 else "")]
        for cosine, place in zip(values.tolist(), places.tolist(), strict=True):
            other = int(found.labels[place])
            name = names[other] if other >= 0 else ""
            verdict = None if label < 0 else "right" if other == label else "wrong"
            pictures.append(Shown(_thumbnail(source[int(found.numbers[place])]), f"{name} {cosine:.2f}", verdict))
        rows.append(Row(pictures))
    return Group("Nearest neighbours", rows, "some samples (first in each row) and what is nearest, with the cosine")


# --- batches over time ------------------------------------------------------------------------------------------------


def _batches_over_time(resolved: Resolved) -> dict[str, Any]:
    """Shapes of batches, and the learning rate, as lines."""
    parts = build_parts(resolved).keywords
    table = timetable_of(parts)
    charts = [{"title": panel.name, "lines": panel.lines} for panel in panels(table, parts["schedule"])]
    return {"note": saved(table), "charts": charts}


# --- on the disk ------------------------------------------------------------------------------------------------------


def _write(folder: Path, found: Evidence, about: Mapping[str, Any]) -> None:
    with disk_errors(folder), temporary_folder(folder) as aside:
        names = (f"{number:04d}.webp" for number in range(100_000))
        groups = [
            {
                "title": group.title,
                "note": group.note,
                "of_data": group.of_data,
                "rows": [
                    {"title": row.title, "pictures": [_saved(aside / next(names), one) for one in row.pictures]}
                    for row in group.rows
                ],
            }
            for group in found.groups
        ]
        counts = [{"set": name, "of_class": of_class} for name, of_class in found.counts.items()]
        index = {**about, "groups": groups, "counts": counts, "batches": found.batches, "missing": found.missing}
        (aside / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    if found.missing:
        log.warning("%s", "; ".join(found.missing))


def _saved(path: Path, one: Shown) -> dict[str, str]:
    """Tiny pictures keep every pixel."""
    tiny = max(one.picture.size) <= SMALL
    one.picture.save(path, "WEBP", lossless=tiny and max(one.picture.size) < 90, quality=85)
    return {"file": path.name, "text": one.text} | ({"verdict": one.verdict} if one.verdict else {})
