"""Draw the images of README.md and docs/: predictions on the embedded digits, the logo, and those of the tutorials.

    python scripts/docs_images.py RUN...
    python scripts/docs_images.py tutorials FOLDER

The first takes runs of the six recipes in README's table and writes ``docs/images/TASK.png`` for each given run, and
``docs/images/opabinia.svg``. The second takes a folder in which the commands of docs/tutorials were run, and writes
``docs/images/tutorials``; screenshots of pages need chromium, and ``train.typescript`` is the record of a terminal:
``script -qec 'opabinia train classification/digits' train.typescript``.
"""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from torch import Tensor

import opabinia
from opabinia.contracts import DrawOptions, Sample
from opabinia.data.decoding.sequential import read_frames
from opabinia.data.sources import Digits, DigitScenes, DigitViews, MovingDigits, PlacedDigits
from opabinia.inference.predictor import Predictor
from opabinia.visualization.drawing import contact_sheet, scatter_plot, side_by_side, to_pil

OUT = Path(__file__).resolve().parents[1] / "docs" / "images"
COLORS = 32
"""Palette size of the PNG files, so that each takes a few kB."""


def main(runs: Sequence[Path]) -> None:
    """Write the logo, and the image of each run's task."""
    OUT.mkdir(exist_ok=True)
    (OUT / "opabinia.svg").write_text(logo(), encoding="utf-8")
    for run in runs:
        name, draw = next((task, draw) for task, draw in TASKS.items() if task in run.parts)
        image = draw(opabinia.load(run))
        image.quantize(COLORS, dither=Image.Dither.NONE).save(OUT / f"{name}.png", optimize=True)


# --- tutorials ------------------------------------------------------------------------------------------------------

SHEETS = {
    "classification": ("runs/clothes/default/predictions", 640),
    "detection": ("runs/detection/bccd/default/predictions/val/images", 760),
    "segmentation": ("runs/scenes/default/predictions/val/images", 520),
    "selfsup": ("runs/photos/default/predictions/sheets", 760),
    "reid": ("runs/products/default/predictions/sheets", 760),
    "video": ("runs/strokes/default/predictions/val/images", 760),
}
"""Folder with the images that a command has drawn, and the width in pixels of the documentation's image."""


def tutorials(folder: Path, rows: int = 3) -> None:
    """Write the images of the tutorials: the first drawings of each run, screenshots, a terminal."""
    out = OUT / "tutorials"
    out.mkdir(parents=True, exist_ok=True)
    for name, (drawn, width) in SHEETS.items():
        images = [Image.open(path).convert("RGB") for path in sorted((folder / drawn).glob("*.png"))[:rows]]
        if not images:
            continue
        images = [image.resize((width, round(image.height * width / image.width))) for image in images]
        sheet = Image.new("RGB", (width, sum(image.height for image in images)), "white")
        top = 0
        for image in images:
            sheet.paste(image, (0, top))
            top += image.height
        sheet.save(out / f"{name}.jpg", quality=80)
    tracked = [folder / kind / "videos" / "00.mp4" for kind in ("motion", "appearance")]
    if all(path.is_file() for path in tracked):
        tracks(tracked).save(out / "tracking.jpg", quality=80)
    screenshot(folder / "runs/clothes/default/report.html", out / "report.png")
    shown = re.sub("Script (started|done).*\n", "", (folder / "train.typescript").read_bytes().decode())
    (out / "terminal.svg").write_text(terminal(shown, "opabinia train classification/digits"), encoding="utf-8")


def tracks(videos: Sequence[Path], shown: Sequence[int] = (12, 20, 42, 56), side: int = 190) -> Image.Image:
    """Return frames of videos with drawn tracks, a row for each video."""
    sheet = Image.new("RGB", (side * len(shown), side * len(videos)), "white")
    for row, path in enumerate(videos):
        frames = {frame.number: to_pil(frame.image) for frame in read_frames(str(path)) if frame.number in shown}
        for column, number in enumerate(shown):
            sheet.paste(frames[number].resize((side, side), Image.Resampling.LANCZOS), (side * column, side * row))
    return sheet


def screenshot(page: Path, out: Path, size: tuple[int, int] = (1000, 1100)) -> None:
    """Write the top of an HTML page as it looks in chromium."""
    with tempfile.TemporaryDirectory() as profile:
        program = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        program += [f"--screenshot={out}", f"--window-size={size[0]},{size[1]}", page.resolve().as_uri()]
        subprocess.run(program, check=True, capture_output=True)
    Image.open(out).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(out, optimize=True)


