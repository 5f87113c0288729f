"""The work of ``opabinia predict``: predict files, or find the nearest images of a gallery, and write the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.contracts import DrawOptions
from opabinia.contracts.presenting import save_image
from opabinia.data.decoding.sequential import is_video
from opabinia.evaluation.retrieval.distances import nearest as nearest_rows
from opabinia.inference.class_thresholds import DEFAULT, chosen_thresholds
from opabinia.inference.earlier_files import replace_earlier
from opabinia.inference.frames import predict_frames
from opabinia.inference.input_files import (
    InputBatch,
    drawing_name,
    find_files,
    raise_skipped,
    read_batches,
    write_lines,
)
from opabinia.inference.predictor import Predictor, group_by_size
from opabinia.inference.retrieval.gallery import Gallery, embed_files, embed_gallery
from opabinia.inference.sheets import Sheets
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.storage import shown_path
from opabinia.runtime.text import plural, printable
from opabinia.visualization.drawing import contact_sheet, overlay_heatmap, to_pil
from opabinia.visualization.video_strips import representative_image

EXPLAINED = 256
"""Side in pixels to which a small image with its heatmap is enlarged by a whole factor."""


def use_thresholds(predictor: Predictor, run: Path, checkpoint: str, score: float | None) -> float:
    """Let a model predict at the thresholds of its run, if there are some and no minimum score is given, and print
    that; return the minimum score of what is drawn.

    Args:
        predictor: the model.
        run: its run folder.
        checkpoint: its checkpoint.
        score: minimum score that is given; None: none.
    """
    chosen = chosen_thresholds(run, checkpoint) if score is None else None
    if chosen is None:
        return DEFAULT if score is None else score
    predictor.thresholds = chosen.values
    print(f"predictions are those above the threshold of their class ({chosen.file}); --score takes one for all")
    return 0.0


def predict(
    predictor: Predictor,
    paths: Sequence[Path | str],
    out: Path,
    *,
    explain: bool = False,
    min_score: float = 0.5,
    max_frames: int | None = None,
    bands: Sequence[int] | None = None,
) -> None:
    """Print and write predictions of images and of all images in folders; of videos if the task learns from clips.

    If videos, URLs or cameras are named and the task takes images, their frames are predicted, see
    :func:`opabinia.inference.frames.predict_frames`.

    ``predictions.jsonl`` has one line per file with its ``path`` and the task's readable prediction; ``sheet-1.png``
    and so on show the images. Drawings are written next to it: ``images`` of a detector, ``strips`` and ``clips`` of
    videos. Files that cannot be read are reported and skipped. Drawings of earlier calls are removed.

    Args:
        predictor: the model.
        paths: images or videos, and folders of them.
        out: the folder to write.
        explain: also write each image with a heatmap of the evidence for its prediction to ``explained``.
        min_score: lowest score of detections that are drawn and printed; predictions.jsonl has all of them.
        max_frames: maximum number of frames of a video that a model of images predicts; None: all.
        bands: channels of the images that are drawn, counted from 1: three, or one; None: as by default.

    Raises:
        ConfigError: there is no such file or folder, or the predictions cannot be explained.
        DataError: some files could not be read; everything else is written.
    """
    streams = [str(path) for path in paths if is_video(str(path))]
    if streams and not predictor.takes_video:
        if explain or len(streams) < len(paths):
            message = "frames of videos have no heat maps, and images and videos are predicted in separate commands"
            raise ConfigError(Problem("command line", "--explain" if explain else "", message))
        predict_frames(predictor, streams, out, max_frames=max_frames, min_score=min_score)
        return
    if max_frames:
        message = "it is for models of images on videos, URLs and cameras"
        raise ConfigError(Problem("command line", "--max-frames", message))
    files = list(find_files(paths, videos=predictor.takes_video))
    options, errors = DrawOptions(min_score=min_score), list[str]()
    kind, drawings = ("videos", ", strips and clips") if predictor.takes_video else ("images", " and sheets")
    lines: list[dict[str, Any]] = []
    sheets = Sheets(out)
    with replace_earlier(out), progress_bar("predict", len(files), unit=kind) as bar:
        for batch in read_batches(predictor, files, errors, bands):
            if explain:
                _write_heatmaps(out, len(lines), batch, predictor, errors)
            for (path, original, _), prediction in bar.track(zip(batch, predictor.batch(batch.samples), strict=True)):
                presenter = predictor.presenter(prediction)
                caption = presenter.caption(prediction.readable, min_score=min_score) or ["nothing"]
                print(printable(f"{shown_path(path)}  {', '.join(caption)}"))
                try:
                    name = drawing_name(len(lines), path.name)
                    drawn = presenter.save(out, name, original, prediction, options)
                except (OSError, ValueError) as error:  # a video is read again for its drawing
                    errors.append(str(error))
                    drawn = None
                if "image" in original:
                    sheets.add(drawn or to_pil(original["image"]), [path.name, *caption])
                lines.append({"path": shown_path(path), **prediction.readable})
        sheets.write()
        write_lines(out, lines)
    print(f"{len(lines)} {kind}; predictions.jsonl{drawings} are in {out}")
    raise_skipped(errors, len(files))


def retrieve(
    predictor: Predictor,
    paths: Sequence[Path | str],
    gallery: Path,
    out: Path,
    *,
    nearest: int = 10,
    rerank: bool = False,
    explain: bool = False,
) -> None:
    """Print and write the images of a gallery that are nearest to each query, by the cosine of their embeddings.

    ``predictions.jsonl`` has one line per query with its ``path`` and the ``nearest`` images: ``path``, ``distance``
    (1 - cosine, or re-ranked) and ``verdict``. A sheet for each query in ``sheets`` shows it with these. If names give
    identities (see :func:`opabinia.inference.retrieval.gallery.identity_from_path`), images of the same identity are
    framed in green, others in red, and those that evaluations ignore (same identity, same camera) in gray.

    Args:
        predictor: the model.
        paths: query images, and folders of them.
        gallery: the folder that is searched.
        out: the folder to write.
        nearest: maximum number of matches per query.
        rerank: re-rank them, see :meth:`opabinia.inference.retrieval.gallery.Gallery.with_reranking`.
        explain: also write each query with a heatmap of the evidence for its similarity to the nearest match.

    Raises:
        ConfigError: there is no such file or folder, or similarities cannot be explained.
        DataError: some files could not be read; everything else is written.
    """
    queries = list(find_files(paths, videos=predictor.takes_video))
    images = list(find_files([gallery], videos=predictor.takes_video))
    errors = list[str]()
    readable, features = embed_gallery(predictor, images, gallery, errors)
    searched = Gallery(readable, gallery, lambda rows, k: nearest_rows(rows, features, k), features.__getitem__)
    searched = searched.with_reranking() if rerank else searched
    lines: list[dict[str, Any]] = []
    with replace_earlier(out), progress_bar("predict", len(queries), unit="images") as bar:
        for batch, embeddings in embed_files(predictor, queries, errors):
            by_query = searched.nearest(batch.paths, embeddings, nearest)
            if explain:
                if not all(by_query):
                    raise ConfigError(Problem("command line", "--gallery", "it has no image but the query itself"))
                toward = features[torch.tensor([matches[0].number for matches in by_query])]
                _write_heatmaps(out, len(lines), batch, predictor, errors, toward)
            for (path, original, _), matches in bar.track(zip(batch, by_query, strict=True)):
                samples = [original, *(predictor.read(match.path) for match in matches)]
                drawn = [to_pil(representative_image(sample)) for sample in samples]
                captions = [
                    (path.name, "query"),
                    *((match.path.name, f"{match.distance:.3f}") for match in matches),
                ]
                frames = [None, *(match.verdict for match in matches)]
                sheet = contact_sheet(drawn, captions, columns=len(drawn), size=120, frames=frames)
                save_image(out / "sheets" / f"{drawing_name(len(lines), path.name)}.png", sheet)
                first = f"{shown_path(matches[0].path)}, distance {matches[0].distance:.3f}" if matches else "none"
                print(printable(f"{shown_path(path)}  nearest: {first}"))
                lines.append({"path": shown_path(path), "nearest": [match.to_json() for match in matches]})
        write_lines(out, lines)
    print(f"{plural(len(lines), 'image')}; predictions.jsonl and sheets are in {out}")
    raise_skipped(errors, len(queries) + len(images))


def _write_heatmaps(
    out: Path, done: int, batch: InputBatch, predictor: Predictor, errors: list[str], toward: Tensor | None = None
) -> None:
    """Write the heatmaps of a batch; messages about images without one, such as those of a pixel, go to ``errors``.

    Raises:
        ConfigError: no image of the first batch can be explained.
    """
    failed = 0
    for indices in group_by_size(batch.samples):
        samples = [batch.samples[index] for index in indices]
        try:
            heatmaps = predictor.explain(samples, None if toward is None else toward[indices])
        except ValueError as error:
            failed += len(indices)
            if not done and failed == len(batch):
                raise ConfigError(Problem("command line", "--explain", str(error))) from error
            errors += [f"{shown_path(batch.paths[index])} has no heatmap: {error}" for index in indices]
            continue
        for index, sample, heatmap in zip(indices, samples, heatmaps, strict=True):
            image = overlay_heatmap(sample["image"], heatmap)
            scale = max(1, EXPLAINED // max(image.size))
            image = image.resize((image.width * scale, image.height * scale))
            save_image(out / "explained" / f"{drawing_name(done + index, batch.paths[index].name)}.png", image)
