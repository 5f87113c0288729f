"""The pictures of README: what runs on the embedded digits have learned, and the animal that has given its name.

    python scripts/pictures.py RUN...

takes runs of the five recipes in README's table and writes ``docs/pictures/classification.png`` and so on, each for the
runs that are given, and ``docs/pictures/opabinia.svg``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import opabinia
from opabinia.contracts import Sample
from opabinia.data.sources import Digits, DigitScenes, DigitViews, MovingDigits, PlacedDigits
from opabinia.inference.predictor import Predictor
from opabinia.visualization.detections import predicted_objects
from opabinia.visualization.drawing import draw_objects, scatter, sheet, side_by_side, to_pil

OUT = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COLOURS = 32
"""Of a picture; so each has a few kB."""


def main(runs: Sequence[Path]) -> None:
    """Draw them."""
    OUT.mkdir(exist_ok=True)
    (OUT / "opabinia.svg").write_text(animal(), encoding="utf-8")
    for run in runs:
        name, draw = next((task, draw) for task, draw in TASKS.items() if task in run.parts)
        picture = draw(opabinia.load(run))
        picture.quantize(COLOURS, dither=Image.Dither.NONE).save(OUT / f"{name}.png", optimize=True)


# --- what was learned -------------------------------------------------------------------------------------------------


def classification(predictor: Predictor) -> Image.Image:
    """Digits and what is said of them."""
    source = Digits(split="val")
    pictures = [source[number]["image"] for number in range(3, 8)]
    best = [predictor(picture).readable["top"][0] for picture in pictures]
    captions = [f"{one['class']}: {one['probability']:.0%}" for one in best]
    return sheet([to_pil(picture) for picture in pictures], captions, columns=5, size=56)


def detection(predictor: Predictor) -> Image.Image:
    """Two crowded scenes with the things that were found."""
    source = DigitScenes(split="val")
    drawn = []
    for number in [number for number in range(100) if len(source[number]["boxes"]) > 4][:2]:
        picture = source[number]["image"]
        things = predicted_objects(predictor(picture), predictor.classes, tuple(picture.shape[-2:]))
        drawn.append(draw_objects(picture, things, side=160, text=9))
    return side_by_side(drawn, ["", ""])


def selfsup(predictor: Predictor, count: int = 600) -> Image.Image:
    """A map of embeddings by t-SNE; colours are the labels, which the model has never seen."""
    from sklearn.manifold import TSNE

    source = PlacedDigits(split="val")
    samples = [source[number * len(source) // count] for number in range(count)]
    points = TSNE(random_state=0, init="pca").fit_transform(_embedded(predictor, samples).numpy())
    labels = [sample["label"] for sample in samples]
    whole = scatter(points, labels, [str(digit) for digit in range(10)], title="", size=(560, 380))
    return whole.resize((280, 190), Image.Resampling.LANCZOS)


def reid(predictor: Predictor, shown: int = 4) -> Image.Image:
    """Two pictures with their nearest from other cameras: right ones green, wrong ones red."""
    source = DigitViews(split="test")
    samples = [source[number] for number in range(len(source))]
    features = _embedded(predictor, samples)
    pictures, captions, frames = [], [], list[str | None]()
    for query in [number for number, one in enumerate(samples) if one["query"]][:2]:
        others = [n for n, one in enumerate(samples) if not one["query"] and one["camera"] != samples[query]["camera"]]
        near = (features[others] @ features[query]).topk(shown).indices.tolist()
        found = [samples[others[place]] for place in near]
        pictures += [to_pil(one["image"]) for one in (samples[query], *found)]
        captions += ["looked for", *(f"camera {one['camera']}" for one in found)]
        frames += [None, *("right" if one["label"] == samples[query]["label"] else "wrong" for one in found)]
    return sheet(pictures, captions, columns=shown + 1, size=56, frames=frames)


def video(predictor: Predictor) -> Image.Image:
    """Frames of a film, and what is said of it."""
    film = MovingDigits(split="val")[2]["video"]
    frames = film.read([0, 4, 8, 12])
    best = predictor(film).readable["top"][0]
    captions = [best["class"], f"{best['probability']:.0%}", "", ""]
    return sheet([to_pil(frame) for frame in frames], captions, columns=4, size=72)


def _embedded(predictor: Predictor, samples: Sequence[Sample]) -> Tensor:
    """N x D."""
    seen = [predictor.sample(sample["image"]) for sample in samples]
    return torch.cat([predictor.embeddings(seen[first : first + 256]) for first in range(0, len(seen), 256)])


TASKS: dict[str, Callable[[Predictor], Image.Image]] = {
    "classification": classification,
    "detection": detection,
    "selfsup": selfsup,
    "reid": reid,
    "video": video,
}


# --- the animal -------------------------------------------------------------------------------------------------------

BODY, EDGE, TEXT = "#2a9d8f", "#1d6f66", "#7d8590"
"""Colours that can be seen on white and on black."""

EYES = {
    "classification": '<text x="0" y="12" font-size="36" text-anchor="middle" fill="#111">3</text>',
    "detection": '<text x="-2" y="10" font-size="28" text-anchor="middle" fill="#111">7</text>'
    '<rect x="-13" y="-14" width="22" height="29" fill="none" stroke="#d55e00" stroke-width="3"/>',
    "self-supervised": "".join(
        f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>'
        for colour, places in (
            ("#0072b2", ((-15, -5), (-8, -12), (-7, -3))),
            ("#e69f00", ((6, -13), (14, -8), (8, -4))),
            ("#009e73", ((-6, 9), (2, 15), (4, 7))),
        )
        for x, y in places
    ),
    "re-identification": '<text x="-10" y="9" font-size="25" text-anchor="middle" fill="#111">5</text>'
    '<text x="10" y="9" font-size="25" font-style="italic" text-anchor="middle" fill="#111">5</text>'
    '<path d="M-17 15H17" stroke="#009e73" stroke-width="3"/>',
    "video": '<path d="M-8-13 15 0-8 13Z" fill="#0072b2"/>',
}
"""What each eye sees."""


def animal() -> str:
    """Opabinia regalis from the side: five eyes, one brain."""
    parts = [*_lobes(), *_trunk(), *_eyes()]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 290" font-family="sans-serif" role="img">'
    return "\n".join([head, "<title>Opabinia: five eyes, one brain</title>", *parts, "</svg>\n"])


def _back(share: float) -> tuple[float, float, float]:
    """Of the trunk at a share of its length: x, y of its middle, and half its height."""
    return 262 + 393 * share, 208 - 14 * math.sin(math.pi * share), 34 * (1 - share) ** 0.6 + 5


def _lobes(count: int = 12) -> Iterator[str]:
    """The swimming lobes, from the tail on, so that each covers the next; and the fan of the tail."""
    for angle in (-62, -40, -18):
        yield (
            f'<ellipse cx="36" rx="42" ry="11" transform="translate(650 206) rotate({angle})" '
            f'fill="{BODY}" stroke="{EDGE}" stroke-width="2"/>'
        )
    for number in reversed(range(count)):
        x, y, half = _back((number + 0.8) / (count + 1))
        yield (
            f'<ellipse rx="15" ry="{half * 0.75 + 8:.0f}" transform="translate({x:.0f} {y + half:.0f}) rotate(-24)" '
            f'fill="#e9c46a" stroke="#b08d2f" stroke-width="2"/>'
        )


def _trunk(steps: int = 24) -> Iterator[str]:
    """Proboscis with its claw, trunk with its rings, head."""
    hose = "M232 226C190 276 110 284 70 246 58 232 54 220 58 210"
    yield f'<path d="{hose}" fill="none" stroke="{EDGE}" stroke-width="19" stroke-linecap="round"/>'
    yield f'<path d="{hose}" fill="none" stroke="{BODY}" stroke-width="15" stroke-linecap="round"/>'
    yield f'<path d="{hose}" fill="none" stroke="{EDGE}" stroke-width="15" stroke-dasharray="1.5 9"/>'
    for side in (-1, 1):
        yield f'<path d="M58 210q{side * 22} -12 {side * 4} -36" fill="none" stroke="{EDGE}" stroke-width="6"/>'
    places = [_back(step / steps) for step in range(steps + 1)]
    above = " ".join(f"{x:.0f},{y - half:.0f}" for x, y, half in places)
    below = " ".join(f"{x:.0f},{y + half:.0f}" for x, y, half in reversed(places))
    yield f'<polygon points="{above} {below}" fill="{BODY}" stroke="{EDGE}" stroke-width="2"/>'
    for x, y, half in places[3::2]:
        yield f'<path d="M{x:.0f} {y - half:.0f}q-9 {half:.0f} 0 {2 * half:.0f}" fill="none" stroke="{EDGE}"/>'
    yield f'<ellipse cx="258" cy="206" rx="44" ry="38" fill="{BODY}" stroke="{EDGE}" stroke-width="2"/>'


def _eyes(first: int = 70, apart: int = 108, high: int = 74) -> Iterator[str]:
    """On their stalks, with what they see and its name."""
    for number in range(len(EYES)):
        x = first + number * apart
        stalk = f'd="M{242 + 8 * number} 184Q{x} 168 {x} {high + 30}" fill="none" stroke-linecap="round"'
        yield f'<path {stalk} stroke="{EDGE}" stroke-width="13"/><path {stalk} stroke="{BODY}" stroke-width="9"/>'
    for number, (name, seen) in enumerate(EYES.items()):
        x = first + number * apart
        yield f'<circle cx="{x}" cy="{high}" r="34" fill="#fff" stroke="{EDGE}" stroke-width="6"/>'
        yield f'<g transform="translate({x} {high})">{seen}</g>'
        yield f'<text x="{x}" y="22" font-size="14" text-anchor="middle" fill="{TEXT}">{name}</text>'


if __name__ == "__main__":
    main([Path(run) for run in sys.argv[1:]])