def terminal(shown: str, title: str, columns: int = 120) -> str:
    """Return an SVG of the final screen of a terminal, from the characters that were written to it."""
    lines, row = [""], 0
    for part in re.split(r"(\r\n|\n|\r|\x1b\[\d*A|\x1b\[2K|\x1b\[\?\d+[hl])", shown):
        if part in ("\n", "\r\n"):
            row += 1
            lines += [""] if row == len(lines) else []
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif part in ("\r", "\x1b[2K"):
            lines[row] = "" if part != "\r" else lines[row]
        elif not part.startswith("\x1b[?"):
            lines[row] += part
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text("\n").join(Text.from_ansi(line) for line in lines))
    unembedded = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S)
    return console.export_svg(title=title, code_format=unembedded)


# --- predictions ------------------------------------------------------------------------------------------------------


def classification(predictor: Predictor) -> Image.Image:
    """Digits with the predicted class and its probability."""
    source = Digits(split="val")
    images = [source[index]["image"] for index in range(3, 8)]
    best = [predictor(image).readable["top"][0] for image in images]
    captions = [f"{entry['class']}: {entry['probability']:.0%}" for entry in best]
    return contact_sheet([to_pil(image) for image in images], captions, columns=5, size=56)


def detection(predictor: Predictor) -> Image.Image:
    """Two crowded scenes with the detected objects, or the colors of classes."""
    source = DigitScenes(split="val")
    drawn = []
    for index in [index for index in range(100) if len(source[index]["boxes"]) > 4][:2]:
        sample = source[index]
        drawn.append(
            predictor.presenter(sample).draw(sample, predictor(sample["image"]), DrawOptions(side=160, text=9))
        )
    return side_by_side(drawn, ["", ""])


