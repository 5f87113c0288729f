"""The recipes listed in docs/video.md are the packaged ones."""

import re

from opabinia.config.compose import packaged_names
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "video.md").read_text(encoding="utf-8")


def test_all_large_recipes_are_listed() -> None:
    table = TEXT.partition("## Recipes")[2].partition("\n## ")[0]
    listed = set()
    for row in re.findall(r"^\| (`[a-z_]+/.+`) \|", table, re.M):
        first, *variants = (name.strip("` ") for name in row.split(","))
        listed |= {first, *(f"{first.partition('/')[0]}/{name}" for name in variants)} if "/" in first else set()
    large = ("video/kinetics/", "video/something_something/", "video/charades/")
    assert {f"video/{name}" for name in listed} == {name for name in packaged_names() if name.startswith(large)}
