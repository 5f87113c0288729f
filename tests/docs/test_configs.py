"""Every config that README and docs/ show is one: whole ones as they stand there, parts of one upon a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from opabinia.config import catalog, check, compose
from tests.docs.pages import Block, blocks

UPON = {
    "docs/classification.md": "classification/image_folder",
    "docs/data.md-2": "video/kinetics/slow_8x8_r50",
    "docs/data.md-4": "selfsup/images",
    "docs/data.md": "classification/image_folder",
    "docs/detection.md": "detection/coco_format",
    "docs/reid.md": "reid/market1501/bot",
    "docs/runs.md": "classification/image_folder",
    "docs/scale.md": "classification/image_folder",
    "docs/selfsup.md": "selfsup/images",
    "docs/video.md": "video/kinetics/slowfast_8x8_r50",
}
"""The recipe that a part of a config is tried upon, by block or page."""


def whole(block: Block) -> str:
    """The text of a complete config."""
    if "base:" in block.text:
        return block.text
    recipe = UPON.get(block.name, UPON.get(block.page))
    assert recipe, f"{block.name}: upon which recipe?"
    return f"base: {recipe}\n{block.text}"


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.name)
def test_it_is_a_config(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(whole(block), encoding="utf-8")
    resolved = check(compose(tmp_path / "mine.yaml"), catalog())
    assert not resolved.warnings