def selfsup(predictor: Predictor, count: int = 600) -> Image.Image:
    """Embeddings of ``count`` images in two dimensions (t-SNE), colored by labels that were not used in training."""
    from sklearn.manifold import TSNE

    source = PlacedDigits(split="val")
    samples = [source[number * len(source) // count] for number in range(count)]
    points = TSNE(random_state=0, init="pca").fit_transform(_embeddings(predictor, samples).numpy())
    labels = [sample["label"] for sample in samples]
    plot = scatter_plot(points, labels, [str(digit) for digit in range(10)], title="")
    return plot.resize((280, 190), Image.Resampling.LANCZOS)


def reid(predictor: Predictor, nearest: int = 4) -> Image.Image:
    """Two queries with their nearest images from other cameras: correct matches green, wrong ones red."""
    source = DigitViews(split="test")
    samples = [source[index] for index in range(len(source))]
    features = _embeddings(predictor, samples)
    images, captions, frames = [], [], list[str | None]()
    for query in [index for index, sample in enumerate(samples) if sample["query"]][:2]:
        camera = samples[query]["camera"]
        gallery = [i for i, sample in enumerate(samples) if not sample["query"] and sample["camera"] != camera]
        ranks = (features[gallery] @ features[query]).topk(nearest).indices.tolist()
        matches = [samples[gallery[rank]] for rank in ranks]
        images += [to_pil(sample["image"]) for sample in (samples[query], *matches)]
        captions += ["query", *(f"camera {match['camera']}" for match in matches)]
        frames += [None, *("right" if match["label"] == samples[query]["label"] else "wrong" for match in matches)]
    return contact_sheet(images, captions, columns=nearest + 1, size=56, frames=frames)


def video(predictor: Predictor) -> Image.Image:
    """Frames of a video with the predicted class."""
    clip = MovingDigits(split="val")[2]["video"]
    frames = clip.read([0, 4, 8, 12])
    best = predictor(clip).readable["top"][0]
    captions = [best["class"], f"{best['probability']:.0%}", "", ""]
    return contact_sheet([to_pil(frame) for frame in frames], captions, columns=4, size=72)


def _embeddings(predictor: Predictor, samples: Sequence[Sample]) -> Tensor:
    """Return the embeddings of samples (N x D)."""
    inputs = [predictor.sample(sample["image"]) for sample in samples]
    return torch.cat([predictor.embeddings(inputs[first : first + 256]) for first in range(0, len(inputs), 256)])


TASKS: dict[str, Callable[[Predictor], Image.Image]] = {
    "classification": classification,
    "detection": detection,
    "segmentation": detection,
    "selfsup": selfsup,
    "reid": reid,
    "video": video,
}


# --- the logo ---------------------------------------------------------------------------------------------------------

BODY, EDGE, TEXT = "#2a9d8f", "#1d6f66", "#7d8590"
"""Colors that are visible on white and on black."""

EYES = {
    "classification": '<text x="0" y="12" font-size="36" text-anchor="middle" fill="#111">3</text>',
    "detection": '<text x="-2" y="10" font-size="28" text-anchor="middle" fill="#111">7</text>'
    '<rect x="-13" y="-14" width="22" height="29" fill="none" stroke="#d55e00" stroke-width="3"/>',
    "self-supervised": "".join(
        f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>'
        for color, points in (
            ("#0072b2", ((-15, -5), (-8, -12), (-7, -3))),
            ("#e69f00", ((6, -13), (14, -8), (8, -4))),
            ("#009e73", ((-6, 9), (2, 15), (4, 7))),
        )
        for x, y in points
    ),
    "re-identification": '<text x="-10" y="9" font-size="25" text-anchor="middle" fill="#111">5</text>'
    '<text x="10" y="9" font-size="25" font-style="italic" text-anchor="middle" fill="#111">5</text>'
    '<path d="M-17 15H17" stroke="#009e73" stroke-width="3"/>',
    "video": '<path d="M-8-13 15 0-8 13Z" fill="#0072b2"/>',
}
"""SVG content of each eye, by task."""


def logo() -> str:
    """Return an SVG of Opabinia regalis from the side, with an eye for each task."""
    shapes = [*_lobes(), *_trunk(), *_eyes()]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 290" font-family="sans-serif" role="img">'
    return "\n".join([head, "<title>Opabinia: five eyes, one brain</title>", *shapes, "</svg>\n"])


def _trunk_at(fraction: float) -> tuple[float, float, float]:
    """Return x and y of the center line and half the height of the trunk at a fraction of its length."""
    return 262 + 393 * fraction, 208 - 14 * math.sin(math.pi * fraction), 34 * (1 - fraction) ** 0.6 + 5


def _lobes(count: int = 12) -> Iterator[str]:
    """Draw the tail fan and the lobes, from the tail forward, so that each lobe covers the one behind it."""
    for angle in (-62, -40, -18):
        yield (
            f'<ellipse cx="36" rx="42" ry="11" transform="translate(650 206) rotate({angle})" '
            f'fill="{BODY}" stroke="{EDGE}" stroke-width="2"/>'
        )
    for number in reversed(range(count)):
        x, y, half = _trunk_at((number + 0.8) / (count + 1))
        yield (
            f'<ellipse rx="15" ry="{half * 0.75 + 8:.0f}" transform="translate({x:.0f} {y + half:.0f}) rotate(-24)" '
            f'fill="#e9c46a" stroke="#b08d2f" stroke-width="2"/>'
        )


def _trunk(steps: int = 24) -> Iterator[str]:
    """Draw the proboscis with its claw, the trunk with its rings, and the head."""
    proboscis = "M232 226C190 276 110 284 70 246 58 232 54 220 58 210"
    yield f'<path d="{proboscis}" fill="none" stroke="{EDGE}" stroke-width="19" stroke-linecap="round"/>'
    yield f'<path d="{proboscis}" fill="none" stroke="{BODY}" stroke-width="15" stroke-linecap="round"/>'
    yield f'<path d="{proboscis}" fill="none" stroke="{EDGE}" stroke-width="15" stroke-dasharray="1.5 9"/>'
    for side in (-1, 1):
        yield f'<path d="M58 210q{side * 22} -12 {side * 4} -36" fill="none" stroke="{EDGE}" stroke-width="6"/>'
    outline = [_trunk_at(step / steps) for step in range(steps + 1)]
    above = " ".join(f"{x:.0f},{y - half:.0f}" for x, y, half in outline)
    below = " ".join(f"{x:.0f},{y + half:.0f}" for x, y, half in reversed(outline))
    yield f'<polygon points="{above} {below}" fill="{BODY}" stroke="{EDGE}" stroke-width="2"/>'
    for x, y, half in outline[3::2]:
        yield f'<path d="M{x:.0f} {y - half:.0f}q-9 {half:.0f} 0 {2 * half:.0f}" fill="none" stroke="{EDGE}"/>'
    yield f'<ellipse cx="258" cy="206" rx="44" ry="38" fill="{BODY}" stroke="{EDGE}" stroke-width="2"/>'


def _eyes(first: int = 70, apart: int = 108, high: int = 74) -> Iterator[str]:
    """Draw the eyes on their stalks, with their content and its name."""
    for number in range(len(EYES)):
        x = first + number * apart
        stalk = f'd="M{242 + 8 * number} 184Q{x} 168 {x} {high + 30}" fill="none" stroke-linecap="round"'
        yield f'<path {stalk} stroke="{EDGE}" stroke-width="13"/><path {stalk} stroke="{BODY}" stroke-width="9"/>'
    for number, (name, content) in enumerate(EYES.items()):
        x = first + number * apart
        yield f'<circle cx="{x}" cy="{high}" r="34" fill="#fff" stroke="{EDGE}" stroke-width="6"/>'
        yield f'<g transform="translate({x} {high})">{content}</g>'
        yield f'<text x="{x}" y="22" font-size="14" text-anchor="middle" fill="{TEXT}">{name}</text>'


if __name__ == "__main__":
    if sys.argv[1:2] == ["tutorials"]:
        tutorials(Path(sys.argv[2]))
    else:
        main([Path(run) for run in sys.argv[1:]])
