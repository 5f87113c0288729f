"""The work of ``opabinia map``: draw embeddings in two dimensions, and nearest neighbors of some samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from torch import Tensor
from typing_extensions import TypedDict

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Source
from opabinia.data.errors import DataError
from opabinia.evaluation.retrieval.whitening import whitening
from opabinia.inference.extract import ABOUT, extract
from opabinia.inference.feature_files import load_array
from opabinia.inference.load import RunModel
from opabinia.inference.splits import ALL, AUTO, open_split, resolve_split
from opabinia.runtime.files import disk_errors
from opabinia.runtime.json_files import InvalidFile, read_json
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.text import plural
from opabinia.training.run_folder import holds_run, resolve
from opabinia.visualization.drawing import MAX_MARKED_CLASSES, contact_sheet, scatter_plot, stack_vertically, to_pil
from opabinia.visualization.video_strips import representative_image

Method = Literal["pca", "tsne", "umap"]
METHOD_NAMES: dict[Method, str] = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}

SAMPLES, NEIGHBORS, SIZE = 10, 9, 94
"""Rows and neighbors per row of the sheet below the map, and side of an image in pixels."""


class _About(TypedDict, total=False):
    run: str
    split: str


def check_method(method: Method) -> None:
    """Check for the library that a method needs.

    Raises:
        ConfigError: it is missing.
    """
    if method == "umap" and find_spec("umap") is None:
        raise ConfigError(Problem("command line", "--method", "umap needs umap-learn: pip install umap-learn"))


class EmbeddingSet(NamedTuple):
    """Embeddings of some samples of a dataset.

    Attributes:
        features: normalized to length 1, float32, N x D.
        labels: class numbers, N; -1 without a class, or with several.
        numbers: indices of the samples among those extracted, N.
        total: number of extracted samples.
        about: ``about.json`` of the extract command.
    """

    features: Tensor
    labels: NDArray[np.int64]
    numbers: NDArray[np.int64]
    total: int
    about: Mapping[str, Any]


def extract_embeddings(model: RunModel, split: str = AUTO) -> Path:
    """Extract embeddings of a run's data into its ``map/SPLIT``, unless they are up to date, and return that folder:
    extracted features of the user, perhaps of other layers, are not replaced.

    Args:
        model: the model of a run.
        split: ``train``, the prefix of a validation set, or ``auto``: the first of them, else ``train``.

    Raises:
        ConfigError: there is no such run or split.
    """
    split = resolve_split(resolve(model.run, model.overrides), split)
    if split == ALL:
        raise ConfigError(Problem("command line", "--split", "a map shows one set: train, or a validation set"))
    (folder,) = extract(model, model.run / "map" / split, splits=[split])
    return folder


def draw_map(
    folder: Path, out: Path | None = None, *, method: Method = "pca", column: str = "features", max_samples: int = 5000
) -> Path:
    """Draw embeddings in two dimensions, marked by class, and below some samples with their nearest neighbors by
    cosine: those of the same class framed green, the others red.

    Args:
        folder: a folder of ``opabinia extract``.
        out: the image to write; None: ``map-METHOD.png`` beside the features.
        method: principal components; or t-SNE (van der Maaten and Hinton 2008) or UMAP (McInnes et al. 2018), which
            preserve neighborhoods but not larger distances.
        column: the array that is drawn, by its name in the folder.
        max_samples: maximum number of samples, at even distances; neighbors are among these.

    Raises:
        ConfigError: there are no such features.
        DataError: there are too few samples.
    """
    embeddings = read_embeddings(folder, column, max_samples)
    with logging_to(None):
        source = find_source(embeddings)
    names = getattr(source, "classes", ()) or [str(number) for number in range(int(embeddings.labels.max()) + 1)]
    if len(names) <= (largest := int(embeddings.labels.max())):
        raise InvalidFile(f"{folder / 'labels.npy'}: there is a label {largest}, and the data has {len(names)} classes")
    out = out or folder / f"map-{method}.png"
    with progress_bar(f"map by {METHOD_NAMES[method]}", 2, unit="parts") as bar:
        image = draw_scatter(embeddings, names, method)
        bar.advance()
        if source is not None:
            with logging_to(None):
                image = add_neighbors(image, embeddings, source, names)
        bar.advance()
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        image.save(out)
    Console(highlight=False).print(f"a map of {plural(len(embeddings.numbers), 'sample')} is in {out}", soft_wrap=True)
    return out


def read_embeddings(folder: Path, column: str, max_samples: int) -> EmbeddingSet:
    """Read extracted features of some samples.

    Raises:
        ConfigError: the folder has no features, or no such column.
        DataError: there are fewer than three samples.
    """
    if not (folder / ABOUT).is_file():
        message = f"{folder} is neither a run nor a folder of features (no {ABOUT})"
        raise ConfigError(Problem("command line", "", message))
    path = folder / f"{column}.npy"
    if not path.is_file():
        arrays = ", ".join(sorted(file.stem for file in folder.glob("*.npy"))) or "none"
        raise ConfigError(Problem("command line", "--column", f"there is no {path}; arrays there: {arrays}"))
    rows = load_array(path)
    if len(rows) < 3:
        raise DataError(f"{path} has {plural(len(rows), 'sample')}; a map needs three or more")
    count = min(max_samples, len(rows))
    numbers = np.arange(count) * len(rows) // count
    features = torch.from_numpy(rows[numbers].reshape(len(numbers), -1).astype(np.float32))
    labels_file = folder / "labels.npy"
    all_labels = load_array(labels_file) if labels_file.is_file() else np.zeros((len(rows), 0))
    if len(all_labels) != len(rows):
        raise InvalidFile(f"{labels_file}: {len(all_labels)} labels for {len(rows)} samples")
    labels = all_labels[numbers]
    if labels.ndim != 1:
        labels = np.full(len(numbers), -1)
    about = read_json(folder / ABOUT, _About)
    return EmbeddingSet(F.normalize(features, dim=1), labels.astype(np.int64), numbers, len(rows), about)


def find_source(embeddings: EmbeddingSet) -> Source | None:
    """Open the source of the samples; None, with a warning, if it no longer exists or has changed."""
    run = Path(embeddings.about.get("run", ""))
    reason = f"{run} is not a run any more"
    try:
        if holds_run(run):
            source = open_split(resolve(run), str(embeddings.about.get("split", "val")))
            if len(source) == embeddings.total:
                return source
            reason = f"the data of {run} has {len(source)} samples, but the features are of {embeddings.total}"
    except (ConfigError, OSError) as error:
        reason = str(error)
    log.warning("the map has no class names and no images: %s", reason)
    return None


# --- the map --------------------------------------------------------------------------------------------------------


def draw_scatter(embeddings: EmbeddingSet, names: Sequence[str], method: Method) -> Image.Image:
    """Draw the map with its legend. If there are more classes than marks, the largest classes have one."""
    counts = np.bincount(embeddings.labels[embeddings.labels >= 0], minlength=len(names))
    marked = np.sort(np.argsort(-counts, kind="stable")[:MAX_MARKED_CLASSES])
    marks = {int(label): mark for mark, label in enumerate(marked)}
    classes = [marks.get(label, -1) for label in embeddings.labels.tolist()]
    shown, total = len(embeddings.numbers), embeddings.total
    count = f"{shown:,} of {total:,}" if shown < total else f"{shown:,}"
    title = f"{embeddings.about.get('split', 'features')}: {count} samples, {METHOD_NAMES[method]}"
    points = project_to_plane(embeddings.features, method)
    return scatter_plot(points, classes, [names[label] for label in marked], title=title)


def project_to_plane(features: Tensor, method: Method) -> NDArray[np.floating[Any]]:
    """Return points in the plane (N x 2) for vectors of length 1 (N x D); deterministic.

    Raises:
        DataMismatch: all vectors are the same.
    """
    fitted = whitening(features, 2)
    projected = (features - fitted.mean) @ F.normalize(fitted.directions, dim=1).T
    principal = F.pad(projected, (0, 2 - projected.shape[1])).numpy()  # collapsed features may vary along one line only
    if method == "pca":
        return principal
    if method == "tsne":
        from sklearn.manifold import TSNE

        start = 1e-4 * principal / principal[:, 0].std()  # the scale of scikit-learn's own initialization
        projection: Any = TSNE(2, perplexity=min(30.0, (len(features) - 1) / 3), init=start, random_state=0)
    else:
        neighbors = min(15, len(features) - 1)
        projection = import_module("umap").UMAP(n_neighbors=neighbors, metric="cosine", random_state=0)
    points: NDArray[np.floating[Any]] = projection.fit_transform(features.numpy())
    return points


# --- neighbors ------------------------------------------------------------------------------------------------------


class Neighbor(NamedTuple):
    """A sample beside others.

    Attributes:
        image: image of the sample.
        texts: name of its class, empty if it has none; of a neighbor also the cosine.
        verdict: for a neighbor ``right`` if it has the class of the first sample, else ``wrong``; None without classes.
    """

    image: Image.Image
    texts: Sequence[str]
    verdict: str | None


def neighbor_rows(embeddings: EmbeddingSet, source: Source, names: Sequence[str]) -> Iterator[list[Neighbor]]:
    """Yield for each of some samples: the sample and its nearest neighbors."""
    queries = torch.from_numpy(choose_queries(embeddings.labels))
    similarities = embeddings.features[queries] @ embeddings.features.T
    similarities[torch.arange(len(queries)), queries] = -torch.inf
    cosines, indices = similarities.topk(min(NEIGHBORS, len(embeddings.numbers) - 1), dim=1)
    for query, row, near in zip(queries.tolist(), indices.tolist(), cosines.tolist(), strict=True):
        own_label = embeddings.labels[query]
        neighbors = []
        for index, cosine in zip([query, *row], [None, *near], strict=True):
            label = embeddings.labels[index]
            texts = [names[label] if label >= 0 else "", *([] if cosine is None else [f"{cosine:.2f}"])]
            verdict = None if own_label < 0 or cosine is None else "right" if label == own_label else "wrong"
            image = to_pil(representative_image(source[int(embeddings.numbers[index])]))
            neighbors.append(Neighbor(image, texts, verdict))
        yield neighbors


def add_neighbors(scatter: Image.Image, embeddings: EmbeddingSet, source: Source, names: Sequence[str]) -> Image.Image:
    """Return the map with a row below for each of some samples: the sample and its nearest neighbors."""
    rows = list(neighbor_rows(embeddings, source, names))
    shown = list(chain.from_iterable(rows))
    sheet = contact_sheet(
        [neighbor.image for neighbor in shown],
        [neighbor.texts for neighbor in shown],
        columns=len(rows[0]),
        size=SIZE,
        frames=[neighbor.verdict for neighbor in shown],
    )
    title = "some samples (left) and their nearest neighbors, with the cosine"
    return stack_vertically([scatter, sheet], ["", title])


def choose_queries(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return indices of samples to show: one of each of some classes, or without classes some at even distances."""
    firsts = np.unique(labels, return_index=True)[1]
    numbers = firsts if len(firsts) > 1 else np.arange(len(labels))
    count = min(SAMPLES, len(numbers))
    return numbers[np.arange(count) * len(numbers) // count]
