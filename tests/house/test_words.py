"""The user documentation uses the terms of the field, and docstrings are sentences with a subject."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.ipynb"))]
TEXTS = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in PAGES
    if page.relative_to(ROOT) != Path("docs/log.md")
}

FORBIDDEN = r"\b(films?|things?|pictures?|told|tells?)\b"
FILE_NAMES = ("`pictures/`", "`RUN/pictures`")
"""Names in run folders, which stay readable for runs of earlier versions."""

REQUIRED = {
    "bounding box": "docs/detection.md",
    "instance segmentation": "docs/detection.md",
    "mixed precision": "docs/mixed_precision.md",
    "multi-GPU": "docs/multi_gpu.md",
    "data augmentation": "docs/data_augmentation.md",
    "early stopping": "docs/hooks.md",
    "throughput": "docs/performance.md",
    "metric learning": "docs/reid.md",
    "action recognition": "docs/video.md",
    "hyperparameter sweep": "docs/sweeps.md",
}
"""Terms that users search for, and the page of each."""

SEARCHED = """
    activation checkpointing, all-reduce, bitwise identical, checkpoint, data augmentation, deterministic,
    exponential moving average, feature map, fine-tuning, gradient accumulation, gradient clipping, ground truth,
    instance mask, keypoint, latency,
    learning rate, linear probe, multi-node, oriented boxes, panoptic segmentation, pretrained weights, reproducible,
    segmentation map, state dict, synchronized batch norm, transfer learning, weight decay, world size
"""
"""Terms that a search of the documentation finds."""

HEADLESS = r"(What|Of)\b"
MOST_HEADLESS = 19


@pytest.mark.parametrize("page", TEXTS)
def test_pages_use_the_terms_of_the_field(page: str) -> None:
    text = TEXTS[page]
    for name in FILE_NAMES:
        text = text.replace(name, "")
    assert not [match[0] for match in re.finditer(FORBIDDEN, text, re.IGNORECASE)]


@pytest.mark.parametrize("term", REQUIRED)
def test_features_are_named_as_users_search_for_them(term: str) -> None:
    assert term.lower() in TEXTS[REQUIRED[term]].lower()
    assert term.lower() in TEXTS["README.md"].lower()


@pytest.mark.parametrize("term", re.split(r",\s+", SEARCHED.strip()))
def test_a_page_has_the_term(term: str) -> None:
    assert any(term in text.lower() for page, text in TEXTS.items() if page.startswith("docs/"))


def test_docstrings_do_not_begin_with_what_or_of() -> None:
    headless = []
    for path in sorted((ROOT / "opabinia").rglob("*.py")):
        for docstring in _docstrings(path):
            sentences = [sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", docstring)]
            matches = [sentence[:60] for sentence in sentences if re.match(HEADLESS, sentence)]
            headless += [f"{path.relative_to(ROOT)}: {sentence}" for sentence in matches]
    assert len(headless) <= MOST_HEADLESS, "\n".join(headless)


@pytest.mark.parametrize(
    "package", ["models", "optim", "engine", "evaluation", "visualization", "runtime", "inference", "cli"]
)
def test_descriptions_of_arguments_begin_with_a_noun(package: str) -> None:
    """Such as "device: device of the batches", not "device: of the batches"."""
    entries = [
        f"{path.relative_to(ROOT)}: {match[0].strip()}"
        for path in sorted((ROOT / "opabinia" / package).rglob("*.py"))
        for docstring in _docstrings(path)
        for match in re.finditer(r"^ +[a-z_][\w, ]*: of .*", docstring, re.MULTILINE)
    ]
    assert not entries, "\n".join(entries)


def _docstrings(path: Path) -> list[str]:
    """Return docstrings of the module, its classes and functions, and the strings below attributes."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    values = (node.value for node in nodes if isinstance(node, ast.Expr))
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
