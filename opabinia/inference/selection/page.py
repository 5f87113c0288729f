"""HTML page of the chosen images of a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opabinia.evaluation.selection.batches import Chosen
from opabinia.inference.predictor import Predictor
from opabinia.inference.sample_page import MAX_IMAGES, MAX_ROWS, render_sample_page
from opabinia.inference.selection.collect import Collected
from opabinia.inference.selection.rounds import Round
from opabinia.runtime.storage import shown_path
from opabinia.visualization.drawing import to_pil
from opabinia.visualization.report.blocks import Gallery, ImageRow, ReportImage, Section, Table
from opabinia.visualization.report.images import ByteBudget, clean, encode_image
from opabinia.visualization.video_strips import representative_image

SMALL = 200
"""Longer side in pixels of the images."""


def render_round(
    record: Round, predictor: Predictor, collected: Collected, chosen: Chosen, notes: Sequence[str]
) -> str:
    """Return the page of a round: the chosen images, in the order in which they were chosen, with their predictions.

    Args:
        record: record of the round.
        predictor: reads the images again.
        collected, chosen: the images.
        notes: for the user.
    """
    images, rows, budget = list[ReportImage](), list[tuple[object, ...]](), ByteBudget()
    for rank, (index, distance) in enumerate(zip(chosen.indices.tolist(), chosen.distances.tolist(), strict=True), 1):
        path, predicted = collected.paths[index], collected.captions[index]
        uncertainty = None if collected.uncertainty is None else float(collected.uncertainty[index])
        known = None if distance == float("inf") else distance
        if rank <= MAX_ROWS:
            rows.append((rank, clean(shown_path(path)), uncertainty, known, clean(predicted)))
        if rank <= MAX_IMAGES:
            known_uncertainty = [] if uncertainty is None else [f"uncertainty {uncertainty:.2f}"]
            caption = ", ".join([f"{rank}. {path.name}", *known_uncertainty, *([predicted] if predicted else [])])
            encoded = _encode(predictor, path, caption, budget)
            images += [] if encoded is None else [encoded]
    total = len(chosen.indices)
    shown = f"the first {len(images):,} of {total:,}" if len(images) < total else ""
    summary = {
        "run": record["run"],
        "strategy": record["strategy"],
        "uncertainty": record["measure"] if collected.uncertainty is not None else "unknown",
        "labeled samples": "unknown" if record["labeled"] is None else f"{record['labeled']:,}",
        "images to choose from": f"{record['candidates']:,}",
        "chosen": f"{total:,}",
    }
    columns = ("", "image", "uncertainty", "distance", "predicted")
    listed = Table("", columns, rows, frozenset({2, 3}), "", max_rows=25)
    section = Section("Chosen images", [Gallery("", shown, [ImageRow("", images)])])
    return render_sample_page(f"Round {record['round']}", summary, notes, [section], listed)


def _encode(predictor: Predictor, path: Path, caption: str, budget: ByteBudget) -> ReportImage | None:
    """Return an image of the page; None if it can no longer be read, or exceeds the budget."""
    try:
        image = to_pil(representative_image(predictor.read(path)))
    except (OSError, ValueError):
        return None
    image.thumbnail((SMALL, SMALL), reducing_gap=2.0)
    return encode_image(image, caption, budget)
