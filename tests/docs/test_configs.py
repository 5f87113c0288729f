"""Every config in README and docs/ is valid: complete configs as they are, fragments on top of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from opabinia.config import catalog, check, compose
from tests.docs.pages import Block, blocks

BASES = {
    "docs/data_augmentation.md-2": "selfsup/images",
    "docs/detection.md": "detection/coco_format",
    "docs/multitask.md": "multitask/digits",
    "docs/multitask.md-1": None,
    "docs/reid.md": "reid/market1501/bot",
    "docs/selfsup.md": "selfsup/images",
    "docs/tracking.md": "detection/coco_format",
    "docs/video.md": "video/kinetics/slowfast_8x8_r50",
    "docs/video.md-1": "video/kinetics/slow_8x8_r50",
}
"""The recipe under a fragment, by block or page; None: the config is complete."""
DEFAULT_BASE = "classification/image_folder"


def complete(block: Block) -> str:
    """Return the text of a complete config."""
    base = BASES.get(block.name, BASES.get(block.page, DEFAULT_BASE))
    return block.text if "base:" in block.text or base is None else f"base: {base}\n{block.text}"


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.name)
def test_the_config_is_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(complete(block), encoding="utf-8")
    resolved = check(compose(tmp_path / "mine.yaml"), catalog())
    assert not resolved.warnings
