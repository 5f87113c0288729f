"""What the map command does: embeddings as points in the plane, and what lies beside some of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Source
from opabinia.data.loader import DataError
from opabinia.evaluation.retrieval.whitening import whitening
from opabinia.inference.extract import ABOUT, ALL, extract, only
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log, logging_to
from opabinia.training.run_folder import build_parts, holds_run, resolve
from opabinia.visualization.drawing import MARKS, scatter, sheet, stack_vertically, to_pil
from opabinia.visualization.video_strips import picture_of

Method = Literal["pca", "tsne", "umap"]

SAMPLES, NEIGHBOURS, SIZE = 10, 9, 94
"""Of the sheet: how many samples, how many neighbours of each, and the side of a picture in pixels."""


class Embedded(NamedTuple):
    """Embeddings of some samples of a data set.

    Attributes:
        features: of length 1, float32, N x D.
        labels: class numbers, N; -1 where a sample has no class, or several.
        numbers: of the samples in what was extracted, N.
        total: how many samples that are.
        about: what the extract command says of them.
    """

    features: Tensor
    labels: NDArray[np.int64]
    numbers: NDArray[np.int64]
    total: int
    about: Mapping[str, Any]


def draw_map(
    where: Path,
    out: Path | None = None,
    *,
    split: str = "val",
    method: Method = "pca",
    column: str = "features",
    most: int = 5000,
    checkpoint: str = "best",
    device: str | None = None,
) -> Path:
    """Draw embeddings in two dimensions, marked by class, and below it some samples with their nearest neighbours by
    cosine: those of the same class framed green, the others red.

    Args:
        where: what ``opabinia extract`` wrote of a data set; or a run folder, whose embeddings are extracted into
            ``map/SPLIT`` in it first, where they are not there yet.
        out: the picture to write; ``map-METHOD.png`` beside the features when not given.
        split: of a run: ``train``, or the prefix of a validation set.
        method: principal components; or t-SNE (van der Maaten and Hinton 2008) or UMAP (McInnes et al. 2018), which
            keep neighbours together and say nothing about distances further apart.
        column: the array that is drawn, as it is called in the folder.
        most: how many samples, taken at even distances; the neighbours are among these.
        checkpoint: of a run, see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there are no such features, run or set, or a library is missing.
        DataError: there are too few samples.
    """
    refuse_missing_library(method)
    folder = where
    if holds_run(where):
        if split == ALL:
            raise ConfigError(Problem("command line", "--split", "a map is of one set: train, or a validation set"))
        # In a folder of its own: what a person has extracted, other layers perhaps, stays as it is.
        (folder,) = extract(where, where / "map" / split, splits=[split], checkpoint=checkpoint, device=device)
    found = read(folder, column, most)
    source = source_of(found)
    names = getattr(source, "classes", ()) or [str(number) for number in range(int(found.labels.max()) + 1)]
    out = out or folder / f"map-{method}.png"
    picture = drawn(found, names, method)
    if source is not None:
        with logging_to(None):
            picture = with_neighbours(picture, found, source, names)
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        picture.save(out)
    Console(highlight=False).print(f"a map of {len(found.numbers)} samples is in {out}", soft_wrap=True)
    return out


def refuse_missing_library(method: Method) -> None:
    """Tell at once what would only come out at the end.

    Raises:
        ConfigError: the method needs a library that is not there.
    """
    if method == "umap" and find_spec("umap") is None:
        raise ConfigError(Problem("command line", "--method", "umap needs umap-learn: pip install umap-learn"))


def read(folder: Path, column: str, most: int) -> Embedded:
    """Some samples of what was extracted.

    Raises:
        ConfigError: nothing was extracted there, or no such column.
        DataError: there are fewer than three samples.
    """
    if not (folder / ABOUT).is_file():
        raise ConfigError(Problem("command line", "", f"{folder} holds neither a run nor features (no {ABOUT} in it)"))
    path = folder / f"{column}.npy"
    if not path.is_file():
        there = ", ".join(sorted(one.stem for one in folder.glob("*.npy"))) or "none"
        raise ConfigError(Problem("command line", "--column", f"there is no {path}; arrays there: {there}"))
    rows = np.load(path, mmap_mode="r")
    if len(rows) < 3:
        raise DataError(f"{path} has {len(rows)} samples; a map wants three or more")
    numbers = np.arange(len(rows))[:: -(-len(rows) // most)]
    features = torch.from_numpy(rows[numbers].reshape(len(numbers), -1).astype(np.float32))
    told_labels = folder / "labels.npy"
    labels = np.load(told_labels, mmap_mode="r")[numbers] if told_labels.is_file() else np.zeros((0, 0))
    if labels.ndim != 1:
        labels = np.full(len(numbers), -1)
    about = json.loads((folder / ABOUT).read_text("utf-8"))
    return Embedded(F.normalize(features, dim=1), labels.astype(np.int64), numbers, len(rows), about)


def source_of(found: Embedded) -> Source | None:
    """Where the samples are from; None, with a word in the log, where that cannot be told any more."""
    run = Path(found.about.get("run", ""))
    why = f"{run} is no run any more"
    if holds_run(run):
        try:
            resolved = only(resolve(run), str(found.about.get("split", "val")))
            source: Source = build_parts(resolved).keywords["data"].validation[0].source
        except ConfigError as error:
            why = str(error)
        else:
            if len(source) == found.total:
                return source
            why = f"the data of {run} has {len(source)} samples, but features are of {found.total}"
    log.warning("no names and no pictures: %s", why)
    return None


# --- the map --------------------------------------------------------------------------------------------------------


def drawn(found: Embedded, names: Sequence[str], method: Method) -> Image.Image:
    """The map with its legend. Of more classes than there are marks those with most samples have one."""
    counts = np.bincount(found.labels[found.labels >= 0], minlength=len(names))
    shown = np.sort(np.argsort(-counts, kind="stable")[:MARKS])
    place = {int(number): at for at, number in enumerate(shown)}
    classes = [place.get(label, -1) for label in found.labels.tolist()]
    count = f"{len(found.numbers):,}" + (f" of {found.total:,}" if len(found.numbers) < found.total else "")
    title = f"{found.about.get('split', 'features')}: {count} samples, {NAMES[method]}"
    return scatter(plane(found.features, method), classes, [names[number] for number in shown], title=title)


NAMES: dict[Method, str] = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}


def plane(features: Tensor, method: Method) -> NDArray[np.floating[Any]]:
    """Places in the plane (N x 2) of vectors of length 1 (N x D); the same on every call.

    Raises:
        Unfit: all vectors are the same.
    """
    learned = whitening(features, 2)
    along = (features - learned.mean) @ F.normalize(learned.directions, dim=1).T
    flat = F.pad(along, (0, 2 - along.shape[1])).numpy()  # what collapses may vary along one line only
    if method == "pca":
        return flat
    if method == "tsne":
        from sklearn.manifold import TSNE

        start = 1e-4 * flat / flat[:, 0].std()  # as small as scikit-learn's own
        wide = min(30.0, (len(features) - 1) / 3)
        places: NDArray[np.floating[Any]]
        places = TSNE(2, perplexity=wide, init=start, random_state=0).fit_transform(features.numpy())
        return places
    umap = import_module("umap")
    near = min(15, len(features) - 1)
    places = umap.UMAP(n_neighbors=near, metric="cosine", random_state=0).fit_transform(features.numpy())
    return places


# --- neighbours -----------------------------------------------------------------------------------------------------


def with_neighbours(above: Image.Image, found: Embedded, source: Source, names: Sequence[str]) -> Image.Image:
    """The map, and below it a row for each of some samples: itself, and its nearest neighbours."""
    asked = chosen(found.labels)
    similar = found.features[torch.from_numpy(asked)] @ found.features.T
    similar[torch.arange(len(asked)), torch.from_numpy(asked)] = -torch.inf
    values, places = similar.topk(min(NEIGHBOURS, len(found.numbers) - 1), dim=1)
    pictures: list[Image.Image] = []
    captions: list[str] = []
    frames: list[str | None] = []
    for query, row, cosines in zip(asked.tolist(), places.tolist(), values.tolist(), strict=True):
        pictures += [to_pil(picture_of(source[int(found.numbers[place])])) for place in (query, *row)]
        labels = found.labels[[query, *row]].tolist()
        words = [names[label] if label >= 0 else "" for label in labels]
        captions += [words[0], *(f"{word}\n{cosine:.2f}" for cosine, word in zip(cosines, words[1:], strict=True))]
        frames += [None, *_verdicts(labels[0], labels[1:])]
    rows = sheet(pictures, captions, columns=1 + places.shape[1], size=SIZE, frames=frames)
    title = "some samples (left) and their nearest neighbours, with the cosine"
    return stack_vertically([above, rows], ["", title])


def chosen(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Samples to be shown, by number: one of each of some classes, at even distances; of samples without classes some
    at even distances."""
    firsts = np.unique(labels, return_index=True)[1]
    numbers = firsts if len(firsts) > 1 else np.arange(len(labels))
    count = min(SAMPLES, len(numbers))
    return numbers[np.arange(count) * len(numbers) // count]


def _verdicts(label: int, others: Iterable[int]) -> list[str | None]:
    return [None if label < 0 else "right" if other == label else "wrong" for other in others]
